"""`d4rl:ID`: the D4RL data of the benchmark, with the transitions of D4RL and then of FQL.

D4RL's `qlearning_dataset` takes every row but the last, leaves out the rows at timeouts, and uses the next row's
observation as the next state. FQL, whose protocol the paper follows, then subtracts 1 from the rewards of antmaze,
and ends a trajectory where the next transition does not start in this one's next state (on Adroit also at task ends).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fidec import tasks
from fidec.data.arrays import build_dataset, row_use
from fidec.data.cache import data_dir, find_in, origin_of, verify
from fidec.data.columns import action_array, fail, flag_vector, numbers, observation_array, row_vector
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, reject_bounds, unchanged
from fidec.data.sources.hdf5 import read_columns
from fidec.errors import DataError
from fidec.register import unknown

_KEYS = ("observations", "actions", "rewards", "terminals", "timeouts")
# Two states that are farther apart are different states.
_SAME = 1e-6


def _antmaze(maze: str, starts: bool, goals: bool) -> str:
    return f"ant_maze_v2/Ant_maze_{maze}_noisy_multistart_{starts}_multigoal_{goals}_sparse_fixed.hdf5"


# D4RL's file for each id, as in its table of addresses (d4rl/infos.py).
D4RL_FILES: dict[str, str] = {
    "antmaze-umaze-v2": _antmaze("u-maze", False, False),
    "antmaze-umaze-diverse-v2": _antmaze("u-maze", True, True),
    "antmaze-medium-play-v2": _antmaze("big-maze", True, False),
    "antmaze-medium-diverse-v2": _antmaze("big-maze", True, True),
    "antmaze-large-play-v2": _antmaze("hardest-maze", True, False),
    "antmaze-large-diverse-v2": _antmaze("hardest-maze", True, True),
} | {
    f"{hand}-{kind}-v1": f"hand_dapg_v1/{hand}-{kind}-v1.hdf5"
    for hand in ("pen", "door", "hammer", "relocate")
    for kind in ("human", "cloned", "expert")
}


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    """The data of `antmaze-*-v2` or of an Adroit `*-v1`, from the cache; nothing is downloaded."""
    reject_bounds("d4rl", action_low, action_high)
    task_id = what
    file = find_file(task_id, cache_dir)
    where = str(file)
    record = verify(file)
    raw = read_columns(file, _KEYS, needed=_KEYS)
    observations = observation_array(where, "observations", raw["observations"])
    rows = len(observations)
    # D4RL's environments clip actions, so an action outside the bounds equals the one on the bound.
    actions = action_array(where, np.clip(numbers(where, "actions", raw["actions"]), -1, 1), rows, None)
    _check_widths(where, task_id, observations, actions)
    rewards = row_vector(where, "rewards", raw["rewards"], rows)
    done, cut = (flag_vector(where, key, raw[key], rows) for key in ("terminals", "timeouts"))
    kept = np.flatnonzero(~cut[:-1])
    if len(kept) == 0:
        raise fail(where, "timeouts", " leaves no transition: every row is cut off.")
    next_observations = observations[kept + 1]
    observations, done = observations[kept], done[kept]
    gap = np.linalg.norm(observations[1:] - next_observations[:-1], axis=1) > _SAME
    ends = np.append(gap, True)
    shift = -1.0 if task_id.startswith("antmaze-") else 0.0
    if not task_id.startswith("antmaze-"):
        ends |= done
    return build_dataset(
        {
            "observations": observations,
            "actions": actions[kept],
            "rewards": rewards[kept] + np.float32(shift),
            "masks": ~done,
            "terminals": ends,
            "next_observations": next_observations,
        },
        where=where,
        name=task_id,
        source=f"d4rl:{task_id}",
        info={**row_use(rows, kept, kept + 1), "reward_shift": shift, **origin_of(file, record)},
    )


def find_file(task_id: str, cache_dir: CacheDir = None) -> Path:
    """`ID.hdf5`, or the file under D4RL's own name for it, in our directory or in D4RL's.

    With an explicit `cache_dir` only there.
    """
    if task_id not in D4RL_FILES:
        other = "Any other file of D4RL's can be read as hdf5:PATH."
        raise unknown("D4RL data set", task_id, D4RL_FILES, f"Known: {', '.join(D4RL_FILES)}. {other}")
    folders = [data_dir(cache_dir)]
    if cache_dir is None:
        folders.append(Path(os.environ.get("D4RL_DATASET_DIR") or os.path.expanduser("~/.d4rl/datasets")))
    names = dict.fromkeys((f"{task_id}.hdf5", Path(D4RL_FILES[task_id]).name))
    if (file := find_in(folders, names)) is not None:
        return file
    raise DataError(
        f"{' or '.join(names)} not found in {' or '.join(map(str, folders))}. Download D4RL's official file with "
        f"`fidec data get {task_id}`, or use data of your own in the same layout with --data hdf5:PATH (its rewards "
        "are taken as they are). Another directory: set FIDEC_DATA_DIR."
    )


def _check_widths(where: str, task_id: str, observations: np.ndarray, actions: np.ndarray) -> None:
    """Raise a DataError for a file of another task."""
    task = tasks.find(task_id)
    assert task is not None
    expected = {"observations": tuple(task.observation_shape), "actions": (task.action_dim,)}
    for key, array in (("observations", observations), ("actions", actions)):
        if array.shape[1:] != expected[key]:
            raise fail(
                where,
                key,
                f" has rows of shape {array.shape[1:]}; {task_id} has {expected[key]}: another task's data?",
            )


def _claims(text: str) -> bool:
    """D4RL's ids, and misspelt ones, for which `find_file` names the closest id."""
    name, _, version = text.rpartition("-")
    return version in ("v1", "v2") and name.partition("-")[0] in {known.partition("-")[0] for known in D4RL_FILES}


SOURCE = DataSource(
    summary="the data of a D4RL antmaze or Adroit id",
    example="d4rl:door-human-v1",
    load=load,
    claims=_claims,
    absolute=unchanged,
    check_present=find_file,
)
