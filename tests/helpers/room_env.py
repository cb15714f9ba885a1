"""An environment of images. Its processes import this module and nothing of pytest."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIZE = 16


class Room(gymnasium.Env):
    """A square that goes where it is told, seen from above, for ten steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = self.np_random.uniform(3, SIZE - 3, 2), 0
        return self.draw(), {}

    def draw(self):
        picture = np.full((SIZE, SIZE, 3), 20, np.uint8)
        row, column = self.place.astype(int)
        picture[row - 1 : row + 2, column - 1 : column + 2] = (250, 10 * self.time, 90)
        return picture

    def step(self, action):
        self.place, self.time = np.clip(self.place + action, 2, SIZE - 3), self.time + 1
        success = bool(np.abs(self.place - SIZE / 2).max() < 3)
        return self.draw(), float(success) - 1.0, False, self.time == 10, {"success": success}


gymnasium.register("Room-v0", "helpers.room_env:Room")
ROOM = "helpers.room_env:Room-v0"


def room_columns(episodes: int = 25) -> dict[str, Any]:
    """Random walks in the room, with each episode's last frame as a next state only."""
    rng, env = np.random.default_rng(0), Room()
    columns = {name: [] for name in ("observations", "actions", "rewards", "truncations")}
    for seed in range(episodes):
        frame, over = env.reset(seed=seed)[0], False
        while True:
            action = rng.uniform(-1, 1, 2).astype(np.float32)
            following, reward, _, cut, _ = (None,) * 5 if over else env.step(action)
            for name, value in zip(columns, (frame, action, reward or 0.0, over), strict=True):
                columns[name].append(value)
            if over:
                break
            frame, over = following, cut
    return {name: np.asarray(column) for name, column in columns.items()}
