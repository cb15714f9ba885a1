"""OGBench's environment for the ant's expert, with a state that can be saved and restored."""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.extras import require
from fidec.quiet import quiet


class Track:
    """One ant on open ground. It draws from its arguments and from NumPy's global generator: seed both."""

    def __init__(self, episode_steps: int):
        self._mujoco = require("mujoco", "ogbench", "the ant's expert")
        self._kind = self._mujoco.mjtState.mjSTATE_INTEGRATION
        ant = require("ogbench.online_locomotion.ant", "ogbench", "the ant's expert")
        wrappers = require("ogbench.online_locomotion.wrappers", "ogbench", "the ant's expert")
        with quiet():
            self._env: Any = wrappers.GymXYWrapper(ant.AntEnv())  # sets directions and rewards
        self._body = self._env.unwrapped
        self._length = episode_steps
        self.action_dim = int(self._body.action_space.shape[0])
        self.age = 0

    def reset(self, seed: int) -> np.ndarray:
        self.age = 0
        return self._env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, whether the ant failed, whether its time is over."""
        observation, reward, failed, _, _ = self._env.step(action)
        self.age += 1
        return observation, float(reward), bool(failed), self.age >= self._length

    def get_state(self) -> np.ndarray:
        physics = np.empty(self._mujoco.mj_stateSize(self._body.model, self._kind))
        self._mujoco.mj_getState(self._body.model, self._body.data, physics, self._kind)
        return np.concatenate([[self.age], self._env.z, physics])

    def set_state(self, state: np.ndarray) -> None:
        self.age, self._env.z, physics = int(state[0]), state[1:3].copy(), state[3:]
        self._env.num_steps = self.age
        self._mujoco.mj_setState(self._body.model, self._body.data, physics, self._kind)
        self._mujoco.mj_step1(self._body.model, self._body.data)
