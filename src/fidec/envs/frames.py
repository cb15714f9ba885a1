"""Environments whose observations are those of a policy: its parts, and successive observations stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space

from fidec.parts import Frames, is_image, map_parts


class FrameStack(gymnasium.Wrapper):
    """The last `count` frames of images and the last `history` vectors, the oldest first. A reset repeats its own.

    Of a Dict space only these `parts` are kept; `unused` names the others. The single part of a Dict is unwrapped, as
    in data. An episode gives the same observations as if it were stored as data and stacked there. Gymnasium's
    FrameStackObservation stacks along a new axis and keeps references, so that an environment that draws every frame
    into one array would change earlier frames.
    """

    def __init__(self, env: gymnasium.Env, count: int = 1, history: int = 1, parts: Sequence[str] = ()):
        super().__init__(env)
        self.unused: tuple[str, ...] = ()
        self._part: str | None = None  # the only one of a Dict
        space: Any = env.observation_space
        if isinstance(space, Dict):
            spaces = {name: space[name] for name in parts if name in space.spaces} or dict(space.spaces)
            self.unused = tuple(name for name in space.spaces if name not in spaces)
            self._part = next(iter(spaces)) if len(spaces) == 1 and not parts else None
            space = spaces if self._part is None else spaces[self._part]

        def count_of(space: Space) -> int:
            if not isinstance(space, Box) or space.shape == ():
                return 1
            return count if is_image(space.shape) else history

        counts = map_parts(count_of, space)
        spaces = map_parts(_repeated, space, counts)
        self.observation_space = Dict(spaces) if isinstance(spaces, dict) else spaces
        self._frames = Frames(counts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._frames.reset()
        return self._stacked(observation), info

    def step(self, action: Any):
        observation, *rest = self.env.step(action)
        return self._stacked(observation), *rest

    def _stacked(self, observation: Any) -> Any:
        return self._frames(observation if self._part is None else observation[self._part])


def _repeated(space: Space, count: int) -> Space:
    if not isinstance(space, Box) or count == 1:
        return space
    low, high = (np.concatenate([bound] * count, axis=-1) for bound in (space.low, space.high))
    return Box(low, high, dtype=space.dtype.type)


def stacked(
    make_env: Callable[[], gymnasium.Env], count: int = 1, history: int = 1, parts: Sequence[str] = ()
) -> gymnasium.Env:
    """Make an environment with the observations of a policy. One that has them already is returned as it is."""
    env = make_env()
    space = env.observation_space
    if isinstance(space, Dict):
        return FrameStack(env, count, history, parts)
    several = isinstance(space, Box) and (count if is_image(space.shape) else history) > 1
    return FrameStack(env, count, history) if several else env
