"""The transitions of the online phase on the disk, beside the checkpoints that refer to them.

    replay/
      00000000.safetensors   rows 0 to 11999: what was collected up to the first checkpoint
      00012000.safetensors   rows 12000 and on, up to the second

A segment is written once, so a checkpoint writes only what was collected since the last one. The checkpoint's
manifest holds the index: the size and the SHA-256 of every segment. The index of an older checkpoint is the beginning
of the index of a newer one. A segment that no checkpoint lists was left behind by a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import CheckpointError, RunError
from fidec.store import files, trees
from fidec.types import Batch

Index = list[dict[str, Any]]  # plain JSON: one entry a segment, with the keys of ENTRY
ENTRY = {"name": str, "first": int, "rows": int, "bytes": int, "sha256": str}
# The name of a segment, or of the temporary file that a killed `files.write_whole` leaves.
OURS = re.compile(r"[0-9]{8,}\.safetensors|\.[0-9]{8,}\.safetensors\.[0-9]+\.tmp")

_Layout = dict[str, tuple[np.dtype, tuple[int, ...]]]  # type of each column, and shape of one row of it


class Rows(NamedTuple):
    """Transitions in the order in which they were collected, as NumPy arrays, and where each came from."""

    batch: Batch
    episodes: np.ndarray  # int32, the exploration episode of each row
    steps: np.ndarray  # int32, the step in that episode
    lanes: np.ndarray  # int32, the environment that played it
    terminals: np.ndarray  # bool, whether the episode ended with this row

    @property
    def count(self) -> int:  # replaces tuple.count, which makes no sense for arrays
        return len(self.episodes)


_PLACE = {"episodes": np.int32, "steps": np.int32, "lanes": np.int32, "terminals": np.bool_}
_REQUIRED = {*Batch._fields, *_PLACE} - Batch._field_defaults.keys()


def concatenate(parts: Sequence[Rows]) -> Rows:
    """The rows of one part after those of another. All have the same columns."""
    columns = [_columns(part) for part in parts]
    return _rows({name: np.concatenate([part[name] for part in columns]) for name in columns[0]})


class ReplayStore:
    """The segments of one run. Only the process that holds the run's lock may use it, except for `verify`."""

    def __init__(self, directory: str | Path, verify: Callable[[], None] = files.nothing):
        self.directory, self._verify_run = Path(directory), verify
        self._index: Index = []
        self._pending: list[Rows] = []
        self._layout: _Layout | None = None

    @property
    def count(self) -> int:
        """Rows in segments, and rows that wait for `flush`."""
        return _end(self._index) + sum(rows.count for rows in self._pending)

    def append(self, rows: Rows) -> None:
        """Keep a copy of `rows` for the next `flush`. Nothing is written yet."""
        rows = _rows({name: np.array(column, order="C") for name, column in _columns(rows).items()})
        layout = _checked_layout(rows, rows.count, self._layout, RunError, "rows for the replay buffer")
        if rows.count:
            self._layout = layout
            self._pending.append(rows)

    def flush(self) -> Index:
        """Write what is pending as one new segment, and return the index of all, for the checkpoint's `extra`.

        If the disk is full or fails, `RunError`: no part of the segment stays, and the rows are still pending.
        """
        if self._pending:
            rows = concatenate(self._pending)
            self._index.append(self._write(rows))
            self._pending = []
        return [dict(entry) for entry in self._index]

    def verify(self, index: Index | None) -> None:
        """Raise `CheckpointError`, naming the segment, unless each that `index` lists is there and unchanged."""
        for entry in _checked_index(index):
            files.verify_file(self.directory / _name(entry["first"]), entry, "checkpoint")

    def restore(self, index: Index | None) -> Rows | None:
        """All rows that `index` lists, None if there are none. The store continues after them.

        Every segment is verified before one is parsed. Segments that the index does not list were written after its
        checkpoint and are removed, unless one that it lists is damaged.
        """
        self.verify(index)
        index = [dict(entry) for entry in index or []]
        layout, whole = None, {}
        for entry in index:
            path, first = self.directory / entry["name"], entry["first"]
            part = _parse(path, trees.load_flat(path))
            layout = _checked_layout(part, entry["rows"], layout, CheckpointError, str(path))
            if not whole:  # filled segment by segment: two whole buffers may not fit into memory
                whole = {name: np.empty((_end(index), *shape), dtype) for name, (dtype, shape) in layout.items()}
            for name, column in _columns(part).items():
                whole[name][first : first + entry["rows"]] = column
        self._remove_unlisted({entry["name"] for entry in index})
        self._index, self._pending, self._layout = index, [], layout
        return _rows(whole) if whole else None

    def _write(self, rows: Rows) -> dict[str, Any]:
        # safetensors writes the memory of an array as it lies there, whatever its strides say.
        flat = {name: np.ascontiguousarray(column) for name, column in _columns(rows).items()}
        first, size = _end(self._index), sum(column.nbytes for column in flat.values())
        path = self.directory / _name(first)
        what = f"rows {first} to {first + rows.count - 1} of the replay buffer, {size / 1e6:.1f} MB"
        with files.writing(path, what):
            files.make_directory(self.directory, self._verify_run)  # so that a run without an online phase has none
            with files.opened(self.directory, self._verify_run) as directory:
                if files.exists(Path(path.name), directory):
                    raise RunError(
                        f"{path} was not written by this process and is not replaced: continue with --resume"
                    )
                try:
                    trees.save_flat(path, flat, {"format": "fidec-replay-1"}, self._verify_run)
                    digest = files.sha256_file(path)
                    written = path.stat().st_size
                except BaseException:  # the file may exist without being durable
                    with contextlib.suppress(OSError):
                        files.remove(Path(path.name), directory)
                    self._verify_run()  # which says more, if the directory was moved
                    raise
        return {"name": path.name, "first": first, "rows": rows.count, "bytes": written, "sha256": digest}

    def _remove_unlisted(self, listed: set[str]) -> None:
        if not self.directory.is_dir():
            return
        what = "the directory of the replay buffer"
        with files.writing(self.directory, what), files.opened(self.directory, self._verify_run) as directory:
            for name in sorted(os.listdir(directory)):
                if OURS.fullmatch(name) and name not in listed:
                    os.unlink(name, dir_fd=directory)


