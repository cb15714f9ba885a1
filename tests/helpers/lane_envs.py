"""Environments for the tests of environment processes, which import this module and nothing of pytest."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Counter(gymnasium.Env):
    """The observation tells the episode (its seed mod 1000), the step, a sum of actions and fresh random numbers.

    An episode has 4 to 8 steps, by its seed; it terminates if that number is even and is truncated if odd. `faults`
    maps a reset seed to what goes wrong in the third step. With `entropy` it draws from the operating system.
    """

    def __init__(self, faults: dict[int, str] | None = None, entropy: bool = False):
        self.observation_space = Box(-np.inf, np.inf, (6,), np.float64)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.faults, self.entropy = faults or {}, entropy

    def _observation(self):
        noise = [self.np_random.normal(), np.random.normal(), random.random()]
        if self.entropy:
            noise[0] = os.urandom(1)[0] + 256 * os.urandom(1)[0]
        return np.array([self.seed % 1000, self.t, self.total, *noise])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.t, self.total = int(seed or 0), 0, 0.0
        self.fault = self.faults.get(self.seed)
        if self.fault == "reset":
            raise ValueError("reset went wrong")
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        self.total += float(action.sum())
        observation, reward, over = self._observation(), self.total, self.t == length(self.seed)
        if self.t == 3 and self.fault is not None:
            observation, reward = self._go_wrong(observation, reward)
        even = self.t % 2 == 0
        return observation, reward, over and even, over and not even, {"success": self.t / 10}

    def _go_wrong(self, observation, reward):
        if self.fault == "raise":
            raise RuntimeError("gripper\nlost")
        if self.fault == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "lock":
            re.match(r"(a+)+$", "a" * 60 + "b")  # runs in C and never releases the interpreter lock
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "sleep":
            time.sleep(1000)
        if self.fault == "nan":
            observation = observation * np.nan
        if self.fault == "reward":
            reward = np.nan
        if self.fault == "shape":
            observation = observation[:2]
        return observation, reward


class Uneven(Counter):
    """Steps take between nothing and a few milliseconds, in some episodes more than in others."""

    def step(self, action):
        time.sleep(0.001 * (self.seed % 4) * (self.t % 3))
        return super().step(action)


class Signalled(Counter):
    """An episode with a seed in `blocked` waits for `file` in its third step; one in `lasting` ends with it."""

    def __init__(self, file: Path, blocked: tuple[int, ...] = (), lasting: tuple[int, ...] = (), **options):
        super().__init__(**options)
        self.file, self.blocked, self.lasting = file, blocked, lasting

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.seed in self.blocked and self.t == 3:
            while not self.file.exists():
                time.sleep(0.01)
        if self.seed in self.lasting:
            time.sleep(0.01)
            terminated, truncated, info = self.file.exists(), False, {}
        return observation, reward, terminated, truncated, info


class Parent(Counter):
    """Starts a process and never ends it, in one of two ways, and writes its number; an episode ends in a crash."""

    def __init__(self, way: str, file: Path):
        super().__init__()
        if way == "fork":  # the child has copies of all pipes
            pid = os.fork()
            if pid == 0:
                time.sleep(1000)
        else:
            pid = subprocess.Popen(["sleep", "1000"]).pid
        file.write_text(str(pid))

    def step(self, action):
        os.kill(os.getpid(), signal.SIGSEGV)


def make_broken() -> gymnasium.Env:
    print("hello from the simulator", flush=True)
    raise FileNotFoundError("scene.xml is not there")


def made_once(directory: Path) -> gymnasium.Env:
    """The first environment is made. The start of the second writes the file `started` and never ends."""
    if (directory / "first").exists():
        (directory / "started").touch()
        time.sleep(1000)
    (directory / "first").touch()
    return Counter()


def length(seed: int) -> int:
    """How many steps the episode with this seed has."""
    return 4 + seed % 5


class Handshake(gymnasium.Env):
    """A step writes the file `started`, and ends only when somebody has written the file `go`."""

    def __init__(self, directory: Path):
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.directory = directory

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        (self.directory / "started").touch()
        while not (self.directory / "go").exists():
            time.sleep(0.01)
        return np.ones(1, np.float32), 0.0, False, False, {}


class Film(gymnasium.Env):
    """Images of one channel, drawn at random."""

    def __init__(self):
        self.observation_space = Box(0, 255, (4, 4, 1), np.uint8)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def _frame(self):
        return self.np_random.integers(0, 256, (4, 4, 1), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._frame(), {}

    def step(self, action):
        return self._frame(), 0.0, False, False, {}
