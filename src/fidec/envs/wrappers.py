"""Environments as a policy acts in them: with the observations, action bounds and delay of its data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space

from fidec.data.transforms import PENDING, Pending, with_pending
from fidec.errors import ConfigError
from fidec.parts import Frames, is_image, map_parts
from fidec.types import Spec

Bounds = tuple[Any, Any]  # the lowest and the highest action of each dimension
TOLERANCE = 1e-5  # by the width of the bounds or by their size: bounds are often rounded to 32 bits


def fitted(env: gymnasium.Env, name: str, policy: Bounds, data: Bounds, scale: bool) -> gymnasium.Env:
    """The environment with the action bounds of a policy, which may be a part of those of its data.

    ConfigError if the environment has other bounds than the data, unless those of the data are to be scaled to its
    own. An infinite bound is none: that of the data takes its place.
    """
    space, wanted = env.action_space, np.asarray(policy, np.float64)
    if not isinstance(space, Box) or wanted.shape != (2, *space.shape):
        return env  # the comparison of the spaces says so
    whole = np.broadcast_to(np.asarray(data, np.float64), wanted.shape)
    bounds = np.array([space.low, space.high], np.float64)
    bounds = np.where(np.isfinite(bounds), bounds, whole)
    if scale:
        wanted = bounds[0] + (wanted - whole[0]) / (whole[1] - whole[0]) * (bounds[1] - bounds[0])
    else:
        far = np.abs(bounds - whole) > TOLERANCE * np.maximum(whole[1] - whole[0], np.abs(whole))
        if far.any():
            raise _other_bounds(name, bounds, whole, int(np.argmax(far.any(0))))
    if np.allclose(wanted, [space.low, space.high]):
        return env
    limited = gymnasium.Wrapper(env)
    limited.action_space = Box(*np.clip(wanted, *bounds).astype(np.float32))
    return limited


def _other_bounds(name: str, bounds: np.ndarray, data: np.ndarray, dimension: int) -> ConfigError:
    (low, high), (first, last) = bounds[:, dimension], data[:, dimension]
    return ConfigError(
        f"the environment {name} has actions from {low:g} to {high:g} in dimension {dimension}, but the data has "
        f"actions from {first:g} to {last:g}. If those are not the bounds of the data, give them with action_low and "
        "action_high (--action-low, --action-high, or as columns of an npz file). If they are, in other units, "
        "scale_actions (--scale-actions) stretches them to the environment's"
    )


def make_for_policy(
    make_env: Callable[[], gymnasium.Env], name: str, spec: Spec, data: Bounds, scale: bool
) -> gymnasium.Env:
    """Make an environment with the action bounds, the delay and the observations of a policy."""
    env = fitted(make_env(), name, spec.bounds, data, scale)
    env = Delay(env, spec.delay) if spec.delay else env
    return stacked(env, spec.frame_stack, spec.history, tuple(part.name for part in spec.parts))


class Delay(gymnasium.Wrapper):
    """Observations that are `delay` steps old, with the actions since then (`fidec.data.transforms`).

    The actions are in [-1, 1], as in data.
    """

    def __init__(self, env: gymnasium.Env, delay: int):
        super().__init__(env)
        actions, space = env.action_space, env.observation_space
        assert isinstance(actions, Box)
        self._pending = Pending(delay, actions.low, actions.high)
        self._seen: deque[Any] = deque(maxlen=delay + 1)  # the oldest is what the policy sees
        sent = Box(-1.0, 1.0, (delay * len(actions.low),), np.float32)
        if isinstance(space, Dict):
            self.observation_space = Dict({**space.spaces, PENDING: sent})
        else:
            assert isinstance(space, Box)
            low, high = (with_pending(getattr(space, end), getattr(sent, end)) for end in ("low", "high"))
            self.observation_space = Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self._pending.reset()
        self._seen.extend([map_parts(np.array, observation)] * (self._seen.maxlen or 1))
        return self._pending(self._seen[0]), info

    def step(self, action: Any):
        observation, *rest = self.env.step(action)
        self._pending.add(action)
        self._seen.append(map_parts(np.array, observation))  # a copy: a camera may draw every frame into one array
        return self._pending(self._seen[0]), *rest


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


def stacked(env: gymnasium.Env, count: int = 1, history: int = 1, parts: Sequence[str] = ()) -> gymnasium.Env:
    """The environment with the observations of a policy. One that has them already is returned as it is."""
    space = env.observation_space
    if isinstance(space, Dict):
        return FrameStack(env, count, history, parts)
    several = isinstance(space, Box) and (count if is_image(space.shape) else history) > 1
    return FrameStack(env, count, history) if several else env
