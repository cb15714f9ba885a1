"""The files of a data set in the making: one file per episode (a shard), joined to one file per split at the end.

Every write goes to a temporary name and is renamed, so a file that exists is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.npz import write_npz
from fidec.errors import DataError
from fidec.make.recipes import Recipe
from fidec.store import lock
from fidec.store.files import find_json, write_json, write_whole


def shard_path(directory: Path, split: str, index: int) -> Path:
    return directory / f"{split}-{index:06d}.npz"


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    members = {key: ((array.shape, array.dtype), [array]) for key, array in arrays.items()}
    write_whole(path, lambda file: write_npz(file, members))


def read_shard(path: Path, recipe: Recipe) -> dict[str, np.ndarray] | None:
    """The arrays of one episode, or None if the file is missing or damaged (each array carries a CRC-32)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # zipfile and NumPy raise many kinds of errors for a damaged archive
        return None
    dtypes = {key: str(array.dtype) for key, array in arrays.items()}
    if dtypes != recipe.dtypes or any(len(array) != recipe.episode_rows for array in arrays.values()):
        return None
    return arrays


def join_shards(directory: Path, split: str, episodes: int, recipe: Recipe, path: Path) -> None:
    """Concatenate the episodes of a split into one file.

    It is not compressed, unlike OGBench's own files: compression would save a seventh of the space, make reading
    three times slower, and let the bytes depend on the version of zlib. NumPy gives every member of an archive the
    same date, so equal arrays make equal files.
    """

    def episode(index: int) -> dict[str, np.ndarray]:
        shard = read_shard(shard_path(directory, split, index), recipe)
        if shard is None:
            raise DataError(
                f"{directory}: {split} episode {index} became unreadable after it was written. "
                "Check the disk and run the same command again: only such episodes are made again."
            )
        return shard

    def column(key: str) -> Iterator[np.ndarray]:
        return (episode(index)[key] for index in range(episodes))

    first, rows = episode(0), episodes * recipe.episode_rows
    members = {
        key: (((rows, *first[key].shape[1:]), np.dtype(dtype)), column(key)) for key, dtype in recipe.dtypes.items()
    }
    write_whole(path, lambda file: write_npz(file, members))  # one episode at a time: images may not fit in memory


def open_partial(directory: Path, wanted: dict[str, Any], *, overwrite: bool) -> None:
    """Prepare the directory of an unfinished data set: continue it, or start again if `overwrite`; else an error."""
    record = directory / "settings.json"
    recorded = find_json(record)
    if recorded == wanted:
        return
    if recorded is not None and not overwrite:
        keys = sorted(key for key in {*recorded, *wanted} if recorded.get(key) != wanted.get(key))
        what = "; ".join(f"{key} was {recorded.get(key)!r}, now {wanted.get(key)!r}" for key in keys)
        raise DataError(
            f"{directory} holds an interrupted run with other settings ({what}). Finish that run with its "
            "own settings, delete the directory, or ask to overwrite."
        )
    for entry in directory.iterdir():
        if entry.suffix in {".npz", ".json", ".log", ".tmp"}:
            entry.unlink()
    write_json(record, wanted)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` (created if need be) for this process; a second process gets a BusyError."""
    directory.mkdir(parents=True, exist_ok=True)
    acquired = lock.acquire(directory / "lock")
    try:
        yield
    finally:
        acquired.release()


def remove_partial(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
