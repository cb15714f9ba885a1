"""Train on your own arrays: no file format, no environment.

The data is a made-up log of a point that moves in the plane. Replace `load` with your own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import fidec

GOAL = np.array([0.5, -0.5])


def load(episodes: int = 40, length: int = 50, seed: int = 0) -> dict[str, Any]:
    """Rows in time order, one row per step, as a robot would log them."""
    rng = np.random.default_rng(seed)
    rows: dict[str, list] = {"observations": [], "actions": [], "rewards": [], "truncations": []}
    for _ in range(episodes):
        position = rng.uniform(-1, 1, 2)
        for step in range(length):
            # The operator steers to the goal, not very well. Actions are in metres per second, up to 2.
            action = np.clip(2.0 * (GOAL - position) + rng.normal(0, 0.5, 2), -2, 2)
            rows["observations"].append(position)
            rows["actions"].append(action)
            position = np.clip(position + 0.05 * action, -1, 1)
            rows["rewards"].append(-np.linalg.norm(position - GOAL))
            rows["truncations"].append(step == length - 1)  # the log ends here, the task does not
    return {name: np.array(column, dtype=np.float32) for name, column in rows.items()}


def main() -> None:
    # Actions that are not in [-1, 1] need their bounds. The policy then answers in your units.
    dataset = fidec.dataset_from_arrays(**load(), action_low=-2.0, action_high=2.0)
    print(fidec.check_dataset(dataset).to_text())

    result = fidec.fit(
        dataset,
        out="own-arrays-run",
        algo="fidec",
        steps=500,  # enough for this toy; real problems need 100,000 and more
        batch_size=64,
        options={"hidden": (32, 32), "flow_steps": 4, "discount": 0.9},
        overwrite=True,
    )

    policy = fidec.load_policy(result.policy)
    print("action at (0, 0):", policy(np.zeros(2, np.float32)))


if __name__ == "__main__":
    main()
