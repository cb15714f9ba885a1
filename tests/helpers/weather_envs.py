"""The walk with faults. Its processes import this module and nothing of pytest."""

from __future__ import annotations

import json
import os
import time

import gymnasium
import numpy as np

from helpers.online_envs import Walk

Faults = dict[int, tuple[str, int]]  # reset seed of an episode: what goes wrong, and in which step (0: in the reset)
VARIABLE = "FIDEC_TEST_FAULTS"


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


def write_faults(faults: Faults) -> str:
    """The value of the environment variable that tells the environments' processes what goes wrong."""
    return json.dumps(faults)


def make_weather() -> gymnasium.Env:
    return Weather({int(seed): tuple(fault) for seed, fault in json.loads(os.environ.get(VARIABLE, "{}")).items()})


gymnasium.register("FaultyWalk-v0", make_weather)
FAULTY_WALK = "helpers.weather_envs:FaultyWalk-v0"