def _name(first: int) -> str:
    return f"{first:08d}.safetensors"


def _end(index: Index) -> int:
    return index[-1]["first"] + index[-1]["rows"] if index else 0


def _checked_index(index: Any) -> Index:
    """`index`, if it lists consecutive segments from row 0 on, each under the name of its first row."""
    if not isinstance(index, list | None):
        raise CheckpointError(f"the index of the replay buffer is {type(index).__name__}, expected a list")
    first = 0
    for number, entry in enumerate(index or []):
        where = f"segment {number} in the index of the replay buffer"
        types = {key: type(value) for key, value in entry.items()} if isinstance(entry, dict) else {}
        if types != ENTRY:
            raise CheckpointError(f"{where} is {entry!r}, expected {', '.join(ENTRY)}")
        if entry["name"] != _name(first) or entry["first"] != first or not 0 < entry["rows"] < entry["bytes"]:
            raise CheckpointError(
                f"{where} is {entry['name']!r} with {entry['rows']} rows from row {entry['first']} on, "
                f"expected {_name(first)!r} with rows from {first} on: the index was changed"
            )
        first += entry["rows"]
    return index or []


def _columns(rows: Rows) -> dict[str, np.ndarray]:
    batch = {name: column for name, column in rows.batch._asdict().items() if column is not None}
    return batch | {name: np.asarray(getattr(rows, name), dtype) for name, dtype in _PLACE.items()}


def _rows(columns: dict[str, np.ndarray]) -> Rows:
    batch = Batch(**{name: columns[name] for name in Batch._fields if name in columns})
    return Rows(batch, **{name: columns[name] for name in _PLACE})


def _parse(path: Path, flat: dict[str, np.ndarray]) -> Rows:
    if set(flat) - {"returns"} != _REQUIRED:
        raise CheckpointError(f"{path} has the columns {sorted(flat)}, expected {sorted(_REQUIRED)}")
    for name, dtype in _PLACE.items():
        if flat[name].dtype != dtype:
            raise CheckpointError(f"{path}: column {name!r} is {flat[name].dtype}, expected {np.dtype(dtype)}")
    return _rows(flat)


def _checked_layout(rows: Rows, count: int, layout: _Layout | None, error: type[RunError], what: str) -> _Layout:
    """The layout of `rows`, if every column has `count` rows and they agree with `layout`, that of earlier rows."""
    columns = _columns(rows)
    for name, column in columns.items():
        if column.shape[:1] != (count,):
            raise error(f"{what}: column {name!r} has shape {column.shape}, expected {count} rows")
    current = {name: (column.dtype, column.shape[1:]) for name, column in columns.items()}
    for name in sorted(current.keys() | (layout or current).keys()):
        if layout is not None and current.get(name) != layout.get(name):
            raise error(f"{what}: column {name!r} is {current.get(name)}, in earlier rows it is {layout.get(name)}")
    return current
