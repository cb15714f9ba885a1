"""Export a policy: trace it, write the files of a target, and compare them with the policy before they are kept."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from fidec.errors import ConfigError, FidecError, RunError
from fidec.export import card, verify
from fidec.export.trace import Choice, Program, draws, trace
from fidec.extras import require
from fidec.register import unknown
from fidec.store import files, trees
from fidec.store.directories import replacing_directory
from fidec.store.rundir import EXPORT, check_links
from fidec.store.staging import local_run
from fidec.train.config import RunConfig
from fidec.train.loading import load_policy
from fidec.train.origin import check_data, data_of
from fidec.train.policy import Policy

TARGETS = tuple(card.FILES)
COUNT = 1000  # observations of each kind that an export is compared at
SIZES = (500, 50)  # observations in a call of the comparison: vectors, images


def export_policy(
    policy: Policy | str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    candidates: int = 1,
    noise: float = 1.0,
    strength: float = 1.0,
    license: str | None = None,
    data: str | None = None,
    tolerance: float = verify.TOLERANCE,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a policy as files that need no fidec, as `fidec export` does; returns the metadata and their directory.

    `policy` is a run or a policy directory, the URL of one, or a `Policy`. `to` is "onnx", "stablehlo" or "numpy".
    `out` is a new or empty directory, by default RUN/export/TARGET. The factors are fixed in the files. With `noise`
    0 the files take no noise. The export is compared with the policy at random observations and at those of the run's
    data, or of `data`. A difference above `tolerance` is an error, and nothing is left behind.
    """
    if to not in TARGETS:
        raise unknown("target", to, TARGETS)
    if not tolerance > 0:
        raise ConfigError(f"tolerance must be positive, not {tolerance}")
    _require(to)
    directory = None if isinstance(policy, Policy) else local_run(policy)
    policy = policy if isinstance(policy, Policy) else load_policy(policy)
    place = _place(directory, to, out)
    choice = Choice(candidates, noise, strength)
    program = trace(policy, choice)
    metadata = card.describe(policy, program, choice, to, license)
    metadata |= {"policy_sha256": _digest(policy), **card.describe_run(directory)}
    sample, counts, reason = _sample(policy, choice, program, directory, data, seed)
    created = [parent for parent in place.parents if not parent.exists()]
    try:
        with files.writing(place, "the export"), replacing_directory(place) as new:
            _write(new, to, program, metadata)
            _write_metadata(new, to, metadata)  # which the program of NumPy reads
            compared = _compare(policy, choice, sample, verify.run_alone(to, new, sample), tolerance)
            metadata["verification"] = {**counts, **compared, "seed": seed}
            if to == "onnx":  # once more, with the result
                _write(new, to, program, metadata)
            metadata = _write_metadata(new, to, metadata)
            files.atomic_write(new / "README.md", card.readme(metadata, files.sha256_file(new / card.METADATA)))
    except BaseException:
        for parent in created:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    # The reason may hold paths of this machine, so it is not in the files.
    return files.to_builtin({"directory": place, "without_data": reason, **metadata})


def _require(target: str) -> None:
    """Raise before any work if a package is missing."""
    if target == "onnx":
        require("onnx", "export", "export to ONNX")
        require("onnxruntime", "export", "export to ONNX")
    elif target == "stablehlo":
        require("flatbuffers", "export", "export to StableHLO")


def _place(directory: Path | None, target: str, out: str | Path | None) -> Path:
    if out is not None:
        place = Path(out)
    elif directory is not None and (directory / "run.json").exists():
        check_links(directory)
        place = directory / EXPORT / target
    else:
        raise ConfigError("this is a policy without its run: name a directory for the export with --out")
    if place.is_symlink() or (place.exists() and (not place.is_dir() or files.has_entries(place))):
        raise ConfigError(f"{place} exists and is not an empty directory. Remove it, or name another one with --out.")
    return place


def _write(directory: Path, target: str, program: Program, metadata: dict[str, Any]) -> None:
    if target == "onnx":
        from fidec.export.onnx_model import build

        files.atomic_write(directory / "policy.onnx", build(program, card.as_text(files.to_builtin(metadata))))
    elif target == "stablehlo":
        from fidec.export.stablehlo import serialise

        files.atomic_write(directory / "policy.stablehlo", serialise(program))
    else:
        from fidec.export.numpy_file import write_files

        write_files(directory, program, metadata)


def _write_metadata(directory: Path, target: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Write and return the metadata with the hashes of the target's files."""
    metadata = metadata | {"files": {name: files.sha256_file(directory / name) for name in card.FILES[target]}}
    files.write_json(directory / card.METADATA, metadata)
    return metadata


def _compare(policy: Policy, choice: Choice, sample: verify.Sample, actions: Any, tolerance: float) -> dict[str, Any]:
    try:
        return verify.compare(policy.spec, sample, actions, tolerance)
    except RunError as error:
        if choice.noise or not draws(policy, choice):
            raise
        raise RunError(f"{error}. The method may use random numbers that noise 0 does not scale") from error


def _digest(policy: Policy) -> str:
    """The SHA-256 of the policy's model.safetensors."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.safetensors"
        trees.save_tree(path, policy.state)
        return files.sha256_file(path)


def _sample(
    policy: Policy, choice: Choice, program: Program, directory: Path | None, data: str | None, seed: int
) -> tuple[verify.Sample, dict[str, int], str | None]:
    """What to compare at, how many observations of each kind, and why none are from data, if so."""
    dataset, reason = None, "the policy was given without its run"
    if directory is not None or data is not None:
        try:
            dataset = data_of(directory, data) if directory else RunConfig().load(str(data))
            check_data(policy, dataset)
        except FidecError as error:
            if data is not None:  # which was asked for
                raise
            dataset, reason = None, str(error)
    observations, real = verify.observations_for(policy.spec, dataset, COUNT, seed)
    sample = verify.sample(policy, choice, program, observations, seed, SIZES[policy.spec.images])
    return sample, {"random": COUNT, "real": real}, None if real else reason
