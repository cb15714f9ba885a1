"""Train on logged data and evaluate in your own Gymnasium environment.

An environment that is registered with Gymnasium also works by its id, in Python and on the command line:
`fidec train --data npz:mine.npz --env my_package:MyEnv-v0`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import fidec


class Reach(gymnasium.Env):
    """A point in the plane has to reach the origin. `info["success"]` says whether it has."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self.position.astype(np.float32), {}

    def step(self, action: np.ndarray):
        self.position = np.clip(self.position + 0.1 * action, -1, 1)
        self.steps += 1
        distance = float(np.linalg.norm(self.position))
        success = distance < 0.15
        return self.position.astype(np.float32), -distance, success, self.steps >= 30, {"success": success}


def record(episodes: int = 60, seed: int = 0) -> fidec.OfflineDataset:
    """Log a clumsy operator, who drifts to the goal slowly."""
    rng, env = np.random.default_rng(seed), Reach()
    rows: dict[str, list] = {
        name: [] for name in ("observations", "actions", "rewards", "terminals", "truncations", "next_observations")
    }
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        terminated = truncated = False
        while not (terminated or truncated):
            action = np.clip(rng.normal(-0.5 * observation, 0.4), -1, 1).astype(np.float32)
            following, reward, terminated, truncated, _ = env.step(action)
            for name, value in zip(
                rows, (observation, action, reward, terminated, truncated, following), strict=True
            ):
                rows[name].append(value)
            observation = following
    columns: dict[str, Any] = {name: np.array(column) for name, column in rows.items()}
    return fidec.dataset_from_arrays(**columns)


def main() -> None:
    result = fidec.fit(
        record(),
        out="own-environment-run",
        env=Reach,  # any function that returns an environment; it is called in other processes
        steps=500,
        batch_size=64,
        eval_episodes=10,
        eval_interval=500,
        eval_envs=1,
        options={"hidden": (32, 32), "flow_steps": 4, "discount": 0.9},
        overwrite=True,
    )
    # The refined policy, and the behaviour flow that it started from, on the same ten episodes.
    scores = fidec.evaluate(result.directory, env=Reach, episodes=10, envs=1, base=True)
    for name in ("base", "refined"):
        print(f"{name:<8} success {scores[name]['success']:.1f}  return {scores[name]['return']:.1f}")


if __name__ == "__main__":
    main()
