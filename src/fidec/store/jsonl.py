"""Files of JSON lines, one per event. Every line ends with a checksum of the rest.

    {"step": 1000, "training/loss": 0.25, "crc32": "9f1c07aa"}

The checksum is the CRC-32 of the line without that field, so a line is still JSON for any other program. Lines of
older versions have none and are read without the check.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from fidec.errors import RunError
from fidec.store import files
from fidec.store.schema import check, parse_json

# The end of a line. Any key and value match, because one of them may be damaged; damaged punctuation is not JSON.
_END = re.compile(rb', "(.{5})": "(.{8})"\}', re.DOTALL)
_LENGTH = len(b', "crc32": "01234567"}')


class Event(TypedDict):
    """Every event is of a step. Its other values are numbers, text, or objects of these."""

    step: int


def line_of(event: Mapping[str, Any]) -> bytes:
    """An event as a line, with its checksum. NaN and infinity, which JSON cannot hold, are written as null."""
    text = json.dumps(files.to_builtin(event), allow_nan=False).encode()
    return b'%s, "crc32": "%08x"}\n' % (text[:-1], zlib.crc32(text))


def parse_line(line: bytes, schema: Any = dict) -> dict[str, Any]:
    """The event of a line without its line end; ValueError if it is damaged or does not fit its schema."""
    if end := _END.fullmatch(line[-_LENGTH:]):
        line = line[:-_LENGTH] + b"}"
        if end.groups() != (b"crc32", b"%08x" % zlib.crc32(line)):
            raise ValueError("it does not have its checksum")
    event = parse_json(line)
    check(event, Event)
    check(event, schema)
    return event


def read_jsonl(path: str | Path, schema: Any = dict) -> list[dict[str, Any]]:
    """Every event of a JSON-lines file. An unfinished last line, of a crash or of a running run, is left out."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    events = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            events.append(parse_line(line, schema))
        except ValueError as error:
            raise RunError(f"{path}, line {number} was changed or damaged: {error}") from error
    return events


class JsonlLog:
    """An append-only file of JSON lines."""

    def __init__(self, path: str | Path, verify: Callable[[], None] = files.nothing):
        self.path, self._verify = Path(path), verify
        with files.writing(self.path, self.path.name):
            self._file = files.open_to_append(self.path, verify)
            self._drop_torn_line()

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event. If the disk is full the file keeps its whole lines and `RunError` is raised."""
        self.write_all([event])

    def write_all(self, events: Iterable[Mapping[str, Any]]) -> None:
        data = memoryview(b"".join(map(line_of, events)))
        before = self.position()
        with files.writing(self.path, self.path.name):
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, before)
                raise

    def position(self) -> int:
        """The length of the file in bytes."""
        return os.fstat(self._file).st_size

    def sync(self) -> None:
        with files.writing(self.path, self.path.name):
            os.fsync(self._file)

    def cut_back(self, position: int, step: int | None = None, salvage: bool = False) -> str | None:
        """Cut the file back to its length at a checkpoint, after a check of the lines before.

        `RunError` if they are not all there. With `salvage` those of them that are whole, and not later than `step`
        if that is given, stay instead, and the result says what is lost.
        """
        size = min(position, self.position())
        with files.writing(self.path, self.path.name):
            *lines, torn = os.pread(self._file, size, 0).split(b"\n")
        rows = [_try_to_parse(line) for line in lines]
        damaged = [str(number) for number, row in enumerate(rows, start=1) if row is None]
        found = []
        if size < position or torn:
            found.append(f"it has {self.position()} bytes, and no line ends at byte {position} as in the checkpoint")
        if damaged:
            found.append(f"damaged lines: {', '.join(damaged[:10])}{' and more' if len(damaged) > 10 else ''}")
        if not found:
            with files.writing(self.path, self.path.name):
                os.ftruncate(self._file, position)
            return None
        what = f"{self.path} was changed or lost ({'; '.join(found)})"
        if not salvage:
            raise RunError(
                f"{what}. Restore it from a copy, or continue without the lost rows: add --salvage to --resume."
            )
        pairs = [(line, row.get("step")) for line, row in zip(lines, rows, strict=True) if row is not None]
        kept = [(line, own) for line, own in pairs if step is None or not isinstance(own, int) or own <= step]
        self._replace(b"".join(line + b"\n" for line, _ in kept))
        return f"{what}: " + (
            f"the last of {len(kept)} rows left is of step {kept[-1][1]}" if kept else "none of its rows are left"
        )

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _replace(self, content: bytes) -> None:
        self.close()
        files.atomic_write(self.path, content, self._verify)
        with files.writing(self.path, self.path.name):
            self._file = files.open_to_append(self.path, self._verify)

    def _drop_torn_line(self) -> None:
        """Cut off the half of a line that a process killed inside a write leaves behind."""
        end = size = self.position()
        while end:
            start = max(0, end - 65536)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)


def _try_to_parse(line: bytes) -> dict[str, Any] | None:
    try:
        return parse_line(line)
    except ValueError:
        return None
