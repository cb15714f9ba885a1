"""Use a trained policy in a control loop.

The policy directory is all that the robot needs: no data, no environment, no training code of yours.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import fidec

RATE = 50  # control steps per second


def train(out: Path) -> Path:
    """A small policy, so that this script runs alone. Copy the `policy/` directory of your own run instead."""
    rng = np.random.default_rng(0)
    positions = rng.uniform(-1, 1, (2000, 2)).astype(np.float32)
    actions = np.clip(rng.normal(-positions, 0.3), -1, 1).astype(np.float32)
    following = np.clip(positions + 0.1 * actions, -1, 1)
    rewards = -np.linalg.norm(following, axis=1)
    dataset = fidec.dataset_from_arrays(positions, actions, rewards, next_observations=following)
    options = {"hidden": (32, 32)}
    return fidec.fit(dataset, out, algo="bc", steps=500, options=options, overwrite=True, quiet=True).policy


def read_sensors(position: np.ndarray) -> np.ndarray:
    return position.astype(np.float32)


def move(position: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Stands for the robot. Its actuators get actions in the units of the data, inside their bounds."""
    return np.clip(position + 0.1 * action, -1, 1)


def main() -> None:
    policy = fidec.load_policy(train(Path("deploy-run")))  # the files are checked against their hashes
    position = np.array([0.8, -0.6])
    policy(read_sensors(position))  # the first call compiles; make it before the robot moves
    policy.reset(seed=0)  # the same seed and the same observations give the same actions

    late, period = 0, 1 / RATE
    deadline = time.perf_counter() + period
    for _ in range(RATE):
        action = policy(read_sensors(position))
        position = move(position, action)
        late += time.perf_counter() > deadline
        time.sleep(max(0.0, deadline - time.perf_counter()))
        deadline += period
    print(f"distance to the goal after one second: {np.linalg.norm(position):.2f}, late steps: {late}")


if __name__ == "__main__":
    main()
