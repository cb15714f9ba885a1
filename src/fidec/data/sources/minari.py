"""`minari:ID`: a local Minari data set, read with h5py alone.

`minari.load_dataset` builds an environment from the metadata's entry point when the metadata has no spaces, which
runs any code that the file names. Here the metadata is read as JSON, and nothing in it is called.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.columns import (
    MAX_RATIO,
    action_array,
    action_bounds,
    fail,
    flag_vector,
    numbers,
    observation_array,
    observation_column,
    row_vector,
)
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, unchanged
from fidec.data.sources.hdf5 import UNWRITTEN, open_hdf5, place, read_array
from fidec.errors import ConfigError, DataError
from fidec.parts import arrays_of, map_parts, named, rows_of

_METADATA_LIMIT = 16 * 2**20
_JPEG = (0xFF, 0xD8)  # the first bytes of such a file


def minari_root() -> Path:
    """Where Minari keeps its data: MINARI_DATASETS_PATH, else ~/.minari/datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or os.path.expanduser("~/.minari/datasets"))


def minari_folder(dataset_id: str) -> Path:
    """The local folder of a data set, by its id."""
    if not re.fullmatch(r"[-\w.]+(/[-\w.]+)*", dataset_id) or ".." in dataset_id:
        raise ConfigError(f"{dataset_id!r} is not a Minari id; expected such as 'D4RL/pen/human-v2'.")
    folder = minari_root() / dataset_id / "data"
    if not os.path.isdir(folder):
        raise DataError(
            f"Minari data set {dataset_id!r} not found: {folder} does not exist. Get it with "
            f"`minari download {dataset_id}`, or set MINARI_DATASETS_PATH to where it is."
        )
    return folder


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    """A local Minari data set by its id, such as `D4RL/pen/human-v2`. `cache_dir` is not used: Minari has its own.

    Masks are 1 - terminations; a trajectory ends with its episode. Dict observations are flattened and
    concatenated in sorted key order, as Gymnasium's FlattenObservation does. Action bounds come from the
    metadata's action space unless they are given.
    """
    return load_folder(minari_folder(what), what, f"minari:{what}", action_low, action_high)


def load_folder(
    folder: Path, name: str, source: str, action_low: Any = None, action_high: Any = None
) -> OfflineDataset:
    """The data set in a directory `data` of Minari."""
    metadata = read_metadata(folder)
    file = folder / "main_data.hdf5"
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise DataError(
            f"{folder}: data format {metadata['data_format']!r} is not supported; expected 'hdf5'. "
            "Write the data set again with data_format='hdf5'."
        )
    if action_low is None and action_high is None:
        action_low, action_high = _box_bounds(folder, metadata)
    episodes, keys = _read_episodes(file, action_low, action_high)
    columns = {
        key: map_parts(lambda *parts: np.concatenate(parts), *(episode[key] for episode in episodes))
        for key in episodes[0]
    }
    info = {"file": str(file), "episodes": len(episodes)}
    if keys:
        info["observation_keys"] = keys
    return build_dataset(
        {**columns, "action_low": action_low, "action_high": action_high},
        where=str(file),
        name=name,
        source=source,
        info=info,
    )


def read_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a data set."""
    path = folder / "metadata.json"
    try:
        if path.stat().st_size > _METADATA_LIMIT:
            raise DataError(f"{path}: larger than {_METADATA_LIMIT} bytes; not metadata.")
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); the data set is damaged.") from error
    if not isinstance(metadata, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(metadata).__name__}.")
    return metadata


def _box_bounds(folder: Path, metadata: dict[str, Any]) -> tuple[Any, Any]:
    """Bounds of the action space, if the metadata holds a Box with finite ones."""
    path = str(folder / "metadata.json")
    space = metadata.get("action_space")
    if space is None:
        return None, None
    try:
        box = json.loads(space) if isinstance(space, str) else space
        if box["type"] != "Box":
            raise fail(path, "action_space", f" is {box['type']}; fidec needs continuous actions, a Box of one axis.")
        low, high = (np.asarray(box[key], np.float64).reshape(-1) for key in ("low", "high"))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise fail(path, "action_space", f" is not a Minari space ({error}).") from error
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None, None
    return low, high


def _read_episodes(file: Path, low: Any, high: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Columns of every episode, checked one by one so that an error can name the episode."""
    where = str(file)
    episodes, keys, size = [], [], 0
    with open_hdf5(file) as handle:
        names = sorted((n for n in map(str, handle) if re.fullmatch(r"episode_\d+", n)), key=lambda n: int(n[8:]))
        if not names:
            raise DataError(f"{where}: holds no episodes (groups episode_0, episode_1, ...).")
        for name in names:
            group = handle[name]
            if not isinstance(group, h5py.Group):
                raise fail(where, name, " is not a group.")
            columns, keys = _read_episode(group, where, low, high)
            used = [
                each for key, column in columns.items() if key != "next_observations" for each in arrays_of(column)
            ]
            size += sum(array.nbytes for array in used)
            if size > MAX_RATIO * file.stat().st_size + UNWRITTEN:
                raise fail(
                    where, name, f": {size} bytes were read from a file of {file.stat().st_size}; it is damaged."
                )
            if episodes and _shapes(columns["observations"]) != _shapes(episodes[0]["observations"]):
                raise fail(where, f"{name}/observations", " has another shape than in the first episode.")
            if episodes and columns["actions"].shape[1:] != episodes[0]["actions"].shape[1:]:
                raise fail(where, f"{name}/actions", " has another shape than in the first episode.")
            episodes.append(columns)
    return episodes, keys


