"""The policy of the ant's expert in NumPy: for one ant it is faster than a call into JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

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
