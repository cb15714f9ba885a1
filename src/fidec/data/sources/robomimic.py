"""`robomimic:FILE` or `robomimic:FILE#train`: robomimic's HDF5 layout, read with h5py alone.

data/demo_0/{obs/KEY, next_obs/KEY, actions, rewards, dones}, data/demo_1/..., mask/train, mask/valid

The observation is all vectors of `obs`, joined in sorted order. `dones` are the ends of the task, as robomimic's own
methods use them. With `#NAME` only the demonstrations of that mask are read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.columns import existing_file, fail, flag_vector, numbers
from fidec.data.dataset import OfflineDataset
from fidec.data.hdf5 import open_hdf5, read_array
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.errors import DataError
from fidec.register import unknown

_DEMO = re.compile(r"demo_(\d+)")


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    path, split = _split(what)
    file = existing_file(path)
    where = str(file)
    with open_hdf5(file) as handle:
        names = _demos(handle, where, split)
        keys, images = _keys(handle, where, names[0])
        demos = [_read(handle, where, name, keys) for name in names]
    columns: dict[str, Any] = {key: [demo[key] for demo in demos] for key in demos[0]}
    has_next = "next_observations" in columns
    flat = {key: np.concatenate(value) for key, value in columns.items()}
    steps = [len(demo["actions"]) for demo in demos]
    flat |= {"episodes": np.repeat(np.arange(len(steps)), steps)}
    info = {"file": where, "observation_keys": keys, "demonstrations": len(names)}
    info |= {"left_out": images} if images else {}
    info |= {} if has_next else {"note": "there is no next_obs: the last row of each demonstration has no next state"}
    flat |= {"action_low": action_low, "action_high": action_high}
    return build_dataset(flat, where=where, name=file.stem, source=f"robomimic:{what}", info=info)


def _split(what: str) -> tuple[str, str]:
    path, _, split = what.rpartition("#") if "#" in what else (what, "", "")
    return path, split


def _demos(handle: h5py.File, where: str, split: str) -> list[str]:
    """The names of the demonstrations, in the order of their numbers."""
    data = handle.get("data")
    if not isinstance(data, h5py.Group):
        raise DataError(f"{where}: has no group `data`, so it is not a robomimic file. It has {_list(handle)}.")
    present = sorted((n for n in map(str, data) if _DEMO.fullmatch(n)), key=lambda n: int(n[5:]))
    if not present:
        raise DataError(f"{where}: the group `data` has no demonstrations (demo_0, demo_1, ...).")
    if not split:
        return present
    masks = handle.get("mask")
    known = sorted(map(str, masks)) if isinstance(masks, h5py.Group) else []
    if not isinstance(masks, h5py.Group) or split not in known:
        raise DataError(f"{where}: {unknown('mask', split, known)}")
    item = masks[split]
    if not isinstance(item, h5py.Dataset) or item.ndim != 1 or len(item) > len(present):
        raise fail(where, f"mask/{split}", " is not a list of demonstrations.")
    chosen = {each.decode() if isinstance(each, bytes) else str(each) for each in item[()]}
    if missing := sorted(chosen - set(present)):
        raise fail(where, f"mask/{split}", f" names {missing[0]!r}, which is not in `data`.")
    return [name for name in present if name in chosen]


def _keys(handle: h5py.File, where: str, demo: str) -> tuple[list[str], list[str]]:
    """The vectors of an observation, and what is no vector, such as cameras."""
    group = handle[f"data/{demo}"].get("obs")  # type: ignore[union-attr]
    if not isinstance(group, h5py.Group):
        raise fail(
            where,
            f"data/{demo}/obs",
            " is missing: the file has states only. robomimic's dataset_states_to_obs.py adds observations.",
        )
    vectors, others = [], []
    for key in sorted(map(str, group)):
        shape = getattr(group[key], "shape", None) or ()
        (vectors if 1 <= len(shape) <= 2 else others).append(key)
    if not vectors:
        raise fail(
            where,
            f"data/{demo}/obs",
            f" has no vector, only {', '.join(others) or 'nothing'}. Images are not read from robomimic files.",
        )
    return vectors, others


def _read(handle: h5py.File, where: str, name: str, keys: list[str]) -> dict[str, np.ndarray]:
    group: Any = handle[f"data/{name}"]
    if "actions" not in group:
        raise fail(where, f"data/{name}/actions", f" is missing; there is {_list(group)}.")
    actions = read_array(group, "actions", where)
    rows = len(actions)
    found = {"actions": actions, "observations": _joined(group, where, name, "obs", keys, rows)}
    if "next_obs" in group:
        found["next_observations"] = _joined(group, where, name, "next_obs", keys, rows)
    if "rewards" in group:
        found["rewards"] = read_array(group, "rewards", where)
    if "dones" in group:
        found["terminals"] = flag_vector(f"{where}: data/{name}", "dones", read_array(group, "dones", where), rows)
    return found


def _joined(group: Any, where: str, demo: str, part: str, keys: list[str], rows: int) -> np.ndarray:
    here, parts = group[part], []
    for key in keys:
        full = f"data/{demo}/{part}/{key}"
        if key not in here:
            raise fail(where, full, f" is missing; there is {_list(here)}.")
        array = numbers(where, full, read_array(here, key, where))
        if len(array) != rows:
            raise fail(where, full, f" has {len(array)} rows for {rows} actions.")
        parts.append(array.reshape(rows, -1).astype(np.float32))
    return np.concatenate(parts, axis=1)


def _list(group: Any) -> str:
    return ", ".join(sorted(map(str, group))) or "nothing"


def _absolute(what: str) -> str:
    path, split = _split(what)
    return absolute_path(path) + (f"#{split}" if split else "")


def _check_present(what: str, cache_dir: CacheDir) -> Path:
    return existing_file(_split(what)[0])


SOURCE = DataSource(
    summary="a robomimic HDF5 file",
    example="robomimic:low_dim_v15.hdf5#train",
    load=load,
    absolute=_absolute,
    check_present=_check_present,
    at_url="file",
)
