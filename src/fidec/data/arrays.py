"""Build an `OfflineDataset` from arrays in time order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import (
    action_array,
    action_bounds,
    fail,
    flag_vector,
    numbers,
    row_vector,
)
from fidec.data.dataset import OfflineDataset, episodes_of
from fidec.data.episodes import flat_columns, id_changes
from fidec.data.mapped import is_mapped, take
from fidec.data.observations import check_same_parts, join_parts, observation_column, take_rows
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
