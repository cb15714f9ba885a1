"""`ogbench:ID`: an `.npz` of states, labelled with the rewards and masks of a single task by ogbench itself.

A file holds trajectories s0..sL with terminals = 1 at sL, whose state is only a next state. The rewards depend on the
task: ogbench's own `relabel_dataset` computes them from the stored simulator state.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec import tasks
from fidec.data.arrays import build_dataset, row_use
from fidec.data.cache import dataset_name, find_in, make_command, origin_of, search_dirs, verify
from fidec.data.columns import (
    action_array,
    check_length,
    fail,
    flag_vector,
    numbers,
    observation_array,
    require_keys,
    to_float32,
)
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import take
from fidec.data.npz import read_npz
from fidec.data.source import CacheDir, DataSource, reject_bounds, unchanged
from fidec.errors import ConfigError, DataError
from fidec.extras import global_numpy_seed, quiet, require
from fidec.register import unknown

_KEYS = ("observations", "actions", "terminals", "qpos", "button_states")


class TaskId(NamedTuple):
    """`cube-single-play-singletask-task2-v0` -> the environment's id and the data file's name."""

    env: str
    dataset: str


def parse_task(task_id: str) -> TaskId:
    """Split a single-task id as `ogbench.make_env_and_datasets` does, and check that ogbench has it."""
    require("ogbench", "ogbench", f"the OGBench task {task_id}")  # registers the environments
    import gymnasium

    parts = task_id.split("-")
    known = [k for k in gymnasium.registry if "singletask" in k]
    if "singletask" not in parts or parts.index("singletask") < 2:
        hint = ""
        if len(parts) > 2 and "-".join([*parts[:-2], "singletask", parts[-1]]) in known:
            hint = f" Did you mean {'-'.join([*parts[:-1], 'singletask', parts[-1]])!r}?"
        raise ConfigError(
            f"{task_id!r} is not an OGBench single-task id (rewards are defined for a single task only); "
            f"expected such as 'cube-single-play-singletask-v0' or '...-singletask-task1-v0'.{hint}"
        )
    pos = parts.index("singletask")
    kind, env = parts[pos - 1], "-".join(parts[: pos - 1] + parts[pos:])
    if env not in known:
        ids = [name.replace("-singletask", f"-{kind}-singletask") for name in known]
        raise unknown("OGBench task", task_id, ids, "`fidec tasks --all` lists the tasks.")
    return TaskId(env, dataset_name(task_id))


def checked_name(some_id: str) -> str:
    """`dataset_name` of a task id or of a data set's own name; ConfigError if ogbench has no such task."""
    if "singletask" in some_id:
        return parse_task(some_id).dataset
    require("ogbench", "ogbench", f"the OGBench data set {some_id}")
    try:
        return parse_task("-singletask-".join(some_id.rsplit("-", 1))).dataset
    except ConfigError as error:
        known = {dataset_name(task.id) for task in tasks.TASKS}
        advice = "`fidec tasks` lists the tasks; a task id names its data set too."
        raise unknown("data set", some_id, known, advice) from error


