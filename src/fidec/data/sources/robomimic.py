"""`robomimic:FILE` or `robomimic:FILE#train`: robomimic's HDF5 layout, read with h5py alone.

data/demo_0/{obs/KEY, next_obs/KEY, actions, rewards, dones}, data/demo_1/..., mask/train, mask/valid

The observation is all vectors of `obs`, joined in sorted order. `dones` are the ends of the task, as robomimic's own
methods use them. With `#NAME` only the demonstrations of that mask are read. Cameras are read if they are named:
`robomimic:FILE#train?cameras=agentview_image&size=64x64`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.cameras import LARGEST, resize, split_cameras, stored_frames, with_options, with_state
from fidec.data.columns import existing_file, fail, flag_vector, numbers
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.data.sources.hdf5 import open_hdf5, read_array
from fidec.errors import ConfigError, DataError
from fidec.register import unknown
from fidec.store.files import sha256_file

_DEMO = re.compile(r"demo_(\d+)")


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    path, cameras = split_cameras(what)
    if cameras.holes:
        raise ConfigError(f"{what!r}: holes=allow is for LeRobot data sets. Leave it out")
    path, split = _split(path)
    file = existing_file(path)
    where = str(file)
    with open_hdf5(file) as handle:
        names = _demos(handle, where, split)
        keys, images, others = _keys(handle, where, names[0])
        chosen = cameras.chosen(where, list(images))
        if not keys and not chosen:
            raise fail(
                where,
                f"data/{names[0]}/obs",
                f" has no vector, only {', '.join([*images, *others]) or 'nothing'}. Cameras have to be named: "
                f"?cameras={','.join(images)}&size=64x64",
            )
        demos = [_read(handle, where, name, keys) for name in names]
        columns: dict[str, Any] = {key: [demo[key] for demo in demos] for key in demos[0]}
        flat: dict[str, Any] = {key: np.concatenate(value) for key, value in columns.items()}
        steps = [len(demo["actions"]) for demo in demos]
        digest = sha256_file(file) if chosen else ""
        lengths = dict(zip(names, steps, strict=True))
        for part, column in (("obs", "observations"), ("next_obs", "next_observations")):
            if column in flat:
                frames = {
                    name: _frames(handle, file, digest, lengths, f"{part}/{key}", split, images[key], cameras.size)
                    for name, key in chosen.items()
                }
                flat[column] = with_state(flat[column], frames)
    has_next = "next_observations" in columns
    flat |= {"episodes": np.repeat(np.arange(len(steps)), steps)}
    info = {"file": where, "observation_keys": keys, "demonstrations": len(names)}
    info |= {"cameras": chosen} if chosen else {}
    left_out = [key for key in (*images, *others) if key not in chosen.values()]
    info |= {"left_out": left_out} if left_out else {}
    info |= {} if has_next else {"note": "there is no next_obs: the last row of each demonstration has no next state"}
    flat |= {"action_low": action_low, "action_high": action_high}
    return build_dataset(flat, where=where, name=file.stem, source=f"robomimic:{what}", info=info)


def _split(what: str) -> tuple[str, str]:
    path, mark, split = what.rpartition("#")
    return (path, split) if mark else (what, "")


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


def _keys(handle: h5py.File, where: str, demo: str) -> tuple[list[str], dict[str, tuple[int, int]], list[str]]:
    """The vectors of an observation, the cameras with their sizes, and everything else."""
    group = handle[f"data/{demo}"].get("obs")  # type: ignore[union-attr]
    if not isinstance(group, h5py.Group):
        raise fail(
            where,
            f"data/{demo}/obs",
            " is missing: the file has states only. robomimic's dataset_states_to_obs.py adds observations.",
        )
    vectors, images, others = [], {}, []
    for key in sorted(map(str, group)):
        item: Any = group[key]
        shape = getattr(item, "shape", None) or ()
        if 1 <= len(shape) <= 2:
            vectors.append(key)
        elif len(shape) == 4 and item.dtype == np.uint8 and shape[3] == 3 and max(shape[1:3]) <= LARGEST:
            images[key] = shape[1:3]
        else:
            others.append(key)
    return vectors, images, others


def _frames(
    handle: h5py.File,
    file: Path,
    digest: str,
    steps: dict[str, int],
    path: str,
    split: str,
    shape: tuple[int, int],
    size: tuple[int, int] | None,
) -> np.ndarray:
    """(rows, height, width, 3) uint8 of one camera of all demonstrations; `steps` has their names and lengths.

    `path` is that of the camera in a demonstration. Each split has a copy of its own.
    """
    where, size = str(file), size or shape
    part, _, key = path.partition("/")

    def frames() -> Iterator[tuple[int, np.ndarray]]:
        row = 0
        for demo, rows in steps.items():
            full = f"data/{demo}/{path}"
            group: Any = handle[f"data/{demo}/{part}"]
            if key not in group:
                raise fail(where, full, f" is missing; there is {_list(group)}.")
            images = read_array(group, key, where)
            if images.shape != (rows, *shape, 3) or images.dtype != np.uint8:
                expected = f"uint8 of shape {(rows, *shape, 3)}"
                raise fail(where, full, f" is {images.dtype} of shape {images.shape}; expected {expected}.")
            for number, image in enumerate(images, row):
                yield number, resize(image, size)
            row += rows

    origin = {"sources": {file.name: digest}, "demonstrations": list(steps), "size": list(size)}
    name = ".".join(filter(None, (file.name, split, part, key, f"{size[0]}x{size[1]}")))
    return stored_frames(file, file.parent, name, origin, (sum(steps.values()), *size, 3), frames())


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
    return np.concatenate(parts, axis=1) if parts else np.zeros((rows, 0), np.float32)


def _list(group: Any) -> str:
    return ", ".join(sorted(map(str, group))) or "nothing"


def _absolute(what: str) -> str:
    path, split = _split(split_cameras(what)[0])
    return with_options(what, absolute_path(path) + (f"#{split}" if split else ""))


SOURCE = DataSource(
    summary="a robomimic HDF5 file",
    example="robomimic:low_dim_v15.hdf5#train",
    load=load,
    absolute=_absolute,
    check_present=lambda what, cache_dir: existing_file(_split(split_cameras(what)[0])[0]),
    at_url="file",
)
