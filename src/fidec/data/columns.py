"""Checks of columns: what cannot be used raises a DataError that names file, key and row.

Every check takes `where` (a file name, or the name that the user gave) and `key`, and returns the array in the dtype
that `OfflineDataset` uses. A column of observations is an array, or a dictionary of parts. A file stores a part under
the key `observations/NAME`. Inside this package a column of parts is split into such keys, so that every check names
the part, and joined again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from fidec.data.disk_array import (
    FileRows,
    MappedRows,
    Shards,
    as_rows,
    blocks,
    extremes,
    is_mapped,
    map_elements,
    take,
)
from fidec.errors import DataError
from fidec.parts import Observations, is_image, is_part_name, map_parts, named, rows_of

# Strictly inside [-1, 1], because tanh-based densities are infinite at the border (as FQL does).
ACTION_LIMIT = 1.0 - 1e-5
# Actions this far outside their bounds are rounding, not another unit.
ACTION_TOLERANCE = 1e-4

# Deflate cannot shrink data by more than about 1032 to 1; a larger claim is false.
MAX_RATIO = 1100


def fail(where: str, key: str, text: str) -> DataError:
    """An error that starts with the place: `where: key 'rewards', row 3: ...`."""
    return DataError(f"{where}: key '{key}'{text}")


def user_path(path: str | Path) -> Path:
    """The path with `~` replaced."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~name of a user that does not exist, or no home directory
        raise DataError(f"{str(path)!r} is not a usable path: {error} Set HOME, or give a path without ~.") from error


def is_data_file(path: Path) -> bool:
    """Whether the path is a file. DataError if it cannot be read, or if it cannot be told whether it is one."""
    try:
        found = path.is_file()
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be read: {error.strerror}. Check the path and its permissions."
        ) from error
    if found and not os.access(path, os.R_OK):
        raise DataError(f"{str(path)!r} cannot be read: Permission denied. Check the permissions of the file.")
    return found


def existing_file(path: str | Path) -> Path:
    """The path, if it is a file."""
    file = user_path(path)
    if is_data_file(file):
        return file
    what = "is a directory" if file.is_dir() else "is not a regular file" if file.exists() else "does not exist"
    raise DataError(f"{file} {what}; expected a data file. Check the path.")


def dimension_names(name: str, shape: Sequence[int], names: Sequence[str] = ()) -> list[str]:
    """What the dimensions of rows of this shape are called: q, or q[0] and q[1], or q[hip] and q[knee]."""
    width = int(np.prod(shape))
    if len(names) == width:
        return [f"{name}[{each}]" for each in names]
    return [name] if width == 1 else [f"{name}[{each}]" for each in range(width)]


def require_keys(where: str, present: Collection[str], needed: tuple[str, ...]) -> None:
    """Raise a DataError if a key is missing; it names the keys of the file."""
    for key in needed:
        if key not in present:
            hint = ""
            if key == "rewards" and "qpos" in present:
                hint = (
                    " This looks like an OGBench file, whose rewards depend on the task: load it as "
                    "'ogbench:<name>-singletask-v0' with this directory as the cache directory."
                )
            names = ", ".join(sorted(present)[:12]) or "nothing"
            raise fail(where, key, f" is missing; the file holds {names}.{hint}")


