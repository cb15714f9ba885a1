"""MCAP recordings (rosbag2's default format) as tables: a column is a field of a topic, such as `/joints.position`.

Messages of different topics have different times. A row is a message of one topic, the clock; every other column has
the last value that was logged before. Rows before the first message of a column are left out. ROS 2 messages (CDR,
with their definitions in the file) and JSON are decoded; other topics, images and lists of messages are no columns.
Columns are in the order of the names of their topics, because messages come at random, and then as in the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.columns import existing_file, fail
from fidec.data.memory import free_host_memory, unreadable
from fidec.data.tables import Table, natural
from fidec.errors import ConfigError, DataError
from fidec.extras import require
from fidec.register import unknown

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
            self.types |= {f"{topic}.{name}": kind for name, kind in _fields(messages[topic])}

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
            last |= {name: _value(message, path) for name, (own, path) in paths.items() if own == topic}
            if topic == self.clock and len(last) == len(paths):
                rows.append([time / 1e9 if name == TIME else last[name] for name in chosen])
        if not rows:
            raise DataError(f"{self.file}: no message of {self.clock} comes after a message of every other column")
        where = str(self.file)
        return {name: _array(where, name, [row[at] for row in rows]) for at, name in enumerate(chosen)}

    def _split(self, name: str) -> tuple[str, list[str]]:
        topic = max((each for each in self.topics if name.startswith(f"{each}.")), key=len)
        return topic, name[len(topic) + 1 :].split(".")

    def _messages(self, topics: set[str] | None, first: bool = False) -> Iterator[tuple[str, int, Any]]:
        """(topic, time in ns, message) in the order of time; with `first` one message of each topic."""
        with _naming_damage(self.file), open(self.file, "rb") as stream:
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


@contextmanager
def _naming_damage(file: Path) -> Iterator[None]:
    """Turn what the parsers raise into a DataError."""
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:  # any error of a parser on hostile bytes
        text = " ".join(str(error).split())[:160]
        damaged = DataError(f"{file}: cannot be read as MCAP ({type(error).__name__}: {text}); it is damaged.")
        raise unreadable(file, error, damaged) from error


def _check_sizes(file: Path, summary: Any) -> None:
    """A small file may declare chunks that memory cannot hold."""
    largest = max((chunk.uncompressed_size for chunk in summary.chunk_indexes), default=0)
    if largest > free_host_memory() / 4:
        free = free_host_memory() / 1e9
        raise DataError(f"{file}: has a chunk of {largest / 1e9:.1f} GB, and {free:.1f} GB are free; not read.")


def _fields(message: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """(name, type) of the numbers, flags, texts and vectors of a message."""
    for name in message if isinstance(message, dict) else getattr(type(message), "__slots__", ()):
        value, full = _value(message, [name]), f"{prefix}{name}"
        if isinstance(value, bool | int | float | str):
            yield full, {bool: "bool", int: "int64", float: "double", str: "string"}[type(value)]
        elif _is_vector(value):
            yield full, f"list of {len(value)}"
        elif depth < _DEEPEST and not isinstance(value, list | tuple | bytes):
            yield from _fields(value, f"{full}.", depth + 1)


def _is_vector(value: Any) -> bool:
    if isinstance(value, bytes | str | dict) or not hasattr(value, "__len__") or not 0 < len(value) <= _LONGEST:
        return False
    return all(isinstance(each, bool | int | float) for each in value)


def _value(message: Any, path: Sequence[str]) -> Any:
    for name in path:
        message = message[name] if isinstance(message, dict) else getattr(message, name)
    return message


def _array(where: str, name: str, values: list[Any]) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.zeros(0, object)
    if array.dtype.kind not in "biufU" or array.ndim > 2:
        raise fail(where, name, " has lists of different lengths, or of something else than numbers.")
    return array
