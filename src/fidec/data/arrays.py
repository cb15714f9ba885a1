"""Build an `OfflineDataset` from arrays in time order, or from lists of one array per episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import (
    action_array,
    action_bounds,
    check_length,
    check_same_parts,
    fail,
    first_true,
    flag_vector,
    is_column,
    join_parts,
    numbers,
    observation_column,
    row_vector,
    split_parts,
    take_rows,
)
from fidec.data.dataset import OfflineDataset, episodes_of
from fidec.data.disk_array import is_mapped, take
from fidec.errors import DataError
from fidec.parts import map_parts, rows_of

# The arrays that are read from npz and HDF5 files; npz files may also have masks and truncations.
FILE_KEYS = (
    "observations",
    "actions",
    "rewards",
    "terminals",
    "timeouts",
    "episodes",
    "next_observations",
    "action_low",
    "action_high",
)


def dataset_from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any = None,
    terminals: Any = None,
    masks: Any = None,
    truncations: Any = None,
    next_observations: Any = None,
    *,
    episodes: Any = None,
    action_low: Any = None,
    action_high: Any = None,
    name: str = "arrays",
) -> OfflineDataset:
    """Make a data set from arrays whose rows are in time order, one episode after the other.

    Row t says: in state `observations[t]` the action `actions[t]` was taken and gave `rewards[t]`.

    Where episodes end. `terminals[t]` is 1 where the task ended with row t (Gymnasium's `terminated`, D4RL's
    `terminals`); `truncations[t]` is 1 where the episode was only cut after row t (Gymnasium's `truncated`,
    D4RL's `timeouts`). `episodes[t]` is the id of the episode of row t, a number or a text: where it changes, the
    episode was cut, unless `terminals` says that the task ended. An episode ends at each of the three; the very
    last row always ends one (as a cut, if nothing else is said). With none of them, all rows are one episode.

    Instead of flat arrays, all of them may be lists with one array per episode, which then need no `episodes`. If
    episodes have one observation more than actions, as Gymnasium gives them, the last one is the last next state.

    What is bootstrapped. `masks[t]` is 1 where the value of the next state counts. The default is
    `1 - terminals`: a task end stops the sum of rewards, a time limit does not. If you pass `masks`, they are
    taken as they are, and `terminals` only says where trajectories end (the meaning in OGBench and FQL).

    The next state. If `next_observations` is given, every row is a transition. If not, the next state is the
    next row of the same episode. The last row of an episode then has none: if its mask is 0 it is kept, with
    its own observation as a next state that is never used; if its mask is 1 it is used only as the next
    state of the row before (the layout of OGBench, and D4RL's rule at timeouts).

    Actions lie in [-1, 1], or between `action_low` and `action_high` (one number or one per dimension). They
    are rescaled to [-1, 1] inside, and the policy answers in your units.

    `rewards` may be left out for methods that use none, such as `bc`.

    Observations are one array, or a dictionary of arrays: vectors (rows, n) and images (rows, height, width,
    channels), uint8. Images may have different sizes. A dictionary with one entry is unwrapped.

    What cannot be used (NaN, wrong lengths, text) raises a `DataError` that names key and row.
    """
    return build_dataset(
        {
            "observations": observations,
            "actions": actions,
            "rewards": rewards,
            "terminals": terminals,
            "masks": masks,
            "truncations": truncations,
            "episodes": episodes,
            "next_observations": next_observations,
            "action_low": action_low,
            "action_high": action_high,
        },
        where=name,
        name=name,
        source=f"arrays:{name}",
        copy=True,
    )


def build_dataset(
    columns: dict[str, Any],
    *,
    where: str,
    name: str,
    source: str,
    info: dict[str, Any] | None = None,
    copy: bool = False,
) -> OfflineDataset:
    """The rules of `dataset_from_arrays` on a dict of columns; errors begin with `where`."""
    given = {key: value for key, value in columns.items() if value is not None}
    for key in ("observations", "actions"):
        if key not in given:
            raise fail(where, key, " is missing.")
    given = flat_columns(where, given)
    observations = observation_column(where, "observations", given["observations"])
    rows = rows_of(observations)
    shape = numbers(where, "actions", given["actions"]).shape
    dim = shape[1] if len(shape) == 2 else 1
    bounds = action_bounds(where, given.get("action_low"), given.get("action_high"), dim)
    actions = action_array(where, given["actions"], rows, bounds)
    has_rewards = "rewards" in given
    rewards = row_vector(where, "rewards", given["rewards"] if has_rewards else np.zeros(rows), rows)
    ends, masks = _ends_and_masks(where, given, rows)

    if "next_observations" in given:
        next_observations = observation_column(where, "next_observations", given["next_observations"])
        check_same_parts(where, observations, next_observations)
        use = {"rows": rows}
        if copy:  # the user may change their arrays afterwards
            observations, next_observations = (map_parts(_own, each) for each in (observations, next_observations))
    else:
        keep, ends, next_row = _next_rows(ends, masks)
        if not keep.any():
            raise DataError(
                f"{where}: no episode has a next state: every row ends an episode that was only cut. "
                "Pass next_observations, or check 'terminals' and 'truncations'."
            )
        use = row_use(rows, np.flatnonzero(keep), next_row[keep])
        next_observations = take_rows(observations, next_row[keep])
        observations, actions = take_rows(observations, keep), take(actions, keep)
        rewards, masks, ends = rewards[keep], masks[keep], ends[keep]

    following = np.arange(1, len(actions) + 1)
    following[ends] -= 1
    facts = {**use, "transitions": len(actions), **(info or {})}
    return OfflineDataset(
        observations=observations,
        actions=actions,
        rewards=rewards.copy() if copy else rewards,
        masks=masks,
        terminals=ends,
        next_observations=next_observations,
        next_actions=take(actions, following),
        episodes=episodes_of(ends),
        name=name,
        source=source,
        info=facts,
        action_low=None if bounds is None else bounds[0],
        action_high=None if bounds is None else bounds[1],
        has_rewards=has_rewards,
    )


def dataset_from_file(
    columns: dict[str, Any], file: Path, source: str, *, action_low: Any = None, action_high: Any = None
) -> OfflineDataset:
    """A data set from the columns of a file, which must say where its episodes end."""
    if not {"terminals", "truncations", "timeouts", "episodes"} & set(columns):
        raise fail(
            str(file),
            "terminals",
            " is missing, and so are 'truncations', 'timeouts' and 'episodes': the file does not say where episodes "
            "end.",
        )
    columns = join_parts(str(file), columns)
    timeouts = columns.pop("timeouts", None)
    columns.setdefault("truncations", timeouts)
    if action_low is not None or action_high is not None:
        columns |= {"action_low": action_low, "action_high": action_high}
    return build_dataset(columns, where=str(file), name=file.stem, source=source, info={"file": str(file)})


def row_use(rows: int, kept: np.ndarray, following: np.ndarray) -> dict[str, int]:
    """How many rows were given, and how many of them are only a next state or nothing, for `OfflineDataset.info`."""
    used = np.zeros(rows, bool)
    used[kept] = used[following] = True
    return {"rows": rows, "next_state_rows": int(used.sum()) - len(kept), "unused_rows": int((~used).sum())}


def _own(array: np.ndarray) -> np.ndarray:
    """A copy, unless the array is mapped: it may be larger than memory."""
    return array if is_mapped(array) else array.copy()


def _ends_and_masks(where: str, given: dict[str, Any], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where trajectories end, and where to bootstrap."""
    nothing = np.zeros(rows, bool)
    terminals = flag_vector(where, "terminals", given["terminals"], rows) if "terminals" in given else nothing
    cut = flag_vector(where, "truncations", given["truncations"], rows) if "truncations" in given else nothing
    if "masks" in given:
        masks = flag_vector(where, "masks", given["masks"], rows).astype(np.float32)
    else:
        if cut.any() and terminals[cut].all():
            (row,) = np.flatnonzero(cut)[:1]
            raise fail(
                where,
                "terminals",
                f", row {row}: every truncated row is also terminal, so it is unclear where to bootstrap. If your "
                "'terminals' are Gymnasium's terminated | truncated, pass `terminated` alone; otherwise pass "
                "'masks' (1 = bootstrap).",
            )
        masks = 1.0 - terminals.astype(np.float32)
    ends = terminals | cut
    if "episodes" in given:
        ends |= id_changes(where, given["episodes"], rows)
    ends[-1] = True
    return ends, masks


def _next_rows(ends: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows to keep, where trajectories end among them, and the row of the next state."""
    rows = len(ends)
    keep = ~ends | (masks == 0)
    before_dropped = np.zeros(rows, bool)
    before_dropped[:-1] = ~keep[1:]
    next_row = np.arange(1, rows + 1)
    next_row[ends] -= 1
    return keep, ends | before_dropped, next_row


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
