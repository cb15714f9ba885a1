"""Environments whose observations are images, for policies that take several frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class FrameStack(gymnasium.Wrapper):
    """The last `count` frames along the channels, the oldest first. A reset repeats its frame.

    An episode gives the same observations as its frames, stored as data and stacked there. Gymnasium's
    FrameStackObservation stacks along a new axis and keeps references, so that an environment that draws every frame
    into one array would change earlier frames.
    """

    def __init__(self, env: gymnasium.Env, count: int):
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, Box)
        low, high = (np.concatenate([bound] * count, axis=-1) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=space.dtype.type)
        self._frames: deque[np.ndarray] = deque(maxlen=count)
        self._count = count

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([np.array(frame)] * self._count)
        return np.concatenate(self._frames, axis=-1), info

    def step(self, action: Any):
        frame, *rest = self.env.step(action)
        self._frames.append(np.array(frame))
        return np.concatenate(self._frames, axis=-1), *rest


def stacked(make_env: Callable[[], gymnasium.Env], count: int) -> gymnasium.Env:
    """Make an environment and stack its frames. One without images is returned as it is."""
    env = make_env()
    space = env.observation_space
    return FrameStack(env, count) if isinstance(space, Box) and len(space.shape) == 3 else env
