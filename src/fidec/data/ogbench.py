"""OGBench single-task data: an `.npz` of states, labelled with rewards and masks by ogbench itself.

A file holds trajectories s0..sL with terminals = 1 at sL, whose state is only a next state. Which rows are
rewarded depends on the task, so ogbench's own `relabel_dataset` computes it from the stored simulator state.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.cache import search_dirs, verify
from fidec.data.columns import action_array, check_length, fail, flag_vector, numbers, observation_array, to_float32
from fidec.data.dataset import OfflineDataset
from fidec.data.mapped import take
from fidec.data.npz import read_npz, require_keys
from fidec.errors import ConfigError, DataError
from fidec.quiet import global_numpy_seed, quiet

_KEYS = ("observations", "actions", "terminals", "qpos", "button_states")


class TaskId(NamedTuple):
    """`cube-single-play-singletask-task2-v0` -> the environment's id and the data file's name."""

    env: str
    dataset: str


def parse_task(task_id: str) -> TaskId:
    """Split a single-task id as `ogbench.make_env_and_datasets` does, and check that ogbench knows it."""
    import gymnasium

    with quiet():
        import ogbench  # noqa: F401 - registers the environments

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
    env = "-".join(parts[: pos - 1] + parts[pos:])
    if env not in known:
        near = [_with_kind(k, parts[pos - 1]) for k in difflib.get_close_matches(env, known, 3)]
        hint = f" Close ones: {', '.join(near)}." if near else ""
        raise ConfigError(f"ogbench has no task {task_id!r} (no environment {env!r}).{hint}")
    return TaskId(env, "-".join(parts[:pos] + parts[-1:]))


def _with_kind(env: str, kind: str) -> str:
    return env.replace("-singletask", f"-{kind}-singletask")


def dataset_name(some_id: str) -> str:
    """The data file's name for a task id or for a data set's own name (`cube-single-play-v0`)."""
    if "singletask" in some_id:
        return parse_task(some_id).dataset
    parts = some_id.split("-")
    parse_task("-".join([*parts[:-1], "singletask", parts[-1]]))
    return some_id


def find_file(dataset: str, cache_dir: str | Path | None = None) -> Path:
    """The data file, or a DataError that says where it was looked for and how to get it."""
    folders = search_dirs(cache_dir)
    for folder in folders:
        if (folder / f"{dataset}.npz").is_file():
            return folder / f"{dataset}.npz"
    from fidec.make import RECIPES  # only this message needs the makers

    make = f", or make such data on this machine with `fidec data make {dataset} --rows 100000`"
    raise DataError(
        f"{dataset}.npz not found in {' or '.join(str(f) for f in folders)}. "
        f"Download OGBench's official file with `fidec data get {dataset}`{make if dataset in RECIPES else ''}. "
        "Another directory: set FIDEC_DATA_DIR."
    )


def load_ogbench(task_id: str, *, cache_dir: str | Path | None = None) -> OfflineDataset:
    """The data of a single-task id, from the cache; nothing is downloaded."""
    task = parse_task(task_id)
    file = find_file(task.dataset, cache_dir)
    where = str(file)
    record = verify(file)
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
        raise fail(where, "terminals", f", row {rows - 1}: the last row must be 1; the file was cut short.")
    states = {key: _state_rows(where, key, raw[key], rows) for key in ("qpos", "button_states") if key in raw}
    rewards, masks = _relabel(where, task.env, {"observations": observations, "actions": actions, **states})

    # The last state of a trajectory is a next state only, whatever its mask.
    keep = ~terminals
    if not keep.any():
        raise fail(where, "terminals", " is 1 in every row: every trajectory is empty.")
    ends = np.append(terminals[1:], True)[keep]
    states_before = np.flatnonzero(keep)
    origin = record.get("origin")
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
        name=task_id,
        source=f"ogbench:{task_id}",
        info={
            "file": where,
            "rows": rows,
            "origin": origin or "unknown",
            # Official files are known only by our own download; all else may be other data.
            "regenerated": None if origin in (None, "unknown") else origin != "downloaded",
            "file_sha256": record.get("sha256"),
            # How the pictures were drawn, if their maker says so: an evaluation has to draw them alike.
            **({"rendering": (record.get("settings") or {}).get("rendering")} if visual else {}),
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
    """Refuse a file that belongs to another environment."""
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
