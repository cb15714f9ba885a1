"""Observations of several parts: a single array, or a dictionary of arrays by name. Without JAX, for any process.

JAX sees such a dictionary as a tree, with its names in sorted order. These functions keep that order.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fidec.errors import ConfigError

Observations = Any  # an array with one row for each observation, or a dictionary of such arrays


def map_parts(function: Callable[..., Any], observations: Any, *others: Any) -> Any:
    """`function` of each part, and of the same part of `others`; of the array itself if there are no parts."""
    if not isinstance(observations, Mapping):
        return function(observations, *others)
    return {name: function(observations[name], *(each[name] for each in others)) for name in sorted(observations)}


def arrays_of(observations: Any) -> list[Any]:
    """The arrays of all parts, in the order of their names."""
    return (
        [observations[name] for name in sorted(observations)] if isinstance(observations, Mapping) else [observations]
    )


def named(key: str, observations: Any) -> dict[str, Any]:
    """The arrays by name: `observations/front` and so on, or `observations` for a single array."""
    if not isinstance(observations, Mapping):
        return {key: observations}
    return {f"{key}/{name}": observations[name] for name in sorted(observations)}


def only_parts(observations: Any, names: Collection[str]) -> Any:
    """The parts of these names, from a dictionary that may have more; without names the single array.

    ConfigError says which part is missing.
    """
    if not names:
        if isinstance(observations, Mapping):
            raise ConfigError(f"the observation has the parts {', '.join(observations)}; expected a single array")
        return observations
    if not isinstance(observations, Mapping):
        raise ConfigError(
            f"the observation is a {type(observations).__name__}; expected a dictionary with the parts "
            f"{', '.join(names)}"
        )
    for name in names:
        if name not in observations:
            found = ", ".join(map(str, observations)) or "none"
            raise ConfigError(f"the observation has no part {name!r}; expected {', '.join(names)}, found {found}")
    return {name: observations[name] for name in names}


def rows_of(observations: Any) -> int:
    """How many rows the parts have."""
    return len(arrays_of(observations)[0])


def not_finite(array: np.ndarray, given: np.ndarray) -> str | None:
    """Where an observation, of the numbers `given`, is not finite, and what to do; None if it is everywhere."""
    finite = np.isfinite(array)
    if finite.all():
        return None
    first = tuple(int(i) for i in np.argwhere(~finite)[0])
    return (
        f"at index {first[0] if len(first) == 1 else first} is {given[first]}: a policy needs finite numbers of "
        f"{array.dtype}. Check the sensor, or hold its last value"
    )


def is_part_name(name: object) -> bool:
    """Whether a part may have this name. It becomes a key of files, a field of messages and a word of exports."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is not None


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether a part of this shape is an image: (height, width, channels)."""
    return len(shape) == 3


class Frames:
    """The last observations of an episode side by side, the oldest first, as in the data that was trained on.

    `counts` says how many, for all or for each part. Images are stacked along their channels. `frames.reset()` begins
    an episode; `observation = frames(observation)` adds one. The first observation is repeated.
    """

    def __init__(self, counts: int | Mapping[str, int]):
        self._counts = counts
        self._seen: deque[Any] = deque(maxlen=max(arrays_of(counts)))

    def reset(self) -> None:
        self._seen.clear()

    def __call__(self, observation: Any) -> Any:
        names = sorted(self._counts) if isinstance(self._counts, Mapping) else ()
        # A copy: a camera may draw every frame into one array.
        observation = map_parts(np.array, only_parts(observation, names))
        self._seen.extend([observation] * (1 if self._seen else self._seen.maxlen or 1))
        return map_parts(lambda count, *seen: np.concatenate(seen[-count:], axis=-1), self._counts, *self._seen)
