"""What making a data set leaves on the disk: one file an episode while it runs, one file a split at the end.

Every write goes to a temporary name and is moved into place, so a file that exists is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.npz import write_npz
from fidec.errors import BusyError, DataError
from fidec.make.recipes import Recipe
from fidec.store.disk import write_whole


def write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file, or None if there is none or it cannot be understood."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def shard_path(directory: Path, split: str, index: int) -> Path:
    return directory / f"{split}-{index:06d}.npz"


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    write_whole(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def read_shard(path: Path, recipe: Recipe) -> dict[str, np.ndarray] | None:
    """The arrays of one episode, or None if the file is missing or damaged (each array carries a CRC-32)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # zipfile and NumPy have a dozen ways to complain about a damaged archive
        return None
    found = {key: str(array.dtype) for key, array in arrays.items()}
    if found != recipe.dtypes or any(len(array) != recipe.episode_rows for array in arrays.values()):
        return None
    return arrays


def join_shards(directory: Path, split: str, episodes: int, recipe: Recipe, path: Path) -> None:
    """Concatenate the episodes of a split into one file.

    Not compressed, unlike OGBench's own (which reads both): that would save a seventh of the space, read three
    times slower, and let the bytes depend on the zlib version. NumPy gives every member of an archive the same
    date, so equal arrays make equal files.
    """

    def episode(index: int) -> dict[str, np.ndarray]:
        shard = read_shard(shard_path(directory, split, index), recipe)
        if shard is None:
            raise DataError(
                f"{directory}: {split} episode {index} became unreadable after it was written. "
                "Check the disk and run the same command again: only such episodes are made anew."
            )
        return shard

    def column(key: str) -> Iterator[np.ndarray]:
        return (episode(index)[key] for index in range(episodes))

    first, rows = episode(0), episodes * recipe.episode_rows
    members = {
        key: (((rows, *first[key].shape[1:]), np.dtype(dtype)), column(key)) for key, dtype in recipe.dtypes.items()
    }
    write_whole(path, lambda file: write_npz(file, members))  # episode by episode: pictures may not fit in memory


def open_partial(directory: Path, wanted: dict[str, Any], *, overwrite: bool) -> None:
    """Make the directory of an unfinished data set ready: go on with it, or refuse, or start anew."""
    record = directory / "settings.json"
    found = read_json(record)
    if found == wanted:
        return
    if found is not None and not overwrite:
        keys = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
        what = "; ".join(f"{key} was {found.get(key)!r}, now {wanted.get(key)!r}" for key in keys)
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
    try:
        import fcntl
    except ImportError:  # pragma: no cover (no such lock on Windows)
        directory.mkdir(parents=True, exist_ok=True)
        yield
        return
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(
                    f"{directory}: another process is at work here. Wait for it, or stop it first."
                ) from None
            # The previous holder may have removed the directory between our open and our lock.
            same = False
            with suppress(FileNotFoundError):
                same = os.path.samestat(os.fstat(file.fileno()), os.stat(directory / "lock"))
            if same:
                yield
                return


def remove_partial(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
