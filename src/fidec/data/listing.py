"""The data files of the cache directory, for `fidec data list`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidec.data.cache import read_sidecar, search_dirs
from fidec.data.columns import existing_file
from fidec.data.hdf5 import open_hdf5
from fidec.data.npz import npz_headers
from fidec.data.observations import is_column
from fidec.errors import DataError


@dataclass(frozen=True)
class CachedFile:
    """A row of `fidec data list`. `rows` and `origin` are None where they are not known."""

    name: str
    path: str
    bytes: int
    rows: int | None
    origin: str | None
    sha256: str | None
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def list_cache(cache_dir: str | Path | None = None) -> list[CachedFile]:
    """The data files of the search directories, by name. Only headers are read."""
    return [_describe(path) for folder in search_dirs(cache_dir) for path in _data_files(folder)]


def _data_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".hdf5"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror or error}. Check the directory.") from error


def _describe(path: Path) -> CachedFile:
    size, rows, record, problem = 0, None, {}, None
    try:
        size = existing_file(path).stat().st_size
        rows = _rows(path)
        record = read_sidecar(path)
    except DataError as error:
        problem = str(error)
    origin, sha256 = record.get("origin"), record.get("sha256")
    return CachedFile(path.stem, str(path), size, rows, origin, sha256, problem)


def _rows(path: Path) -> int | None:
    if path.suffix == ".npz":
        headers = npz_headers(path)
        shapes = [shape for key, (shape, _) in headers.items() if is_column(key, ("observations",))]
        return shapes[0][0] if shapes and shapes[0] else None
    with open_hdf5(path) as handle:
        shape = getattr(handle.get("observations"), "shape", None)
    return int(shape[0]) if shape else None
