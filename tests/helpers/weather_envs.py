"""The walk in bad weather. Its processes import this module and nothing of pytest."""

from __future__ import annotations

import os
import time
from functools import partial

import gymnasium
import numpy as np

from helpers.online_envs import Walk

Faults = dict[int, tuple[str, int]]  # reset seed of an episode: what goes wrong, and in which step (0: in the reset)


class Weather(Walk):
    """The walk, in which episodes with some seeds go wrong."""

    def __init__(self, faults: Faults):
        super().__init__()
        self.faults = faults

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.fault, self.when = self.faults.get(seed, ("", -1))
        return self._through(observation, 0.0)[0], info

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return *self._through(observation, reward), *rest

    def _through(self, observation, reward):
        if self.t != self.when:
            return observation, reward
        match self.fault:
            case "raise":
                raise RuntimeError("gripper lost")
            case "exit":
                os._exit(7)
            case "hang":
                time.sleep(1000)
            case "nan":
                observation = observation * np.nan
            case "reward":
                reward = np.nan
            case "huge":
                reward = 1e30
            case "shape":
                observation = observation[:2]
        return observation, reward


def _make(task: str, faults: Faults, **_: str) -> gymnasium.Env:
    return Weather(faults)


def bad_weather(faults: Faults):
    """In place of `fidec.envs.make.make`."""
    return partial(_make, faults=faults)
