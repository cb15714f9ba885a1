"""Environments for the tests of the online phase. Their processes import this module and nothing of pytest."""

from __future__ import annotations

import json
import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Walk(gymnasium.Env):
    """A random walk that actions push: 3 numbers, 2 actions, episodes of 4 to 9 steps by their seed.

    Those of even length terminate, those of odd length are cut off. With `entropy` it cannot be repeated.
    """

    def __init__(self, entropy: bool = False):
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.entropy = entropy

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t, self.place = 4 + int(seed or 0) % 6, 0, self.np_random.normal(size=3)
        return self.place.astype(np.float32), {}

    def step(self, action):
        self.t += 1
        self.place = 0.9 * self.place + 0.1 * self.np_random.normal(size=3)
        self.place[:2] += 0.2 * action
        if self.entropy:
            self.place[2] = os.urandom(1)[0] / 256
        over, even = self.t == self.length, self.length % 2 == 0
        reward = -float(np.abs(self.place).sum())
        info = {"success": float(even)}
        return self.place.astype(np.float32), reward, over and even, over and not even, info


class Gated(gymnasium.Env):
    """Steps only after a file exists, which nobody makes while training waits for the environment."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, gate: os.PathLike | None = None, broken: os.PathLike | None = None):
        self.gate, self.broken = gate, broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.count = self.np_random.normal(size=3).astype(np.float32), 0
        return self.at, {}

    def step(self, action):
        while self.gate is not None and not os.path.exists(self.gate):
            time.sleep(0.01)
        if self.broken is not None and os.path.exists(self.broken):
            raise OSError("no simulator")
        self.count += 1
        self.at = (self.at + 0.1 * np.pad(action, (0, 1))).astype(np.float32)
        return self.at, float(self.at.sum()), False, self.count == 7, {"success": bool(self.at[0] > 0)}


Faults = dict[int, tuple[str, int]]  # reset seed of an episode: the fault, and in which step (0: in the reset)
VARIABLE = "FIDEC_TEST_FAULTS"


class FaultyWalk(Walk):
    """The walk, in which the episodes of some seeds fail."""

    def __init__(self, faults: Faults):
        super().__init__()
        self.faults = faults

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.fault, self.when = self.faults.get(int(seed or 0), ("", -1))
        return self._with_fault(observation, 0.0)[0], info

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return *self._with_fault(observation, reward), *rest

    def _with_fault(self, observation, reward):
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
    """The value of the environment variable that tells the environments' processes their faults."""
    return json.dumps(faults)


def make_faulty_walk() -> gymnasium.Env:
    return FaultyWalk({int(seed): tuple(fault) for seed, fault in json.loads(os.environ.get(VARIABLE, "{}")).items()})


gymnasium.register("Walk-v0", f"{__name__}:Walk")
gymnasium.register("UnrepeatableWalk-v0", f"{__name__}:Walk", kwargs={"entropy": True})
WALK, UNREPEATABLE = "helpers.online_envs:Walk-v0", "helpers.online_envs:UnrepeatableWalk-v0"
gymnasium.register("FaultyWalk-v0", f"{__name__}:make_faulty_walk")
FAULTY_WALK = "helpers.online_envs:FaultyWalk-v0"
