"""Record demonstrations of the scripted picker, as a robot's logger would: one npz file in fidec's own layout.

python record.py demonstrations.npz --episodes 60
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import pick


def record(episodes: int, seed: int = 0) -> dict[str, Any]:
    """Columns with one row per step. The task ends with the row at which the cube is lifted."""
    env, rng = gymnasium.make("Pick-v0"), np.random.default_rng(seed)
    rows: dict[str, list] = {}
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            action = pick.expert(observation["state"], rng)
            following, reward, terminated, truncated, _ = env.step(action)
            row = {f"observations/{name}": part for name, part in observation.items()}
            row |= {"actions": action, "rewards": reward, "terminals": terminated, "episodes": episode}
            for name, value in row.items():
                rows.setdefault(name, []).append(value)
            observation, ended = following, terminated or truncated
    env.close()
    return {name: np.array(column) for name, column in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--episodes", type=int, default=60)
    arguments = parser.parse_args()
    columns = record(arguments.episodes)
    np.savez_compressed(arguments.out, **columns)
    print(f"{arguments.out}: {len(columns['actions'])} rows, {int(columns['terminals'].sum())} successes")


if __name__ == "__main__":
    main()
