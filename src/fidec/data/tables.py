"""Columns of CSV and Parquet files, as NumPy arrays. Files are parsed by pyarrow; nothing in them is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import existing_file, fail
from fidec.data.memory import free_host_memory, unreadable
from fidec.errors import DataError
from fidec.extras import require
from fidec.register import unknown

SUFFIXES = (".csv", ".parquet")
PURPOSE = "a table"


def natural(name: str) -> list[Any]:
    """A key that sorts q2 before q10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name)]


def match_columns(where: str, key: str, patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns that the patterns name, in the order of the patterns; those of one pattern as in the file."""
    found: list[str] = []
    for pattern in patterns:
        # A name is taken as it is first: it may contain a bracket or a star.
        own = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
        if not own:
            raise DataError(f"{where}: {unknown(f'column for `{key}`', pattern, names)}")
        found += [name for name in own if name not in found]
    return found


class Table:
    """A CSV or Parquet file: the types of its columns by name, and its columns. A CSV file is parsed once."""

    def __init__(self, path: Path):
        self.file = existing_file(path)
        if self.file.suffix.lower() not in SUFFIXES:
            found = self.file.suffix or "missing"
            raise DataError(f"{self.file}: the suffix is {found}, expected {' or '.join(SUFFIXES)}")
        with _naming_damage(self.file):
            if self.file.suffix.lower() == ".csv":
                whole = require("pyarrow.csv", "tables", PURPOSE).read_csv(self.file)
                schema, self._select, self._parquet = whole.schema, whole.select, None
            else:
                opened = require("pyarrow.parquet", "tables", PURPOSE).ParquetFile(self.file)
                _check_size(self.file, opened.metadata)
                schema, self._select = opened.schema_arrow, lambda names: opened.read(columns=names)
                self._parquet = opened
        names = [field.name for field in schema]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{self.file}: the column {twice[0]!r} is there more than once. Rename one.")
        self.types: dict[str, str] = {field.name: str(field.type) for field in schema}

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns by name: (rows,) numbers or text, or (rows, n) for columns of lists of equal length."""
        for name in names:
            if name not in self.types:
                raise DataError(f"{self.file}: {unknown('column', name, self.types)}")
        chosen = list(dict.fromkeys(names))
        with _naming_damage(self.file):
            table = self._select(chosen)
            return {name: _array(str(self.file), name, table.column(name)) for name in chosen}

    def stream(self, name: str, rows: int) -> Iterator[Any]:
        """The values of a column of a Parquet file as Python objects; `rows` of them are in memory at a time."""
        if name not in self.types or self._parquet is None:
            raise DataError(f"{self.file}: {unknown('column', name, self.types)}")
        with _naming_damage(self.file):
            for batch in self._parquet.iter_batches(rows, columns=[name]):
                yield from batch.column(0).to_pylist()


@contextmanager
def _naming_damage(file: Path) -> Iterator[None]:
    """Turn what pyarrow raises into a DataError."""
    pyarrow = require("pyarrow", "tables", PURPOSE)
    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split())[:160]
        damaged = DataError(f"{file}: cannot be read as a table ({text}); it is damaged or of another kind.")
        raise unreadable(file, error, damaged) from error


def _check_size(file: Path, metadata: Any) -> None:
    """A small Parquet file may declare more values than memory holds: equal values take no space."""
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    values = sum(group.column(index).num_values for group in groups for index in range(metadata.num_columns))
    declared = 8 * max(values, metadata.num_rows * metadata.num_columns)
    if declared > free_host_memory():
        raise DataError(
            f"{file}: declares {metadata.num_rows} rows of {metadata.num_columns} columns, {declared / 1e9:.1f} GB, "
            f"and {free_host_memory() / 1e9:.1f} GB are free; not read."
        )


def _array(where: str, name: str, column: Any) -> np.ndarray:
    types = require("pyarrow", "tables", PURPOSE).types
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise fail(where, name, f", row {row}: the value is missing. Fill it, or remove the row.")
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(where, name, column.combine_chunks())
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if types.is_timestamp(kind) or types.is_duration(kind):  # in its own unit: only its order matters
        return column.cast("int64").to_numpy()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return np.asarray(column.to_pylist(), np.str_)
    raise fail(where, name, f" has the type {kind}; expected numbers, flags, text, or lists of numbers.")


def _lists(where: str, name: str, column: Any) -> np.ndarray:
    lengths = np.asarray(require("pyarrow.compute", "tables", PURPOSE).list_value_length(column))
    if not len(lengths) or lengths.min() != lengths.max() or not lengths[0]:
        ends = (lengths.min(), lengths.max()) if len(lengths) else (0, 0)
        raise fail(where, name, f" has lists of {ends[0]} to {ends[1]} numbers; expected equal lengths.")
    flat = column.flatten()
    values = np.asarray(flat.to_numpy(zero_copy_only=False))
    if flat.null_count or values.dtype.kind not in "biuf":
        raise fail(where, name, f" has lists of {column.type.value_type}, or missing values; expected numbers.")
    return values.reshape(len(lengths), -1)
