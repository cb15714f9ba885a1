"""A user's own environment. Its processes import this module and nothing of pytest."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Reach(gymnasium.Env):
    """Move a point near the origin within six steps; actions lie in [-2, 2], observations have 64 bits."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium declares it
    observation_space = Box(-np.inf, np.inf, (3,), np.float64)
    action_space = Box(-2.0, 2.0, (2,), np.float32)

    def __init__(self, render_mode: str | None = None, success: bool = True):
        self.render_mode, self.success = render_mode, success

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.normal(size=2), 0
        return np.array([*self.place, 0.0]), {}

    def step(self, action):
        self.place, self.steps = self.place + 0.1 * action, self.steps + 1
        distance = float(np.linalg.norm(self.place))
        info = {"is_success": distance < 1.5} if self.success else {}
        return np.array([*self.place, self.steps]), -distance, False, self.steps == 6, info

    def render(self):
        if self.render_mode is None:
            return None
        return np.full((32, 32, 3), 40 * self.steps, np.uint8)


gymnasium.register("Reach-v0", f"{__name__}:Reach")
REACH = "helpers.own_env:Reach-v0"
