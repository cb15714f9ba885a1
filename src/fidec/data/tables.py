"""Columns of files that users have: CSV and Parquet tables, and MCAP recordings (rosbag2's default format).

A column of a recording is a field of a topic, such as `/joints.position`. Messages of different topics have different
times. A row is a message of one topic, the clock; every other column has the last value that was logged before. Rows
before the first message of a column are left out. ROS 2 messages (CDR, with their definitions in the file) and JSON
are decoded; other topics, images and lists of messages are no columns. Columns are in the order of the names of their
topics, because messages come at random, and then as in the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import existing_file, fail
from fidec.data.memory import free_host_memory, parsing
from fidec.errors import ConfigError, DataError
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
        with _parsing(self.file):
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
        with _parsing(self.file):
            table = self._select(chosen)
            return {name: _array(str(self.file), name, table.column(name)) for name in chosen}

    def stream(self, name: str, rows: int) -> Iterator[Any]:
        """The values of a column of a Parquet file as Python objects; `rows` of them are in memory at a time."""
        if name not in self.types or self._parquet is None:
            raise DataError(f"{self.file}: {unknown('column', name, self.types)}")
        with _parsing(self.file):
            for batch in self._parquet.iter_batches(rows, columns=[name]):
                yield from batch.column(0).to_pylist()


def _parsing(file: Path) -> AbstractContextManager[None]:
    return parsing(
        file, lambda text: DataError(f"{file}: cannot be read as a table ({text}); it is damaged or of another kind.")
    )


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


SUFFIX = ".mcap"
TIME = "log_time"
_LONGEST = 1024  # numbers of a list that may be a vector; longer ones are images or clouds of points
_DEEPEST = 8


def open_table(path: Path, clock: str | None = None) -> Table | Recording:
    """A table, or a recording with this clock, by the suffix of the file."""
    if path.suffix.lower() == SUFFIX:
        return Recording(path, clock)
    if clock is not None:
        raise ConfigError(f"{path}: clock is for {SUFFIX} files; a table has its rows already")
    return Table(path)


class Recording:
    """The types of the columns by name, and the columns, as in `Table`."""

    def __init__(self, path: Path, clock: str | None):
        self.file, self.clock = existing_file(path), clock
        messages = {topic: message for topic, _, message in self._messages(None, first=True)}
        self.topics = sorted(messages, key=natural)
        self.types: dict[str, str] = {TIME: "double"}
        for topic in self.topics:
            self.types |= {f"{topic}.{name}": kind for name, kind in _message_fields(messages[topic])}

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Columns by name: (rows,) numbers or text, or (rows, n) for lists of equal length."""
        if self.clock is None or self.clock not in self.topics:
            found = "is missing" if self.clock is None else f"is {self.clock!r}"
            raise DataError(
                f"{self.file}: clock {found}; expected the topic whose messages are the rows, one of "
                f"{', '.join(self.topics)}"
            )
        for name in names:
            if name not in self.types:
                raise DataError(f"{self.file}: {unknown('column', name, self.types)}")
        chosen = list(dict.fromkeys(names))
        paths = {name: self._split(name) for name in chosen if name != TIME}
        last: dict[str, Any] = {}
        rows: list[list[Any]] = []
        for topic, time, message in self._messages({self.clock, *(topic for topic, _ in paths.values())}):
            last |= {name: _message_value(message, path) for name, (own, path) in paths.items() if own == topic}
            if topic == self.clock and len(last) == len(paths):
                rows.append([time / 1e9 if name == TIME else last[name] for name in chosen])
        if not rows:
            raise DataError(f"{self.file}: no message of {self.clock} comes after a message of every other column")
        where = str(self.file)
        return {name: _message_array(where, name, [row[at] for row in rows]) for at, name in enumerate(chosen)}

    def _split(self, name: str) -> tuple[str, list[str]]:
        topic = max((each for each in self.topics if name.startswith(f"{each}.")), key=len)
        return topic, name[len(topic) + 1 :].split(".")

    def _messages(self, topics: set[str] | None, first: bool = False) -> Iterator[tuple[str, int, Any]]:
        """(topic, time in ns, message) in the order of time; with `first` one message of each topic."""
        file = self.file
        damaged = lambda text: DataError(f"{file}: cannot be read as MCAP ({text}); it is damaged.")  # noqa: E731
        with parsing(file, damaged), open(file, "rb") as stream:
            reader = require("mcap.reader", "mcap", "a recording").make_reader(stream, validate_crcs=True)
            summary = reader.get_summary()
            if summary is None:
                raise DataError(
                    f"{self.file}: has no summary: the recording was not closed. Repair it: `mcap recover`."
                )
            _check_sizes(self.file, summary)
            ros = require("mcap_ros2.decoder", "mcap", "a recording").DecoderFactory()
            start, seen = summary.statistics.message_start_time if summary.statistics else 0, set()
            for schema, channel, message in reader.iter_messages(topics=topics, log_time_order=True):
                if first and channel.topic in seen:
                    continue
                seen.add(channel.topic)
                decode = json.loads if channel.message_encoding == "json" else None
                decode = decode or ros.decoder_for(channel.message_encoding, schema)
                if decode is not None:
                    yield channel.topic, message.log_time - start, decode(message.data)
                if first and len(seen) == len({each.topic for each in summary.channels.values()}):
                    return


def _check_sizes(file: Path, summary: Any) -> None:
    """A small file may declare chunks that memory cannot hold."""
    largest = max((chunk.uncompressed_size for chunk in summary.chunk_indexes), default=0)
    if largest > free_host_memory() / 4:
        free = free_host_memory() / 1e9
        raise DataError(f"{file}: has a chunk of {largest / 1e9:.1f} GB, and {free:.1f} GB are free; not read.")


def _message_fields(message: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(name, type) of the numbers, flags, texts and vectors of a message."""
    for name in message if isinstance(message, dict) else getattr(type(message), "__slots__", ()):
        value, full = _message_value(message, [name]), f"{prefix}{name}"
        if isinstance(value, bool | int | float | str):
            yield full, {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        elif _is_vector(value):
            yield full, f"list of {len(value)}"
        elif depth < _DEEPEST and not isinstance(value, list | tuple | bytes):
            yield from _message_fields(value, f"{full}.", depth + 1)


def _is_vector(value: Any) -> bool:
    if isinstance(value, bytes | str | dict) or not hasattr(value, "__len__") or not 0 < len(value) <= _LONGEST:
        return False
    return all(isinstance(each, bool | int | float) for each in value)


def _message_value(message: Any, path: Sequence[str]) -> Any:
    for name in path:
        message = message[name] if isinstance(message, dict) else getattr(message, name)
    return message


def _message_array(where: str, name: str, values: list[Any]) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.zeros(0, object)
    if array.dtype.kind not in "biufU" or array.ndim > 2:
        raise fail(where, name, " has lists of different lengths, or of something else than numbers.")
    return array
