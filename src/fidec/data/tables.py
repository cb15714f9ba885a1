"""Columns of CSV and Parquet files, as NumPy arrays. Files are parsed by pyarrow; nothing in them is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    """The columns that the patterns name, in the order of the patterns; those of one pattern in natural order."""
    found: list[str] = []
    for pattern in patterns:
        # A name is taken as it is first: it may contain a bracket or a star.
        own = [pattern] if pattern in names else sorted((n for n in names if fnmatchcase(n, pattern)), key=natural)
        if not own:
            raise DataError(f"{where}: {unknown(f'column for `{key}`', pattern, names)}")
        found += [name for name in own if name not in found]
    return found


def read_schema(path: Path) -> dict[str, str]:
    """The names and types of the columns."""
    reader = _reader(path)
    return {field.name: str(field.type) for field in reader.schema}


def read_table(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns by name: (rows,) numbers or text, or (rows, n) for columns of lists of equal length."""
    reader, where = _reader(path), str(path)
    present = [field.name for field in reader.schema]
    for name in names:
        if name not in present:
            raise DataError(f"{where}: {unknown('column', name, present)}")
    if len(set(present)) < len(present):
        twice = sorted({name for name in present if present.count(name) > 1})
        raise DataError(f"{where}: the column {twice[0]!r} is there more than once. Rename one.")
    table = reader.read(list(dict.fromkeys(names)))
    return {name: _array(where, name, table.column(name)) for name in dict.fromkeys(names)}


class _Reader:
    """A file whose schema is known and whose columns are not read yet."""

    def __init__(self, schema: Any, read: Any):
        self.schema, self.read = schema, read


def _reader(path: Path) -> _Reader:
    file = existing_file(path)
    if file.suffix.lower() not in SUFFIXES:
        raise DataError(f"{file}: the suffix is {file.suffix or 'missing'}, expected {' or '.join(SUFFIXES)}")
    pyarrow = require("pyarrow", "tables", PURPOSE)
    try:
        if file.suffix.lower() == ".csv":
            csv = require("pyarrow.csv", "tables", PURPOSE)
            whole = csv.read_csv(file)
            return _Reader(whole.schema, whole.select)
        parquet = require("pyarrow.parquet", "tables", PURPOSE)
        opened = parquet.ParquetFile(file)
        _check_size(file, opened.metadata)
        return _Reader(opened.schema_arrow, lambda names: opened.read(columns=names))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split())[:160]
        damaged = DataError(f"{file}: cannot be read as a table ({text}); it is damaged or of another kind.")
        raise unreadable(file, error, damaged) from error


def _check_size(file: Path, metadata: Any) -> None:
    """A small Parquet file may declare more rows than memory holds: equal values take no space."""
    declared = 8 * metadata.num_rows * metadata.num_columns
    if declared > free_host_memory():
        raise DataError(
            f"{file}: declares {metadata.num_rows} rows of {metadata.num_columns} columns, {declared / 1e9:.1f} GB, "
            f"and {free_host_memory() / 1e9:.1f} GB are free; not read."
        )


def _array(where: str, name: str, column: Any) -> np.ndarray:
    types = require("pyarrow", "tables", PURPOSE).types
    if column.null_count:
        row = column.is_null().to_numpy(zero_copy_only=False).argmax() if hasattr(column, "is_null") else 0
        raise fail(where, name, f", row {row}: the value is missing. Fill it, or remove the row.")
    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(where, name, column.combine_chunks())
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if types.is_timestamp(kind) or types.is_duration(kind):
        return column.to_numpy().astype("int64") / 1e9 if "ns" in str(kind) else column.cast("int64").to_numpy() * 1.0
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return np.asarray(column.to_pylist(), np.str_)
    raise fail(where, name, f" has the type {kind}; expected numbers, flags, text, or lists of numbers.")


def _lists(where: str, name: str, column: Any) -> np.ndarray:
    values = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    rows = len(column)
    width = len(values) // rows if rows else 0
    lengths = {len(each) for each in column} if rows and len(values) != width * rows else {width}
    if len(lengths) != 1 or not width:
        raise fail(where, name, f" has lists of {min(lengths)} to {max(lengths)} numbers; expected equal lengths.")
    if column.flatten().null_count or values.dtype.kind not in "biuf":
        raise fail(where, name, f" has lists of {column.type.value_type}, or missing values; expected numbers.")
    return values.reshape(rows, width)
