"""`npz:PATH`: a NumPy archive whose keys are the arguments of `dataset_from_arrays`, or several as one data set.

A part of an observation has the key `observations/NAME`.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.arrays import FILE_KEYS, dataset_from_file, id_changes
from fidec.data.columns import existing_file, fail, is_column, is_data_file, require_keys, user_path
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import FileRows, Shards, large_keys
from fidec.data.npz import Header, npz_headers, read_npz
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.data.tables import natural
from fidec.errors import DataError

KEYS = (*FILE_KEYS, "masks", "truncations")
_BOUNDS = ("action_low", "action_high")


def load(what: str, *, cache_dir: CacheDir = None, **bounds: object) -> OfflineDataset:
    """`timeouts` is another name for `truncations`."""
    files = files_of(what)
    headers = [npz_headers(file) for file in files]
    for file, each in zip(files, headers, strict=True):
        # A file of OGBench has no rewards of its own: the error says how to load it.
        own = any(is_column(key, ("observations",)) for key in each)
        needed = (*([] if own else ["observations"]), "actions", *(["rewards"] if "qpos" in each else []))
        require_keys(str(file), each, needed)
    mapped = _large(files, headers)
    parts = [read_npz(file, lambda key: is_column(key, KEYS), mapped) for file in files]
    if len(files) == 1:
        return dataset_from_file(dict(parts[0]), files[0], f"npz:{what}", **bounds)
    place = user_path(what)
    name = place if place.is_dir() else place.parent
    return dataset_from_file(_joined(files, parts), name, f"npz:{what}", **bounds)


def files_of(what: str) -> list[Path]:
    """The file, those of a directory, or those of a pattern such as `dir/*.npz`; part2 comes before part10."""
    place = user_path(what)
    if is_data_file(place) or not (place.is_dir() or glob.has_magic(str(place))):
        return [existing_file(place)]
    found = place.glob("*.npz") if place.is_dir() else map(Path, glob.glob(str(place)))
    files = sorted((existing_file(file) for file in found), key=lambda file: natural(str(file)))
    if not files:
        where = f"{place} has no .npz files" if place.is_dir() else f"no file is called {place}"
        raise DataError(f"{where}; expected at least one. Check the path.")
    return files


def _large(files: list[Path], headers: list[dict[str, Header]]) -> set[str]:
    """The keys whose arrays, of all files together, stay on the disk. DataError if the files do not fit together."""
    whole: dict[str, Header] = {}
    for key in dict.fromkeys(key for each in headers for key in each if is_column(key, KEYS)):
        having = [file for file, each in zip(files, headers, strict=True) if key in each]
        if lacking := [file for file in files if file not in having]:
            raise fail(str(lacking[0]), key, f" is missing, but {having[0]} has it; all need it.")
        (shape, dtype), rows = headers[0][key], 0
        for file, each in zip(files, headers, strict=True):
            (*own, its_type) = (*each[key][0], each[key][1])
            if (own[1:], its_type) != ([*shape[1:]], dtype) and key != "episodes":
                raise fail(
                    str(file),
                    key,
                    f" has rows of shape {tuple(own[1:])} and type {its_type}, but {files[0]} has {shape[1:]} and "
                    f"{dtype}; all files need the same.",
                )
            rows += own[0] if own else 0
        if key not in ("episodes", *_BOUNDS):
            whole[key] = (rows, *shape[1:]), dtype
    return large_keys(whole)


def _joined(files: list[Path], parts: list[dict[str, np.ndarray]]) -> dict[str, Any]:
    """The columns of all files. Each file ends an episode: a cut, unless it says that the task ended there."""
    columns: dict[str, Any] = {}
    for key in parts[0]:
        if key in _BOUNDS:
            for file, each in zip(files, parts, strict=True):
                if not np.array_equal(each[key], parts[0][key]):
                    raise fail(
                        str(file), key, f" is {each[key]}, but in {files[0]} {parts[0][key]}; they must agree."
                    )
            columns[key] = parts[0][key]
        elif key != "episodes":
            arrays = [each[key] for each in parts]
            rows = [array for array in arrays if isinstance(array, FileRows)]
            columns[key] = Shards(rows) if len(rows) == len(arrays) else np.concatenate(arrays)
    ids, count = [], 0
    for file, each in zip(files, parts, strict=True):
        rows = len(each["actions"])
        ends = id_changes(str(file), each["episodes"], rows) if "episodes" in each else np.zeros(rows, bool)
        ids.append(count + np.cumsum(np.append(False, ends[:-1]), dtype=np.int32))
        count = int(ids[-1][-1]) + 1
    return columns | {"episodes": np.concatenate(ids)}


SOURCE = DataSource(
    summary="a NumPy archive",
    example="npz:runs/mine.npz",
    load=load,
    claims=lambda text: text.endswith(".npz"),
    absolute=absolute_path,
    check_present=lambda what, cache_dir: files_of(what),
    at_url="file",
)