def first_true(bad: np.ndarray) -> tuple[int, ...]:
    """Index of the first True."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def numbers(where: str, key: str, value: object) -> np.ndarray:
    """An array of real numbers or booleans; objects, text, complex numbers and records are errors."""
    if isinstance(value, (MappedRows, FileRows, Shards)):
        return cast(np.ndarray, value)
    try:
        array = np.asarray(value)
    except Exception as error:  # ragged lists and other objects that NumPy cannot convert
        raise fail(where, key, f" is not an array of numbers ({error}); give rows of equal shape.") from error
    if array.dtype.kind not in "biuf":
        what = {"O": "Python objects", "S": "byte strings", "U": "text", "c": "complex numbers", "V": "records"}
        kind = what.get(array.dtype.kind, array.dtype.name)
        raise fail(where, key, f" holds {kind} (dtype {array.dtype}); store float32 numbers instead.")
    return array


def check_length(where: str, key: str, array: np.ndarray, rows: int) -> None:
    """All arrays have one row per time step."""
    if len(array) != rows:
        raise _unequal(where, key, len(array), rows)


def _unequal(where: str, key: str, found: int, rows: int) -> DataError:
    return fail(where, key, f" has {found} rows but 'observations' has {rows}; all keys need one row per step.")


def check_row_counts(where: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """`check_length` on the shapes that a file declares, before any array is unpacked or read."""
    first = next((shape for key, shape in shapes.items() if key.partition("/")[0] == "observations"), ())
    for key, shape in shapes.items():
        if key not in ("action_low", "action_high") and first and shape and shape[0] != first[0]:
            raise _unequal(where, key, shape[0], first[0])


def to_float32(where: str, key: str, array: np.ndarray) -> np.ndarray:
    """Cast to float32; NaN, infinity and numbers that float32 cannot hold are errors."""

    def to_single(block: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return block.astype(np.float32, copy=False)

    found, count, start = "", 0, 0
    for block in blocks(array):
        bad = ~np.isfinite(to_single(block))
        if bad.any():
            row, *columns = at = first_true(bad)
            column = f", column {', '.join(map(str, columns))}" if columns else ""
            found = found or f", row {start + row}{column}: the value is {block[at]}, not a finite float32"
            count += int(bad.any(axis=tuple(range(1, bad.ndim))).sum())
        start += len(block)
    if found:
        raise fail(where, key, f"{found} ({count} such rows); remove or repair those episodes.")
    return array if array.dtype == np.float32 else map_elements(array, to_single)


def observation_array(where: str, key: str, value: object) -> np.ndarray:
    """(N, ...) float32, or uint8 if the rows are images."""
    array = numbers(where, key, value)
    if array.ndim < 2 or 0 in array.shape:
        raise fail(
            where,
            key,
            f" has shape {array.shape}; expected (rows, features) or (rows, height, width, channels), not empty.",
        )
    array = array if array.dtype == np.uint8 and array.ndim >= 3 else to_float32(where, key, array)
    return cast(np.ndarray, as_rows(array)) if is_mapped(array) else array


def row_vector(where: str, key: str, value: object, rows: int) -> np.ndarray:
    """(N,) float32; a trailing axis of length one is taken off."""
    array = numbers(where, key, value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise fail(where, key, f" has shape {array.shape}; expected ({rows},), one number per row.")
    check_length(where, key, array, rows)
    return to_float32(where, key, array)


def flag_vector(where: str, key: str, value: object, rows: int) -> np.ndarray:
    """(N,) bool from booleans or from numbers that are exactly 0 or 1."""
    array = row_vector(where, key, value, rows)
    odd = (array != 0) & (array != 1)
    if odd.any():
        (row,) = first_true(odd)
        raise fail(where, key, f", row {row}: the value is {array[row]}; expected 0 or 1 (or False and True).")
    return array.astype(bool)


def action_bounds(
    where: str, low: object, high: object, dim: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Bounds per dimension; None if they are [-1, 1], so that nothing has to be rescaled."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        missing = "action_low" if low is None else "action_high"
        raise fail(where, missing, " is missing: give both bounds or none.")
    bounds = []
    for key, value in (("action_low", low), ("action_high", high)):
        array = to_float32(where, key, np.atleast_1d(numbers(where, key, value)))
        if array.shape not in ((1,), (dim,)):
            raise fail(
                where, key, f" has shape {array.shape}; expected one number or {dim}, one per action dimension."
            )
        bounds.append(np.broadcast_to(array, (dim,)).astype(float))
    lower, upper = bounds
    if not (lower < upper).all():
        (i,) = first_true(~(lower < upper))
        raise fail(where, "action_low", f", dimension {i}: {lower[i]} is not below action_high, which is {upper[i]}.")
    if (lower == -1).all() and (upper == 1).all():
        return None
    return tuple(lower.tolist()), tuple(upper.tolist())


def action_array(
    where: str, value: object, rows: int, bounds: tuple[tuple[float, ...], tuple[float, ...]] | None
) -> np.ndarray:
    """(N, d) float32 inside +-ACTION_LIMIT, rescaled if bounds are given."""
    key = "actions"
    array = numbers(where, key, value)
    if array.dtype.kind != "f":
        raise fail(
            where,
            key,
            f" has dtype {array.dtype}, which looks like discrete actions; fidec needs continuous ones. "
            "If they are continuous, store them as float32.",
        )
    if array.ndim != 2 or array.shape[1] == 0:
        hints = {1: "; write actions[:, None] for one dimension", 3: "; give episodes as a list: list(actions)"}
        hint = hints.get(array.ndim, "")
        raise fail(where, key, f" has shape {array.shape}; expected ({rows}, action dimensions){hint}.")
    check_length(where, key, array, rows)
    given = to_float32(where, key, array)

    def unit(block: np.ndarray) -> np.ndarray:
        if bounds is None:
            return block
        low, high = (np.asarray(b) for b in bounds)
        return (2.0 * (block - low) / (high - low) - 1.0).astype(np.float32)

    found, count, start = None, 0, 0
    for block in blocks(given):
        outside = np.abs(unit(block)) > 1.0 + ACTION_TOLERANCE
        if outside.any() and found is None:
            row, dim = first_true(outside)
            found = start + row, dim, block[row, dim]
        count += int(outside.any(axis=1).sum())
        start += len(block)
    if found is not None:
        row, dim, value = found
        span = "[-1, 1]" if bounds is None else f"the given bounds [{bounds[0][dim]}, {bounds[1][dim]}]"
        lowest, highest = (each[dim] for each in extremes(array))
        raise fail(
            where,
            key,
            f", row {row}, dimension {dim}: {value} lies outside {span} "
            f"({count} such rows; dimension {dim} spans "
            f"[{lowest}, {highest}]). Give action_low and action_high, the bounds of the "
            "environment's action space: in Python, as keys of the file, or with --action-low and --action-high of "
            "`fidec train`. The policy then answers in your units. "
            "If the environment clips its actions, clip them in the data too.",
        )
    return map_elements(given, lambda block: np.clip(unit(block), -ACTION_LIMIT, ACTION_LIMIT))


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
            raise fail(where, key, f", episode {i}: has the parts {_words(found)}; episode 0 has {_words(names)}.")
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
