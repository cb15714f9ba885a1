"""Arrays that stay on the disk and are read a few rows at a time.

A next observation is the observation of the following row, so both columns of a data set are views of one array. Rows
are read from the file and not through mapped memory: the process does not grow by the pages that it has seen, and a
file that is cut short meanwhile is an error instead of the end of the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from fidec.errors import DataError

MAPPED_BYTES = 2**26  # smaller arrays of images are read into memory
VECTOR_BYTES = 2**30  # likewise for arrays of vectors
BLOCK_BYTES = 2**24  # read at a time by functions that process all rows


def worth_mapping(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array of a file is so large that it stays on the disk. Columns of single numbers never do."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return len(shape) > 1 and size > (MAPPED_BYTES if dtype == np.uint8 and len(shape) > 2 else VECTOR_BYTES)


def large_keys(headers: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> set[str]:
    """The arrays of a data set to keep on disk: every array with more than one axis if together they exceed 1 GB."""
    size = {key: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for key, (shape, dtype) in headers.items()}
    wide = {key for key, (shape, _) in headers.items() if len(shape) > 1}
    together = sum(size[key] for key in wide) > VECTOR_BYTES
    return {key for key in wide if together or worth_mapping(*headers[key])}


class FileRows:
    """An array in a file, in C order from `offset` on. Slices and row numbers are read when they are asked for."""

    def __init__(self, file: IO[bytes], dtype: Any, offset: int, shape: tuple[int, ...]):
        self._file, self._number, self._offset = file, file.fileno(), offset
        self.shape, self.dtype, self.ndim = shape, np.dtype(dtype), len(shape)
        self._row = row_bytes(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            runs = [(0, max(0, stop - start), start)]
        else:  # rows that follow each other are read together
            bounds = np.flatnonzero(np.diff(index, prepend=-2, append=-2) != 1)
            runs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), index[bounds[:-1]].tolist(), strict=True)
            stop, start = len(index), 0
        rows = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        view, size = rows.reshape(-1).view(np.uint8).data, self._row
        for first, last, row in runs:
            self._read(view[first * size : last * size], row)
        return rows

    def __setitem__(self, index: slice, rows: np.ndarray) -> None:
        """Write rows, for an array of `room_for`."""
        data = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        at = self._offset + index.start * self._row
        while len(data):
            done = os.pwrite(self._number, data, at)
            data, at = data[done:], at + done

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def _read(self, view: memoryview, row: int) -> None:
        at = self._offset + row * self._row
        while (count := os.preadv(self._number, [view], at)) < len(view):
            if not count:
                raise DataError(f"{self._file.name} was cut short while it was in use. Restore it.")
            view, at = view[count:], at + count


class Shards:
    """Arrays of several files as one, along the first axis."""

    def __init__(self, files: Sequence[FileRows]):
        self.files = list(files)
        self.starts = np.cumsum([0, *(len(file) for file in files)])
        self.shape = (int(self.starts[-1]), *files[0].shape[1:])
        self.dtype, self.ndim = files[0].dtype, files[0].ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            pairs = zip(self.files, self.starts.tolist(), strict=False)
            return np.concatenate([file[max(start - first, 0) : max(stop - first, 0)] for file, first in pairs])
        order = np.argsort(index, kind="stable")  # the rows of a file together, in its order
        wanted, rows = index[order], np.empty((len(index), *self.shape[1:]), self.dtype)
        bounds = np.searchsorted(wanted, self.starts)
        for file, first, low, high in zip(self.files, self.starts, bounds, bounds[1:], strict=False):
            if low < high:
                rows[order[low:high]] = file[wanted[low:high] - first]
        return rows


class MappedRows:
    """Rows of an array on the disk in any order, by default all. It is indexed like an array, along its first axis.

    `convert` changes the rows that are read, element by element, to the type `dtype`.
    """

    def __init__(
        self,
        frames: np.ndarray | FileRows | Shards,
        rows: np.ndarray | None = None,
        convert: Callable[[np.ndarray], np.ndarray] | None = None,
        dtype: Any = None,
    ):
        self.frames, self.rows, self.convert = frames, rows, convert
        self.shape = (len(frames) if rows is None else len(rows), *frames.shape[1:])
        self.dtype, self.ndim = np.dtype(dtype or frames.dtype), frames.ndim
        self.size = int(np.prod(self.shape, dtype=np.int64))
        self.nbytes = self.size * self.dtype.itemsize  # what the rows would take in memory

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice) and self.rows is None:
            found = self.frames[index]
        else:
            chosen = np.asarray(index) if self.rows is None else self.rows[index]
            found = self.frames[chosen.ravel()].reshape(*chosen.shape, *self.shape[1:])
        return found if self.convert is None else self.convert(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def take(self, numbers: np.ndarray) -> MappedRows:
        """These rows, still on the disk."""
        small = numbers.astype(np.int32 if len(self.frames) < 2**31 else np.int64)
        return MappedRows(self.frames, small if self.rows is None else self.rows[small], self.convert, self.dtype)

    def converted(self, convert: Callable[[np.ndarray], np.ndarray], dtype: Any) -> MappedRows:
        """The rows after `convert`, which is applied to what is read."""
        first = self.convert
        both = convert if first is None else lambda rows: convert(first(rows))
        return MappedRows(self.frames, self.rows, both, dtype)


def is_mapped(array: Any) -> bool:
    """Whether an array is a large one in a file that was opened read-only."""
    if isinstance(array, np.ndarray) and not worth_mapping(array.shape, array.dtype):
        return False  # a small file that a user has mapped
    while isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.base
    return isinstance(array, (MappedRows, FileRows, Shards, mmap.mmap))


def as_rows(array: Any) -> MappedRows:
    """A mapped array as an object that reads its rows when it is indexed."""
    return array if isinstance(array, MappedRows) else MappedRows(array)


def take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`array[rows]` for row numbers or a mask: a copy, or a view of a mapped array."""
    if not is_mapped(array):
        return array[rows]
    # Not a NumPy array, but it has what the package uses of a column: length, shape, dtype, reads along one axis.
    return cast(np.ndarray, as_rows(array).take(np.flatnonzero(rows) if rows.dtype == bool else rows))


def map_elements(
    array: np.ndarray, convert: Callable[[np.ndarray], np.ndarray], dtype: Any = np.float32
) -> np.ndarray:
    """`convert(array)`, of an elementwise function: at once, or when rows of a mapped array are read."""
    return cast(np.ndarray, as_rows(array).converted(convert, dtype)) if is_mapped(array) else convert(array)


def room_for(shape: tuple[int, ...], dtype: np.dtype, folder: Path | None) -> np.ndarray:
    """An array to be written: in memory, or, if it is large and there is a folder, in a file there without a name."""
    if folder is None or not worth_mapping(shape, dtype):
        return np.empty(shape, dtype)
    return cast(np.ndarray, FileRows(tempfile.TemporaryFile(dir=folder, buffering=0), dtype, 0, shape))


def row_bytes(array: Any) -> int:
    """Bytes of one row."""
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize


def block_rows(array: Any) -> int:
    """How many rows to read at a time."""
    return max(1, BLOCK_BYTES // max(1, row_bytes(array)))


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in order, `BLOCK_BYTES` at a time."""
    step = block_rows(array)
    array = cast(np.ndarray, as_rows(array)) if is_mapped(array) else array
    for start in range(0, len(array), step):
        yield array[start : start + step]


def extremes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest value of every dimension."""
    pairs = [(block.min(axis=0), block.max(axis=0)) for block in blocks(array)]
    return np.min([low for low, _ in pairs], axis=0), np.max([high for _, high in pairs], axis=0)
