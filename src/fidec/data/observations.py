"""Observations of several parts in the columns of a data set: `observations` is an array, or a dictionary of arrays.

A file stores a part under the key `observations/NAME`. Inside this package a column of parts is split into such keys,
so that all checks of a column name the part, and joined again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fidec.data.columns import check_length, fail, numbers, observation_array
from fidec.data.mapped import take
from fidec.parts import Observations, is_image, is_part_name, map_parts, named, rows_of

KEYS = ("observations", "next_observations")


def is_column(key: str, columns: Iterable[str] = KEYS) -> bool:
    """Whether a key is one of these columns, or a part of observations in one of them."""
    column, slash, _ = key.partition("/")
    return column in columns and (not slash or column in KEYS)


def split_parts(where: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns with each part under a key of its own. The only part of a dictionary becomes the column."""
    found: dict[str, Any] = {}
    for key, value in columns.items():
        value = _by_name(where, key, value) if key in KEYS else value
        if isinstance(value, Mapping):
            if not value:
                raise fail(where, key, " is a dictionary without entries; expected at least one part.")
            for name in value:
                if not is_part_name(name):
                    raise fail(
                        where, key, f" has a part {name!r}; expected a name of letters, digits, '_', '.' and '-'."
                    )
            found |= named(key, value) if len(value) > 1 else {key: next(iter(value.values()))}
        else:
            found[key] = value
    return found


def join_parts(where: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns with a dictionary of parts in the place of keys such as `observations/front`."""
    found: dict[str, Any] = {}
    for key, value in columns.items():
        column, slash, name = key.partition("/")
        if not slash or column not in KEYS:
            found[key] = value
            continue
        if column in columns:
            raise fail(where, key, f" is a part of '{column}', which is there as an array too; keep one of them.")
        found.setdefault(column, {})[name] = value
    return found


def observation_column(where: str, key: str, value: Any) -> Observations:
    """A checked column: (N, ...) float32 or uint8 images; of parts each one is a vector or an image."""
    if not isinstance(value, Mapping):
        return _part(where, key, value)
    arrays = {name: _part(where, f"{key}/{name}", value[name]) for name in sorted(value)}
    rows = rows_of(arrays)
    for name, array in arrays.items():
        if len(array) != rows:
            first = next(iter(arrays))
            raise fail(
                where,
                f"{key}/{name}",
                f" has {len(array)} rows but '{key}/{first}' has {rows}; all parts need one row per step.",
            )
    return arrays


def check_same_parts(where: str, first: Observations, second: Observations) -> None:
    """The next observations have the parts, rows, shapes and types of the observations."""
    if isinstance(first, Mapping) != isinstance(second, Mapping):
        raise fail(where, "next_observations", " and 'observations' must both be arrays, or both have parts.")
    if isinstance(first, Mapping):
        for here, there, missing in (
            (*KEYS, sorted(first.keys() - second.keys())),
            (*reversed(KEYS), sorted(second.keys() - first.keys())),
        ):
            if missing:
                raise fail(where, there, f" has no part '{missing[0]}', but '{here}' has; they must agree.")
    ours, theirs = (named(key, value) for key, value in zip(KEYS, (first, second), strict=True))
    for (key, array), (other, following) in zip(ours.items(), theirs.items(), strict=True):
        check_length(where, other, following, len(array))
        if (following.shape, following.dtype) != (array.shape, array.dtype):
            raise fail(
                where,
                other,
                f" is {following.shape} {following.dtype} but '{key}' is {array.shape} {array.dtype}; they must "
                "agree.",
            )


def take_rows(observations: Observations, rows: np.ndarray) -> Observations:
    """`observations[rows]` of every part: copies, or views of mapped arrays."""
    return map_parts(lambda array: take(array, rows), observations)


def _by_name(where: str, key: str, value: Any) -> Any:
    """A list of one dictionary per episode as a dictionary of lists of one array per episode."""
    if not isinstance(value, list | tuple) or not value or not isinstance(value[0], Mapping):
        return value
    names = list(value[0])
    for i, episode in enumerate(value):
        found = list(episode) if isinstance(episode, Mapping) else []
        if sorted(map(str, found)) != sorted(map(str, names)):
            raise fail(
                where,
                key,
                f", episode {i}: has the parts {_words(found)}; episode 0 has {_words(names)}.",
            )
    return {name: [episode[name] for episode in value] for name in names}


def _words(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


def _part(where: str, key: str, value: Any) -> np.ndarray:
    """A single array, or a part, is (rows, n) numbers, or (rows, height, width, channels) uint8."""
    array = observation_array(where, key, value)
    shape = tuple(array.shape[1:])
    if len(shape) != 1 and not is_image(shape):
        raise fail(
            where,
            key,
            f" has shape {array.shape}; expected (rows, features) or (rows, height, width, channels). Reshape "
            "vectors, give grey images one channel, and episodes as a list: list(observations).",
        )
    if is_image(shape) and array.dtype != np.uint8:
        raise fail(where, key, f" has images of {numbers(where, key, value).dtype}; expected uint8, from 0 to 255.")
    return array
