"""The directory for data files, the record of each file (a small JSON file beside it), and kept copies of arrays.

The directory is the argument, else the environment variable FIDEC_DATA_DIR, else the user's cache.

A kept copy is an array that is unpacked or decoded once, into the directory `.fidec-unpacked` beside its file, or in
the user's cache if that disk is read-only or full. Only fidec writes there, so no file of the user is overwritten. A
JSON file records its SHA-256 and what it was made from.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import platformdirs

from fidec.console import Progress
from fidec.data.columns import is_data_file, user_path
from fidec.errors import DataError, RunError
from fidec.store import lock
from fidec.store.files import read_json, sha256_file, write_json, write_whole

FOLDER = ".fidec-unpacked"  # of kept copies
_STALE_SECONDS = 3600  # a file that is being written changes more often than this

# The data sets that `fidec data make` can make: `fidec.make.recipes` has a recipe for each.
_SCENES = ("cube-single", "cube-double", "scene", "puzzle-3x3", "puzzle-4x4")
MAKEABLE = (
    *(f"{visual}{scene}-play-v0" for visual in ("", "visual-") for scene in _SCENES),
    *(f"{agent}-{size}-navigate-v0" for agent in ("pointmaze", "antmaze") for size in ("medium", "large", "giant")),
)


CacheDir = str | Path | None


class Record(TypedDict, total=False):
    """The record of a data file: of its maker, which has a SHA-256 for each split, or of the download."""

    origin: str | None
    sha256: str | dict[str, str] | None
    bytes: int
    settings: dict[str, Any] | None


def dataset_name(task: str) -> str:
    """OGBench's data set behind a task id: `cube-single-play-singletask-task2-v0` uses `cube-single-play-v0`."""
    return re.sub(r"-singletask(-task\d+)?(?=-v\d+$)", "", task)


def make_command(dataset: str) -> str | None:
    """The command that makes an OGBench data set on this machine; None if fidec cannot make it."""
    return f"fidec data make {dataset} --rows 100000" if dataset in MAKEABLE else None


def data_dir(cache_dir: CacheDir = None) -> Path:
    """The cache directory (not created here)."""
    chosen = cache_dir or os.environ.get("FIDEC_DATA_DIR")
    return user_path(chosen or Path(platformdirs.user_cache_dir("fidec")) / "data")


def search_dirs(cache_dir: str | Path | None = None) -> list[Path]:
    """Where an OGBench file is looked for: the cache, then OGBench's own directory.

    With an explicit `cache_dir` only there.
    """
    if cache_dir is not None:
        return [data_dir(cache_dir)]
    return [data_dir(), Path(os.path.expanduser("~/.ogbench/data"))]


def find_in(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """The first file with one of these names."""
    return next((folder / name for folder in folders for name in names if is_data_file(folder / name)), None)


def sidecar_path(path: str | Path) -> Path:
    """`x.npz` -> `x.npz.json`."""
    return Path(f"{path}.json")


def maker_record_path(path: str | Path) -> Path:
    """`x.npz` and `x-val.npz` -> `x.json`, which `fidec data make` writes for both."""
    path = Path(path)
    return path.with_name(f"{path.stem.removesuffix('-val')}.json")


def read_sidecar(path: str | Path) -> dict[str, Any]:
    """The record of a data file, of its maker or of the download; empty if there is none."""
    made = maker_record_path(path)
    if made.is_file():
        record, split = _read_json(made), "val" if Path(path).stem.endswith("-val") else "train"
        hashes = record.get("sha256")
        if "made_by" in record and isinstance(hashes, dict) and split in hashes:
            return {"origin": "made", "sha256": hashes[split], "settings": record.get("settings")}
    side = sidecar_path(path)
    return _read_json(side) if side.is_file() else {}


def _read_json(side: Path) -> dict[str, Any]:
    try:
        return read_json(side, Record)
    except RunError as error:
        raise DataError(f"{error}; delete it, and the file is recorded again.") from error


def write_sidecar(path: str | Path, **facts: Any) -> dict[str, Any]:
    """Record a data file: its SHA-256, its size and `facts` (`origin` is "downloaded", "unpacked" or "unknown")."""
    record = {**facts, "sha256": sha256_file(path), "bytes": Path(path).stat().st_size}
    write_json(sidecar_path(path), record)
    return record


def origin_of(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What `OfflineDataset.info` says about a file of a benchmark."""
    origin = record.get("origin")
    return {
        "file": str(path),
        "origin": origin or "unknown",
        # Only a file that `fidec data get` has downloaded is known to be official.
        "regenerated": None if origin in (None, "unknown") else origin != "downloaded",
        "file_sha256": record.get("sha256"),
    }


def verify(path: str | Path) -> dict[str, Any]:
    """Compare a file with its record, if there is one, and return the record."""
    record = read_sidecar(path)
    expected = record.get("sha256")
    if expected is not None and (actual := sha256_file(path)) != expected:
        raise DataError(
            f"{path}: SHA-256 is {actual[:16]}... but its record says {str(expected)[:16]}...: the file was changed "
            "or damaged. Make or download it again. If you changed it on purpose, delete the .json file beside it."
        )
    return record


def kept_copy(
    file: Path, folder: Path, name: str, origin: dict[str, Any], size: int, write: Callable[[IO[bytes]], object]
) -> Path:
    """An unpacked array of `file`: an existing copy, else a new one in the first directory that can hold it.

    `origin` tells whether an existing copy was made from the same content. `write` writes `size` bytes. Processes
    that want the same copy make it once.
    """
    name = name.replace("/", ".").replace("\\", ".")  # it may be hostile
    cache = Path(platformdirs.user_cache_dir("fidec")) / "unpacked"
    paths = [parent / name for parent in (folder / FOLDER, cache)]
    for path in paths:
        if _is_intact(path, origin):
            return path
    problems = []
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock.wait_for(path.with_name(f".{name}.lock"), lambda: _tell_waiting(file)):
                if not _is_intact(path, origin):  # another process may have made it meanwhile
                    _make_room(path, size)
                    write_whole(path, write)
                    write_sidecar(path, **origin)
        except (OSError, RunError) as error:
            problems.append(f"{path.parent} ({getattr(error, 'strerror', None) or error})")
            with suppress(OSError):
                path.parent.rmdir()  # if it is empty
        else:
            return path
    raise DataError(
        f"{file}: {name} takes {size / 1e9:.1f} GB unpacked, and it cannot be written to "
        f"{' or '.join(problems)}. It is unpacked once, so that it need not fit into memory. Make one of these "
        "directories writable, with enough free space."
    )


def _tell_waiting(file: Path) -> None:
    with Progress(None) as progress:
        progress.message(f"another process unpacks {file.name}; waiting for it")


def _is_intact(path: Path, origin: dict[str, Any]) -> bool:
    """Whether there is an undamaged copy of the same member."""
    try:
        record = read_sidecar(path)
        same = path.is_file() and all(record.get(key) == value for key, value in origin.items())
        return same and record.get("sha256") == sha256_file(path)
    except (OSError, DataError):  # unpack it again
        return False


def _make_room(path: Path, size: int) -> None:
    """Remove the files of an older copy, and check that a new one fits."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink()
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB free")
    with suppress(FileNotFoundError):
        Path(f"{path}.json").unlink()  # no record of the old file beside the new one
