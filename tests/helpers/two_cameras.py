"""A tiny environment with two cameras of different sizes and a state, and data of it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

FRONT, WRIST = (8, 10, 3), (6, 6, 3)
EPISODE = 6  # steps


class TwoCameras(gymnasium.Env):
    """A point moves by its actions. Both cameras show its position as brightness; `clock` is not in the data."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as in Gymnasium
    action_space = Box(-1.0, 1.0, (2,))
    observation_space = Dict(
        {
            "wrist": Box(0, 255, WRIST, np.uint8),
            "front": Box(0, 255, FRONT, np.uint8),
            "state": Box(-10.0, 10.0, (3,)),
            "clock": Box(0.0, 100.0, (1,)),
        }
    )

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.uniform(-1, 1, 2)
        return self.observation(), {}

    def step(self, action: np.ndarray):
        self.steps += 1
        self.place = np.clip(self.place + 0.1 * action, -1, 1)
        distance = float(np.linalg.norm(self.place))
        return self.observation(), -distance, False, self.steps >= EPISODE, {"success": float(distance < 0.2)}

    def observation(self) -> dict[str, np.ndarray]:
        light = (127 + 100 * self.place).astype(np.uint8)
        return {
            "front": np.full(FRONT, light[0], np.uint8),
            "wrist": np.full(WRIST, light[1], np.uint8),
            "state": np.array([*self.place, self.steps], np.float32),
            "clock": np.array([self.steps], np.float32),
        }

    def render(self) -> np.ndarray:
        return np.full((16, 16, 3), self.steps, np.uint8)


def episodes(count: int = 10, seed: int = 0) -> dict[str, Any]:
    """Episodes of random actions: a list for each column, and one observation more than actions."""
    env, generator = TwoCameras(), np.random.default_rng(seed)
    columns: dict[str, Any] = {"observations": [], "actions": [], "rewards": []}
    for number in range(count):
        seen, actions, rewards = [env.reset(seed=number)[0]], [], []
        for _ in range(EPISODE):
            actions.append(generator.uniform(-0.9, 0.9, 2).astype(np.float32))
            observation, reward, *_ = env.step(actions[-1])
            seen.append(observation)
            rewards.append(reward)
        names = ("front", "state", "wrist")
        columns["observations"].append({name: np.stack([each[name] for each in seen]) for name in names})
        columns["actions"].append(np.stack(actions))
        columns["rewards"].append(np.array(rewards, np.float32))
    return columns
