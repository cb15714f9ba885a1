"""Arrays that stay on the disk: mapped into memory and read a few rows at a time.

A next observation is the image of the following row's observation, so both columns of a data set are views of one
mapped array.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

MAPPED_BYTES = 2**26  # smaller arrays of images are read into memory
CHUNK_BYTES = 2**24  # read at a time by functions that process all rows


def worth_mapping(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array of a file holds so many images that they stay on the disk."""
    return dtype == np.uint8 and len(shape) >= 3 and int(np.prod(shape, dtype=np.int64)) > MAPPED_BYTES


class MappedRows:
    """Rows of a mapped array in any order. It is indexed like an array, along its first axis."""

    def __init__(self, frames: np.ndarray, rows: np.ndarray):
        self.frames, self.rows = frames, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.frames[self.rows[index]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.frames.shape[1:])

    @property
    def ndim(self) -> int:
        return self.frames.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.frames.dtype

    @property
    def nbytes(self) -> int:
        """What the rows would take in memory."""
        return len(self.rows) * row_bytes(self.frames)


def is_mapped(array: Any) -> bool:
    """Whether an array is a large set of images in a file that was opened read-only."""
    if isinstance(array, np.ndarray) and not worth_mapping(array.shape, array.dtype):
        return False  # a small file that a user has mapped
    while isinstance(array, np.ndarray) and not array.flags.writeable:
        array = array.base
    return isinstance(array, (MappedRows, mmap.mmap))


def take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`array[rows]` for row numbers or a mask: a copy, or a view of a mapped array."""
    if not is_mapped(array):
        return array[rows]
    numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
    if isinstance(array, MappedRows):
        array, numbers = array.frames, array.rows[numbers]
    # Not a NumPy array, but it has what the package uses of a column: length, shape, dtype, reads along one axis.
    return cast(np.ndarray, MappedRows(array, numbers))


def row_bytes(array: Any) -> int:
    """Bytes of one row."""
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize


def chunk_rows(array: Any) -> int:
    """How many rows to read at a time."""
    return max(1, CHUNK_BYTES // max(1, row_bytes(array)))


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in order, `CHUNK_BYTES` at a time."""
    step = chunk_rows(array)
    for start in range(0, len(array), step):
        yield array[start : start + step]


def extremes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest value of every dimension."""
    pairs = [(part.min(axis=0), part.max(axis=0)) for part in chunks(array)]
    return np.min([low for low, _ in pairs], axis=0), np.max([high for _, high in pairs], axis=0)
