"""Export a policy: trace it, write the files of a target, and compare them with the policy before they are kept."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import jax
import numpy as np

from fidec import launch, rng
from fidec.data import OfflineDataset
from fidec.errors import ConfigError, FidecError, RunError
from fidec.export import model_card
from fidec.export.trace import Program, draws, record, trace
from fidec.extras import require
from fidec.parts import Observations, map_parts, named, rows_of
from fidec.register import unknown
from fidec.store import files, trees
from fidec.store.directories import replacing_directory
from fidec.store.rundir import EXPORT, check_links, is_run
from fidec.store.staging import local_run
from fidec.train.acting import ActArguments, ActOptions
from fidec.train.config import RunConfig
from fidec.train.policy import Policy, load_policy
from fidec.train.training_data import check_fits, data_of, observations_at
from fidec.types import Part, Spec

TARGETS = tuple(model_card.FILES)
COUNT = 1000  # observations of each kind that an export is compared at
SIZES = (500, 50)  # observations in a call of the comparison: vectors, images
PLATFORMS = ("cpu", "cuda", "tpu")  # of StableHLO
TOLERANCE = 1e-5
TIE = 1e-5  # candidates whose values differ by less, relative to the values: rounding may decide between them
MOST_TIES = 0.05  # of the observations
SECONDS = 3600.0


def export_policy(
    policy: Policy | str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    license: str | None = None,
    data: str | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    **act: Unpack[ActArguments],
) -> dict[str, Any]:
    """Write a policy as files that need no fidec, as `fidec export` does; returns the metadata and their directory.

    `policy` is a run or a policy directory, the URL of one, or a `Policy`. `to` is "onnx", "stablehlo" or "numpy".
    `out` is a new or empty directory, by default RUN/export/TARGET. `act` are `candidates`, `noise` and `strength`,
    which are fixed in the files, and `replan` and `ensemble`, which their metadata has. With `noise` 0 the files take
    no noise. The export is compared with the policy at random observations and at those of the run's
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
    options = ActOptions(**act).resolved(policy.act)
    policy.spec.played(options.replan, options.ensemble)  # raises if they do not fit its chunks
    program = trace(policy, options)
    metadata = model_card.describe(policy, program, options, to, license)
    metadata |= {"policy_sha256": _digest(policy), "data": model_card.describe_data(directory)}
    sample, counts, reason = _sample(policy, options, program, directory, data, seed)
    created = [parent for parent in place.parents if not parent.exists()]
    try:
        with files.writing(place, "the export"), replacing_directory(place) as new:
            _write(new, to, program, metadata)
            _write_metadata(new, to, metadata)  # which the program of NumPy reads
            compared = _compare(policy, options, sample, run_alone(to, new, sample), tolerance)
            metadata["verification"] = {**counts, **compared, "seed": seed}
            if to == "onnx":  # once more, with the result
                _write(new, to, program, metadata)
            metadata = _write_metadata(new, to, metadata)
            files.atomic_write(
                new / "README.md", model_card.readme(metadata, files.sha256_file(new / model_card.METADATA))
            )
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
    elif directory is not None and is_run(directory):
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

        text = {"fidec": json.dumps(files.to_builtin(metadata)), "license": metadata["license"] or "none stated"}
        files.atomic_write(directory / "policy.onnx", build(program, text))
    elif target == "stablehlo":
        files.atomic_write(directory / "policy.stablehlo", _stablehlo(program))
    else:
        from fidec.export.numpy_source import write_files

        write_files(directory, program, metadata)


def _stablehlo(program: Program) -> bytes:
    """The bytes that `jax.export.deserialize` reads: weights are constants, and the batch size is free."""
    exporting = jax.export.export(jax.jit(program.function()), platforms=PLATFORMS)
    try:
        return bytes(exporting(*program.inputs().values()).serialize())
    except (NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"this policy cannot become StableHLO for {', '.join(PLATFORMS)}: {reason}") from error


