"""Turn the forms in which users store episodes into flat columns: dictionaries, one array per episode, ids per row.

A list of arrays becomes one array and a column of episode ids, so there is one rule for where an id ends an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.data.columns import check_length, fail, first_true
from fidec.data.observations import is_column, join_parts, split_parts

_ROWS = ("observations", "actions", "rewards", "terminals", "masks", "truncations", "next_observations")


def flat_columns(where: str, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with one row per step; `episodes` is added if they were lists of one array per episode."""
    columns = split_parts(where, columns)
    if not _is_list_of_episodes(columns["actions"]):
        return join_parts(where, columns)
    if "episodes" in columns:
        raise fail(
            where, "episodes", " is for flat arrays: 'actions' is a list of one array per episode. Leave it out."
        )
    lists = {
        key: _episode_arrays(where, key, value, len(columns["actions"]))
        for key, value in columns.items()
        if is_column(key, _ROWS)
    }
    steps = [len(array) for array in lists["actions"]]
    _split_last_states(where, lists, steps)
    _check_episodes(where, lists, steps)
    columns |= {key: np.concatenate(arrays) for key, arrays in lists.items()}
    return join_parts(where, columns) | {"episodes": np.repeat(np.arange(len(steps)), steps)}


def id_changes(where: str, value: Any, rows: int) -> np.ndarray:
    """(N,) bool: the last row of each run of equal ids. An id that comes back after another one is an error."""
    key, ids = "episodes", np.asarray(value)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise fail(where, key, f" has shape {ids.shape}; expected ({rows},), the id of the episode of each row.")
    check_length(where, key, ids, rows)
    if ids.dtype.kind not in "biufSU":
        raise fail(where, key, f" has dtype {ids.dtype}; expected whole numbers or text (convert with astype(str)).")
    if ids.dtype.kind == "f" and (bad := ~np.isfinite(ids)).any():
        raise fail(where, key, f", row {first_true(bad)[0]}: the id is {ids[bad][0]}; every row needs an id.")
    ends = np.append(ids[1:] != ids[:-1], True)
    starts = np.flatnonzero(np.append(True, ends[:-1]))
    _, first = np.unique(ids[starts], return_index=True)
    if len(first) != len(starts):
        again = starts[np.setdiff1d(np.arange(len(starts)), first)[0]]
        raise fail(
            where,
            key,
            f", row {again}: the id {ids[again]} comes back after another id. The rows of an episode must follow "
            "each other in time order: sort the rows by episode, or give every episode an id of its own.",
        )
    return ends


def _is_list_of_episodes(actions: Any) -> bool:
    """Whether there is one array per episode. A row of actions has one axis, so an item with two is an episode."""
    if not isinstance(actions, list | tuple) or not actions:
        return False
    try:
        return np.ndim(actions[0]) == 2
    except ValueError:  # rows of unequal lengths, which `numbers` names later
        return False


def _episode_arrays(where: str, key: str, value: Any, count: int) -> list[np.ndarray]:
    """One array for each episode."""
    if not isinstance(value, list | tuple) or len(value) != count:
        found = f"{len(value)} items" if isinstance(value, list | tuple) else f"one {type(value).__name__}"
        raise fail(
            where,
            key,
            f" has {found}, but 'actions' is a list of {count} episodes; expected a list of {count} arrays.",
        )
    arrays = []
    for i, item in enumerate(value):
        try:
            array = np.asarray(item)
        except ValueError as error:  # ragged lists
            raise fail(where, key, f", episode {i}: is not an array of numbers ({error}).") from error
        if array.ndim == 0:
            raise fail(where, key, f", episode {i}: is a single {array.dtype}; expected one row per step.")
        arrays.append(array)
    return arrays


def _split_last_states(where: str, lists: dict[str, list[np.ndarray]], steps: list[int]) -> None:
    """If episodes have one observation more than actions, as in Gymnasium, their last state is a next state."""
    keys = [key for key in lists if is_column(key, ("observations",))]
    longer = [
        (key, i, len(array) == rows + 1)
        for key in keys
        for i, (array, rows) in enumerate(zip(lists[key], steps, strict=True))
    ]
    found = next(((key, i) for key, i, more in longer if more), None)
    if found is None:
        return
    if any(is_column(key, ("next_observations",)) for key in lists):
        key, i = found
        raise fail(
            where,
            key,
            f", episode {i}: has one row more than 'actions', so it holds the next states already. Leave out "
            "'next_observations', or the last observation of each episode.",
        )
    for key, i, more in longer:
        if not more:
            others = "other episodes have" if found[0] == key else f"'{found[0]}' has"
            raise fail(
                where,
                key,
                f", episode {i}: has {len(lists[key][i])} rows for {steps[i]} actions, but {others} one "
                "observation more than actions. Give the last state of all episodes or of none.",
            )
    for key in keys:
        states = lists[key]
        lists[key], lists[f"next_{key}"] = [a[:-1] for a in states], [a[1:] for a in states]


def _check_episodes(where: str, lists: dict[str, list[np.ndarray]], steps: list[int]) -> None:
    """Every episode has steps, and its arrays have one row per step and the shape of the first episode's."""
    for i, rows in enumerate(steps):
        if rows == 0:
            raise fail(where, "actions", f", episode {i}: has no steps; remove the empty episode.")
        for key, arrays in lists.items():
            if len(arrays[i]) != rows:
                raise fail(
                    where,
                    key,
                    f", episode {i}: has {len(arrays[i])} rows but 'actions' has {rows}; expected one row per step.",
                )
            if arrays[i].shape[1:] != arrays[0].shape[1:]:
                raise fail(
                    where,
                    key,
                    f", episode {i}: has rows of shape {arrays[i].shape[1:]}; episode 0 has {arrays[0].shape[1:]}.",
                )