def find_file(dataset: str, cache_dir: CacheDir = None) -> Path:
    """The data file, or a DataError that says where it was looked for and how to get it."""
    folders = search_dirs(cache_dir)
    if (file := find_in(folders, [f"{dataset}.npz"])) is not None:
        return file
    make = make_command(dataset)
    raise DataError(
        f"{dataset}.npz not found in {' or '.join(str(f) for f in folders)}. "
        f"Download OGBench's official file with `fidec data get {dataset}`"
        f"{f', or make such data on this machine with `{make}`' if make else ''}. "
        "Another directory: set FIDEC_DATA_DIR."
    )


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    """The data of a single-task id, from the cache; nothing is downloaded."""
    reject_bounds("ogbench", action_low, action_high)
    task = parse_task(what)
    file = find_file(task.dataset, cache_dir)
    where = str(file)
    record = verify(file)
    if (record.get("settings") or {}).get("rendering") == "fast":
        raise DataError(
            f"{where}: its images were drawn with --rendering fast of an older version, and environments draw other "
            f"pixels now. Make it again: fidec data make {task.dataset} --overwrite"
        )
    raw = read_npz(file, _KEYS)
    require_keys(where, raw, ("observations", "actions", "terminals", "qpos"))
    observations = observation_array(where, "observations", raw["observations"])
    rows = len(observations)
    visual = task.env.startswith("visual-")
    if visual and observations.dtype != np.uint8:
        raise fail(where, "observations", f" has dtype {observations.dtype}; a visual task needs uint8 images.")
    actions = action_array(where, raw["actions"], rows, None)
    terminals = flag_vector(where, "terminals", raw["terminals"], rows)
    if not terminals[-1]:
        raise fail(where, "terminals", f", row {rows - 1}: the last row must be 1; the file is incomplete.")
    states = {key: _state_rows(where, key, raw[key], rows) for key in ("qpos", "button_states") if key in raw}
    rewards, masks = _relabel(where, task.env, {"observations": observations, "actions": actions, **states})

    # The last state of a trajectory is a next state only.
    keep = ~terminals
    if not keep.any():
        raise fail(where, "terminals", " is 1 in every row: every trajectory is empty.")
    ends = np.append(terminals[1:], True)[keep]
    states_before = np.flatnonzero(keep)
    return build_dataset(
        {
            "observations": take(observations, states_before),
            "actions": actions[keep],
            "rewards": rewards[keep],
            "masks": masks[keep],
            "terminals": ends,
            "next_observations": take(observations, states_before + 1),
        },
        where=where,
        name=what,
        source=f"ogbench:{what}",
        info={
            **row_use(rows, states_before, states_before + 1),
            **origin_of(file, record),
        },
    )


def _state_rows(where: str, key: str, value: Any, rows: int) -> np.ndarray:
    array = numbers(where, key, value)
    if array.ndim != 2:
        raise fail(where, key, f" has shape {array.shape}; expected ({rows}, numbers per state).")
    check_length(where, key, array, rows)
    to_float32(where, key, array)
    return array


def _relabel(where: str, env_id: str, rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and masks of a fixed task by ogbench's own rule."""
    import gymnasium
    from ogbench.relabel_utils import relabel_dataset

    # Labels depend on the simulator state only: the state-based twin of a visual task needs no OpenGL.
    state_env = env_id.removeprefix("visual-")
    with quiet(), global_numpy_seed(0):
        env = gymnasium.make(state_env, disable_env_checker=True)
        try:
            env.reset(seed=0)  # manipulation environments have no model before
            _check_widths(where, env, env_id, rows)
            labelled = dict(rows)
            relabel_dataset(state_env, env, labelled)
        finally:
            env.close()
    return labelled["rewards"], labelled["masks"]


def _check_widths(where: str, env: Any, env_id: str, rows: dict[str, np.ndarray]) -> None:
    """Raise a DataError for a file of another environment."""
    inner = env.unwrapped
    buttons = getattr(inner, "_num_buttons", 0)
    expected = {"actions": env.action_space.shape, "qpos": (inner.model.nq,)}
    if not env_id.startswith("visual-"):
        expected["observations"] = env.observation_space.shape
    if buttons:
        expected["button_states"] = (buttons,)
    for key, shape in expected.items():
        if key not in rows:
            raise fail(where, key, f" is missing; {env_id} needs it to compute rewards.")
        if rows[key].shape[1:] != tuple(shape):
            raise fail(
                where,
                key,
                f" has rows of shape {rows[key].shape[1:]}; {env_id} has {tuple(shape)}: another task's data?",
            )


SOURCE = DataSource(
    summary="the data of an OGBench single-task id",
    example="ogbench:cube-single-play-singletask-v0",
    load=load,
    claims=lambda text: re.fullmatch(r"[\w-]+-v0", text) is not None,
    absolute=unchanged,
    check_present=lambda what, cache_dir: find_file(checked_name(what), cache_dir),
)