def _write_metadata(directory: Path, target: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Write and return the metadata with the hashes of the target's files."""
    metadata = metadata | {"files": {name: files.sha256_file(directory / name) for name in model_card.FILES[target]}}
    files.write_json(directory / model_card.METADATA, metadata)
    return metadata


def _compare(policy: Policy, act: ActOptions, sample: Sample, actions: Any, tolerance: float) -> dict[str, Any]:
    try:
        return compare(policy.spec, sample, actions, tolerance)
    except RunError as error:
        if act.noise or not draws(policy, act):
            raise
        raise RunError(f"{error}. The method may use random numbers that noise 0 does not scale") from error


def _digest(policy: Policy) -> str:
    """The SHA-256 of the policy's model.safetensors."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.safetensors"
        trees.save_tree(path, policy.state)
        return files.sha256_file(path)


def _sample(
    policy: Policy, act: ActOptions, program: Program, directory: Path | None, data: str | None, seed: int
) -> tuple[Sample, dict[str, int], str | None]:
    """What to compare at, how many observations of each kind, and why none are from data, if so."""
    dataset, reason = None, "the policy was given without its run"
    if directory is not None or data is not None:
        try:
            dataset = data_of(directory, data) if directory else RunConfig().load(str(data))
            check_fits(policy, dataset)
        except FidecError as error:
            if data is not None:  # which was asked for
                raise
            dataset, reason = None, str(error)
    observations, real = observations_for(policy.spec, dataset, COUNT, seed)
    sample = make_sample(policy, act, program, observations, seed, SIZES[policy.spec.images])
    return sample, {"random": COUNT, "real": real}, None if real else reason


# --- the comparison with fidec's own policy, for the same observations and the same noise ---------------------


class Sample(NamedTuple):
    """Inputs, what fidec's policy answers, and how clearly it chose; in pieces of one size (pieces, size, ...)."""

    observations: Observations
    noise: np.ndarray | None
    actions: np.ndarray
    margin: np.ndarray | None


def observations_for(spec: Spec, dataset: OfflineDataset | None, count: int, seed: int) -> tuple[Observations, int]:
    """`count` random observations and, with data, as many of its own; and the number of the latter.

    Random vectors have the mean and the width of the data if these are known, else those of a standard normal.
    """
    generator = np.random.default_rng([seed, 1])
    if dataset is None:
        return spec.observations(lambda part: _random(generator, part, count, None)), 0
    rows = np.sort(generator.choice(dataset.size, count, replace=dataset.size < count))

    def both(part: Part, real: np.ndarray) -> np.ndarray:
        return np.concatenate([_random(generator, part, count, real), real.astype(part.dtype)])

    return spec.map(both, observations_at(dataset, rows, spec)), count


def _random(generator: np.random.Generator, part: Part, count: int, real: np.ndarray | None) -> np.ndarray:
    shape = (count, *part.shape)
    if np.dtype(part.dtype).kind != "f":
        limits = np.iinfo(part.dtype)
        return generator.integers(limits.min, limits.max, shape, dtype=part.dtype, endpoint=True)
    mean, width = (0.0, 1.0) if real is None else (real.mean(axis=0), real.std(axis=0))
    if part.mean is not None:
        mean, width = np.asarray(part.mean), np.asarray(part.std)
    return (mean + width * generator.standard_normal(shape)).astype(part.dtype)


def make_sample(
    policy: Policy, act: ActOptions, program: Program, observations: Observations, seed: int, size: int
) -> Sample:
    """What the policy does, in calls of `size` observations. The noise of each call is what the policy draws."""
    policy = Policy(policy.algo, policy.options, policy.spec, policy.state, act=act)  # with its own count of calls
    policy.reset(seed)
    pieces = map_parts(lambda array: array.reshape(-1, size, *array.shape[1:]), observations)
    noises, margins, actions = [], [], []
    with jax.default_device(jax.devices("cpu")[0]):  # whose products have the precision of float32
        run = record(policy, act, program, size)
        for number in range(rows_of(pieces)):
            piece = map_parts(lambda array, number=number: array[number], pieces)
            actions.append(policy(piece))
            noise, margin = run(piece, rng.at(rng.stream(seed, "act"), number))
            noises.append(noise)
            margins.append(margin)
    return Sample(
        pieces,
        np.stack(noises) if program.width else None,
        np.stack(actions),
        None if margins[0] is None else np.stack(margins),
    )


def run_alone(target: str, directory: Path, sample: Sample) -> np.ndarray:
    """The actions of the export, computed in a process that can import neither fidec nor, in most cases, JAX."""
    with tempfile.TemporaryDirectory() as place:
        inputs, outputs = Path(place) / "inputs.npz", Path(place) / "outputs.npy"
        columns: dict[str, Any] = named("observations", sample.observations)
        columns |= {} if sample.noise is None else {"noise": sample.noise}
        np.savez(inputs, **columns)
        script = str(Path(__file__).with_name("standalone_runner.py"))
        words = ("-W", "ignore", script, target, str(directory.absolute()), str(inputs), str(outputs))
        ended = launch.run(*words, timeout=SECONDS, environ={"JAX_PLATFORMS": "cpu"})
        if ended is None or ended[0]:
            reason = "it took too long" if ended is None else (ended[1].strip().splitlines() or ["no message"])[-1]
            print("" if ended is None else ended[1], end="", file=sys.stderr)
            raise RunError(f"the export was written, but does not run: {reason}")
        return np.load(outputs)


def compare(spec: Spec, sample: Sample, actions: np.ndarray, tolerance: float) -> dict[str, Any]:
    """The largest difference of an action component, as a part of half its range; RunError if it is too large.

    Half a range is 1 in the units of the method, whose actions lie in [-1, 1]. Bounds far from zero cost digits of
    float32: two roundings of the larger bound are allowed. A row whose choice among candidates was a tie may differ.
    """
    if actions.shape != sample.actions.shape or actions.dtype != np.float32 or not np.isfinite(actions).all():
        raise RunError(
            f"the export gives {actions.dtype} actions of shape {actions.shape}, or actions that are not finite; "
            f"expected float32 {sample.actions.shape}"
        )
    low, high = (np.asarray(bound) for bound in spec.bounds)
    rounding = 2 * np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    apart = np.abs(actions.astype(np.float64) - sample.actions)
    apart = np.maximum(apart - (0 if spec.action_low is None else rounding), 0) / (0.5 * (high - low))
    apart = apart.reshape(*sample.actions.shape[:2], -1).max(axis=-1)
    ties = np.zeros(apart.shape, bool) if sample.margin is None else (sample.margin < TIE) & (apart > tolerance)
    largest = float(apart[~ties].max(initial=0.0))
    if not largest <= tolerance or ties.mean() > MOST_TIES:
        raise RunError(
            f"the export differs from the policy by {largest:.1e} of half the action range, more than {tolerance:g}; "
            f"{int((apart > tolerance).sum())} of {apart.size} observations differ more, {int(ties.sum())} of them "
            "in a choice between equal values. Nothing was written. Another target may be nearer; --tolerance allows "
            "more"
        )
    return {"largest_difference": largest, "tolerance": tolerance, "ties": int(ties.sum())}
