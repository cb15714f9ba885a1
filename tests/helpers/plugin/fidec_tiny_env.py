"""An environment that costs next to nothing. Worker processes import it, so it stays free of JAX."""

from __future__ import annotations

import gymnasium
import numpy as np

HORIZON = 12


class TinyEnv(gymnasium.Env):
    """A point that moves where it is told for `HORIZON` steps; success is to end right of the start."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=2)
        self.steps = 0
        return self.observe(), {}

    def observe(self):
        return np.array([*self.position, self.steps / HORIZON], np.float32)

    def step(self, action):
        self.position = self.position + 0.1 * np.asarray(action, np.float64)
        self.steps += 1
        reward = -float(np.abs(self.position).sum())
        return self.observe(), reward, False, self.steps == HORIZON, {"success": self.position[0] > 0}


if "Tiny-v0" not in gymnasium.registry:  # tests import this module more than once
    gymnasium.register("Tiny-v0", "fidec_tiny_env:TinyEnv")
