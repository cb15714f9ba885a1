"""The ant's expert: a policy that walks into a given direction, and leads ants through mazes.

It is trained here (`fidec.make.expert_training`), in OGBench's environment with OGBench's reward. The learner is
fidec's own SAC, so the expert is made in OGBench's way, but it is not one of OGBench's experts. The policy is in
NumPy: for one ant it is faster than a call into JAX. On the disk it is `weights.safetensors`, and `expert.json` with
their SHA-256, which is written last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.cache import data_dir
from fidec.errors import CheckpointError, DataError
from fidec.store.files import find_json, sha256_file, write_json
from fidec.store.trees import load_flat, save_flat

FLIPPED_STEPS = 100  # an episode counts as flipped after this many steps upside down
Layers = list[tuple[np.ndarray, np.ndarray]]  # (kernel, bias) of each layer
_LOG_STD_BOUNDS = (-5.0, 2.0)  # those of nn.GaussianActor


def turned(observations: np.ndarray) -> np.ndarray:
    """Rotate an ant's observation so that its direction is the x axis.

    (height, quaternion, 8 joints, velocity, spin, 8 joint velocities, direction) becomes (height, forward axis, up
    axis, joints, velocity, spin, joint velocities). The ground looks the same in all directions, so nothing is lost,
    and what is learnt for one direction holds for all. Unlike a quaternion, which has two signs, the axes are unique.
    """
    height, quaternion, joints, velocity, rest, direction = np.split(observations, (1, 5, 13, 16, 27), axis=-1)
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    forward = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], axis=-1)
    up = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=-1)
    cos, sin = np.moveaxis(direction, -1, 0)

    def turn(vector: np.ndarray) -> np.ndarray:
        a, b, c = np.moveaxis(vector, -1, 0)
        return np.stack([cos * a + sin * b, cos * b - sin * a, c], axis=-1)

    parts = [height, turn(forward), turn(up), joints, turn(velocity), rest]
    return np.concatenate(parts, axis=-1).astype(np.float32)


def flipped(qpos: np.ndarray) -> bool:
    """Whether the ant was upside down for at least FLIPPED_STEPS states of an episode."""
    quaternions = qpos[:, 3:7]
    x, y = quaternions[:, 1], quaternions[:, 2]
    height_of_up_axis = 1 - 2 * (x * x + y * y) / np.sum(quaternions * quaternions, axis=-1)
    return bool((height_of_up_axis < 0).sum() >= FLIPPED_STEPS)


def layers_of(actor: Any) -> Layers:
    """The layers of `nn.GaussianActor`'s parameters."""
    mlp = actor["params"]["MLP_0"]
    return [(np.asarray(mlp[f"Dense_{i}"]["kernel"]), np.asarray(mlp[f"Dense_{i}"]["bias"])) for i in range(len(mlp))]


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)))


class Policy:
    """The tanh of a Gaussian whose mean and log standard deviation are a network's output."""

    def __init__(self, layers: Layers):
        self.layers = layers

    def _heads(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = turned(observations)
        for kernel, bias in self.layers[:-1]:
            x = _gelu(x @ kernel + bias)
        kernel, bias = self.layers[-1]
        mean, log_std = np.split(x @ kernel + bias, 2, axis=-1)
        return mean, np.clip(log_std, *_LOG_STD_BOUNDS)

    def mean(self, observations: np.ndarray) -> np.ndarray:
        return np.tanh(self._heads(observations)[0])

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_std = self._heads(observations)
        return np.tanh(mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32))


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
