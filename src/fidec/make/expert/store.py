"""An expert on the disk: `weights.safetensors` and `expert.json`, and a checkpoint while it is trained.

A JSON file names the SHA-256 of the arrays that belong to it and is written last, so arrays and record always fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fidec.errors import DataError
from fidec.make.expert.policy import Layers, Policy
from fidec.store.files import find_json, sha256_file, to_builtin, write_json, write_whole

WEIGHTS, RECORD, CHECKPOINT = "weights.safetensors", "expert.json", "training.json"
FORMAT = 1
PARTS = ("kernel", "bias")


@dataclass(frozen=True)
class Expert:
    """A trained expert: where it is, what it is (`record` is expert.json), and how it acts."""

    directory: Path
    record: dict[str, Any]
    policy: Policy

    @property
    def name(self) -> str:
        return self.record["name"]

    @property
    def sha256(self) -> str:
        return self.record["sha256"]


def save_expert(directory: Path, layers: Layers, record: dict[str, Any]) -> None:
    """Write an expert; `record` needs `name` and `features`."""
    arrays = {f"{i}/{part}": x for i, layer in enumerate(layers) for part, x in zip(PARTS, layer, strict=True)}
    write_arrays(directory / WEIGHTS, arrays)
    write_json(directory / RECORD, {"format": FORMAT, **record, "sha256": sha256_file(directory / WEIGHTS)})


def load_expert(directory: Path, name: str | None = None, *, sha256: str | None = None) -> Expert:
    """Read an expert, after its weights were compared with their hash; refuse another than the one asked for."""
    record = find_json(directory / RECORD)
    if record is None:
        raise DataError(f"{directory} holds no expert: {RECORD} is missing or no JSON object")
    if record.get("format") != FORMAT or not _has(record, name=str, features=str, sha256=str):
        raise DataError(f"{directory / RECORD} is not an expert that this version of fidec can read")
    if name is not None and record["name"] != name:
        raise DataError(f"{directory} holds the expert {record['name']!r}, but {name!r} is needed")
    arrays = read_arrays(directory / WEIGHTS, sha256 or record["sha256"])
    try:
        layers = [(arrays[f"{i}/kernel"], arrays[f"{i}/bias"]) for i in range(len(arrays) // len(PARTS))]
        policy = Policy(layers, record["features"])
    except KeyError as error:
        raise DataError(f"{directory} holds no usable expert: {error} is missing or unknown") from error
    if not _fit(layers):
        raise DataError(f"{directory} holds no usable expert: {WEIGHTS} has no layers, or layers that do not fit")
    return Expert(directory, record, policy)


def _has(record: dict[str, Any], **types: type) -> bool:
    return all(type(record.get(key)) is kind for key, kind in types.items())


def _fit(layers: Layers) -> bool:
    """Whether each layer takes what the one before it gives, and the last gives means and log deviations."""
    shapes = [kernel.shape for kernel, _ in layers]
    if not shapes or any(len(shape) != 2 for shape in shapes) or shapes[-1][1] % 2:
        return False
    biases = all(bias.shape == kernel.shape[1:] for kernel, bias in layers)
    return biases and all(before[1] == after[0] for before, after in pairwise(shapes))


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    from safetensors.numpy import save

    data = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    write_whole(path, lambda file: file.write(data))


def read_arrays(path: Path, sha256: str) -> dict[str, np.ndarray]:
    """The arrays of a file whose hash is as expected."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise DataError(f"{path} is missing. Delete the directory to train anew, or restore the file.")
    found = sha256_file(path)
    if found != sha256:
        raise DataError(
            f"{path}: SHA-256 is {found[:16]}... but its record says {sha256[:16]}...: the file was changed or "
            "damaged. Restore it, or delete the directory to train anew."
        )
    try:
        return load_file(path)
    except (SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path} holds no arrays that can be read ({error})") from error


def save_checkpoint(directory: Path, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    """Write the arrays under a name of their own, then the record that points to them, then drop older ones."""
    path = directory / f"training-{facts['steps']}.safetensors"
    write_arrays(path, arrays)
    write_json(directory / CHECKPOINT, {**facts, "file": path.name, "sha256": sha256_file(path)})
    for other in directory.glob("training-*.safetensors"):
        if other != path:
            other.unlink()


def load_checkpoint(directory: Path, wanted: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The arrays and facts of an unfinished training with the facts `wanted`, or None if there is none."""
    path = directory / CHECKPOINT
    if not path.exists():
        return None
    facts = find_json(path)
    if facts is None or not _has(facts, file=str, sha256=str, steps=int, blocks=int):
        raise DataError(f"{path} cannot be read. Delete {directory} to train anew.")
    wanted = to_builtin(wanted)
    other = [key for key in wanted if facts.get(key) != wanted[key]]
    if other:
        what = "; ".join(f"{key} was {facts.get(key)!r}, now {wanted[key]!r}" for key in other)
        raise DataError(f"{directory} holds an unfinished training with other settings ({what}). Delete it first.")
    return read_arrays(directory / Path(facts["file"]).name, facts["sha256"]), facts


def remove_checkpoint(directory: Path) -> None:
    (directory / CHECKPOINT).unlink(missing_ok=True)
    for path in directory.glob("training-*.safetensors"):
        path.unlink()
