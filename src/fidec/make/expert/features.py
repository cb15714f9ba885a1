"""What an expert's networks see of the observation that OGBench gives its experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FLIPPED_STEPS = 100  # so many steps upside down make an episode a flipped one


def plain(observations: np.ndarray) -> np.ndarray:
    """As it is."""
    return observations.astype(np.float32)


def turned(observations: np.ndarray) -> np.ndarray:
    """An ant's observation, seen from where its direction is the x axis.

    (height, quaternion, 8 joints, velocity, spin, 8 joint velocities, direction) becomes (height, forward axis, up
    axis, joints, velocity, spin, joint velocities). The ground looks the same from everywhere, so nothing is lost,
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


FEATURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"plain": plain, "turned": turned}


def upright(quaternions: np.ndarray) -> np.ndarray:
    """The vertical part of a body's up axis: 1 when it stands, -1 when it lies on its back."""
    x, y = quaternions[..., 1], quaternions[..., 2]
    return 1 - 2 * (x * x + y * y) / np.sum(quaternions * quaternions, axis=-1)


def flipped(qpos: np.ndarray) -> bool:
    """Whether a walker lay upside down for long in the states of an episode."""
    return bool((upright(qpos[:, 3:7]) < 0).sum() >= FLIPPED_STEPS)
