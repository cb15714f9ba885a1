"""Environments as a policy acts in them: inside its range of actions, and with its delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from fidec.data.delay import PENDING, Pending, with_pending
from fidec.parts import map_parts


class LimitActions(gymnasium.Wrapper):
    """The same environment with a smaller action space."""

    def __init__(self, env: gymnasium.Env, low: np.ndarray, high: np.ndarray):
        super().__init__(env)
        self.action_space = Box(low, high)


def limited(env: gymnasium.Env, low: Any, high: Any) -> gymnasium.Env:
    """The environment with these action bounds, if they lie inside its own; else as it is."""
    space = env.action_space
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not isinstance(space, Box) or space.shape != low.shape:
        return env
    tolerance = 1e-6 * np.maximum(1.0, np.abs(space.high - space.low))
    inside = np.all(low >= space.low - tolerance) and np.all(high <= space.high + tolerance)
    equal = np.allclose(low, space.low) and np.allclose(high, space.high)
    return env if equal or not inside else LimitActions(env, np.maximum(low, space.low), np.minimum(high, space.high))


def controlled(make_env: Callable[[], gymnasium.Env], low: Any, high: Any, delay: int) -> gymnasium.Env:
    """Make an environment with the action bounds and the delay of a policy."""
    env = limited(make_env(), low, high)
    return Delay(env, delay) if delay else env


class Delay(gymnasium.Wrapper):
    """Observations that are `delay` steps old, with the actions since then (`fidec.data.delay`).

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
