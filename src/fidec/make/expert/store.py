"""An expert on the disk: `weights.safetensors`, and `expert.json` with their SHA-256, which is written last."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fidec.data.cache import data_dir
from fidec.errors import CheckpointError, DataError
from fidec.make.expert.policy import Layers, Policy
from fidec.store.files import find_json, sha256_file, write_json
from fidec.store.trees import load_flat, save_flat

NAME = "ant"
WEIGHTS, RECORD = "weights.safetensors", "expert.json"
_FORMAT = {"format": 1, "name": NAME, "features": "turned"}


@dataclass(frozen=True)
class Expert:
    """A trained expert: its directory, the SHA-256 of its weights, and its policy."""

    directory: Path
    sha256: str
    policy: Policy


def expert_directory(directory: Path) -> Path:
    """Where a data directory keeps its expert."""
    return directory / "experts" / NAME


def find_expert(directory: Path, given: Path | str | None = None) -> Expert | None:
    """The expert at `given`, else the one in a data directory, else the one in the default data directory."""
    if given is not None:
        return load_expert(Path(given).expanduser())
    for path in (expert_directory(directory), expert_directory(data_dir())):
        if (path / RECORD).exists():
            return load_expert(path)
    return None


def save_expert(directory: Path, layers: Layers, facts: dict[str, Any]) -> None:
    """Write the weights, then the record with `facts`."""
    kernels = {f"{i}/kernel": kernel for i, (kernel, _) in enumerate(layers)}
    biases = {f"{i}/bias": bias for i, (_, bias) in enumerate(layers)}
    save_flat(directory / WEIGHTS, kernels | biases)
    write_json(directory / RECORD, {**_FORMAT, **facts, "sha256": sha256_file(directory / WEIGHTS)})


def load_expert(directory: Path, *, sha256: str | None = None) -> Expert:
    """Read an expert. The weights must have the SHA-256 of the record, or the one given."""
    record, weights = find_json(directory / RECORD), directory / WEIGHTS
    if record is None:
        raise DataError(f"{directory} holds no expert: {RECORD} is missing or not a JSON object.")
    expected = sha256 or record.get("sha256")
    if any(record.get(key) != value for key, value in _FORMAT.items()) or not isinstance(expected, str):
        raise DataError(f"{directory / RECORD} does not describe an expert of this version of fidec.")
    if not weights.is_file() or sha256_file(weights) != expected:
        raise DataError(
            f"{weights} is missing or does not have the SHA-256 {expected[:16]}...: it was changed or damaged. "
            "Restore it, or delete the directory to train a new expert."
        )
    try:
        arrays = load_flat(weights)
        layers = [(arrays[f"{i}/kernel"], arrays[f"{i}/bias"]) for i in range(len(arrays) // 2)]
    except (CheckpointError, KeyError) as error:
        raise DataError(f"{weights} holds no layers that can be read ({error}).") from error
    if not _fit(layers):
        raise DataError(f"{weights} has no layers, or layers that do not fit together.")
    return Expert(directory, expected, Policy(layers))


def _fit(layers: Layers) -> bool:
    """Whether each layer takes the output of the one before, and the last gives means and log deviations."""
    shapes = [kernel.shape for kernel, _ in layers]
    if not shapes or any(len(shape) != 2 for shape in shapes) or shapes[-1][1] % 2:
        return False
    biases = all(bias.shape == kernel.shape[1:] for kernel, bias in layers)
    return biases and all(before[1] == after[0] for before, after in pairwise(shapes))