def _shapes(observations: Any) -> dict[str, tuple[int, ...]]:
    return {key: array.shape[1:] for key, array in named("observations", observations).items()}


def _read_episode(group: h5py.Group, where: str, low: Any, high: Any) -> tuple[dict[str, Any], list[str]]:
    """T transitions from T + 1 observations."""
    name = place(group)
    for key in ("observations", "actions", "rewards", "terminations", "truncations"):
        if key not in group:
            raise fail(
                where, f"{name}/{key}", f" is missing; the episode holds {', '.join(sorted(group)) or 'nothing'}."
            )
    here, rows = f"{where}: {name}", _declared_rows(group, "actions") or 0
    if rows == 0:
        raise fail(where, f"{name}/actions", " has no steps; remove the empty episode.")
    for key in ("observations", "rewards", "terminations", "truncations"):  # before anything is unpacked
        _check_rows(where, name, key, _declared_rows(group, key), rows)
    actions = read_array(group, "actions", where)
    observations, keys = _read_observations(group, where)
    _check_rows(where, name, "observations", rows_of(observations), rows)
    dim = actions.shape[1] if actions.ndim == 2 else 1
    action_array(here, actions, rows, action_bounds(here, low, high, dim))
    terminations, truncations = (
        flag_vector(here, key, read_array(group, key, where), rows) for key in ("terminations", "truncations")
    )
    ends = terminations | truncations
    ends[-1] = True
    columns = {
        "observations": map_parts(lambda part: part[:-1], observations),
        "actions": actions,
        "rewards": row_vector(here, "rewards", read_array(group, "rewards", where), rows),
        "terminals": ends,
        "masks": ~terminations,
        "next_observations": map_parts(lambda part: part[1:], observations),
    }
    return columns, keys


def _declared_rows(group: h5py.Group, key: str) -> int | None:
    """The rows that an array declares; None for a group, or for an array without rows, which later checks name."""
    shape = getattr(group[key], "shape", None)
    return int(shape[0]) if shape else None


def _check_rows(where: str, name: str, key: str, found: int | None, steps: int) -> None:
    if found not in (None, steps + (key == "observations")):
        text = f" has {found} rows for {steps} actions; Minari stores one observation more than actions."
        raise fail(where, f"{name}/{key}", text)


def _read_observations(group: h5py.Group, where: str) -> tuple[Any, list[str]]:
    """One array per episode, and the keys of a dict space in the order in which they were joined.

    With images in a dict space, the joined vectors are the part `state`, and each image is a part.
    """
    name = place(group)
    item: Any = group["observations"]
    if isinstance(item, h5py.Dataset):
        array = read_array(group, "observations", where)
        if array.dtype == np.uint8 and array.ndim == 2 and array.shape[1] > 3 and (array[:, :2] == _JPEG).all():
            raise _jpeg(where, f"{name}/observations")
        return observation_array(f"{where}: {name}", "observations", array), []
    parts, keys, images = [], [], {}
    for key, array in _leaves(item, where, ""):
        values = numbers(f"{where}: {name}", f"observations/{key}", array)
        if values.dtype == np.uint8 and values.ndim == 4:
            images[key.replace("/", ".")] = values
            continue
        if values.dtype == np.uint8 and values.ndim > 1:
            raise _jpeg(where, f"{name}/observations/{key}")
        if values.ndim == 0 or (parts and len(values) != len(parts[0])):
            raise fail(where, f"{name}/observations/{key}", f" has shape {values.shape}; expected one row per step.")
        parts.append(values.reshape(len(values), -1).astype(np.float32))
        keys.append(key)
    if not parts and not images:
        raise fail(where, f"{name}/observations", " is an empty group.")
    if "state" in images and parts:
        raise fail(where, f"{name}/observations/state", " is an image beside vectors; rename it.")
    whole = ({"state": np.concatenate(parts, axis=1)} if parts else {}) | images
    observed = whole if len(whole) > 1 else next(iter(whole.values()))
    return observation_column(f"{where}: {name}", "observations", observed), keys


def _leaves(group: h5py.Group, where: str, prefix: str) -> list[tuple[str, np.ndarray]]:
    leaves = []
    for key in sorted(map(str, group)):
        if key.startswith("_index_"):
            raise fail(where, prefix + key, " belongs to a tuple space; only Box and Dict are read.")
        item = group[key]
        if isinstance(item, h5py.Group):
            leaves += _leaves(item, where, f"{prefix}{key}/")
        else:
            leaves.append((prefix + key, read_array(group, key, where)))
    return leaves


def _jpeg(where: str, key: str) -> DataError:
    return fail(
        where,
        key,
        " holds images in a form that is not read, such as JPEG. Write the data set with jpeg_encoding=False.",
    )


SOURCE = DataSource(
    summary="a local Minari data set",
    example="minari:D4RL/pen/human-v2",
    load=load,
    absolute=unchanged,
    check_present=lambda what, cache_dir: minari_folder(what),
)
