"""The logs of a run: files of JSON lines, one per event. Every line ends with a checksum of the rest.

    {"step": 1000, "training/loss": 0.25, "crc32": "9f1c07aa"}

The checksum is the CRC-32 of the line without that field, so a line is still JSON for any other program. Lines of
older versions have none and are read without the check.

`train.jsonl`, `eval.jsonl`, `episodes.jsonl` and `exploration.jsonl` hold nothing that depends on the clock. Each
checkpoint records their lengths. A resumed run cuts them back to these lengths, so that they end up byte for byte as
in an uninterrupted run. Everything that depends on the clock goes to `time.jsonl`, which is only appended to.
TensorBoard and a tracker get a copy of the numbers (`fidec.store.trackers`).
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
from fidec.store.trackers import TensorBoardLog, Tracking

REPLAYED = ("train", "eval", "episodes", "exploration")
LAZY = ("exploration",)  # created with its first row, so that a run without an online phase has none
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
        self.path = Path(path)
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

    def cut_back(self, position: int) -> None:
        """Cut the file back to its length at a checkpoint; `RunError` if not all lines before are there and whole."""
        size = min(position, self.position())
        with files.writing(self.path, self.path.name):
            *lines, torn = os.pread(self._file, size, 0).split(b"\n")
        damaged = [str(number) for number, line in enumerate(lines, start=1) if not _is_whole(line)]
        problems = []
        if size < position or torn:
            problems.append(
                f"it has {self.position()} bytes, and no line ends at byte {position} as in the checkpoint"
            )
        if damaged:
            problems.append(f"damaged lines: {', '.join(damaged[:10])}{' and more' if len(damaged) > 10 else ''}")
        if problems:
            raise RunError(
                f"{self.path} was changed or lost ({'; '.join(problems)}). Restore it from a copy, or start the run "
                "again with --overwrite."
            )
        with files.writing(self.path, self.path.name):
            os.ftruncate(self._file, position)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

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


def _is_whole(line: bytes) -> bool:
    try:
        parse_line(line)
    except ValueError:
        return False
    return True


class RunLog:
    """All logs of a run. Only `time` may be given values that depend on the clock."""

    def __init__(self, directory: str | Path, tensorboard: bool = True, verify: Callable[[], None] = files.nothing):
        self.directory = Path(directory)
        self._verify = verify  # raises an error if the run is no longer there, or another process has taken it
        self._logs: dict[str, JsonlLog] = {}
        for name in (*REPLAYED, "time"):
            if name not in LAZY or self._path(name).exists():
                self._open(name)
        self._use_tensorboard = tensorboard
        self._tensorboard: TensorBoardLog | None = None
        self.tracking: Tracking | None = None
        self._purge_step: int | None = None

    def train(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._verify()
        self._logs["train"].write({"step": step, **metrics})
        self._scalars(step, metrics)

    def evaluation(self, step: int, summary: Mapping[str, Any], episodes: Iterable[Mapping[str, Any]]) -> None:
        """One row per episode, then the summary, so that a summary on the disk always has its episodes."""
        self._verify()
        self._logs["episodes"].write_all({"step": step, **episode} for episode in episodes)
        self._logs["eval"].write({"step": step, **summary})
        self._scalars(step, summary)

    def exploration(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """One row for each episode of the online phase. Their means go to `train`, and so to TensorBoard."""
        rows = list(rows)
        if rows:
            self._verify()
            self._open("exploration").write_all(rows)

    def time(self, step: int, values: Mapping[str, Any]) -> None:
        self._verify()
        self._logs["time"].write({"step": step, **values})
        self._scalars(step, values)

    def positions(self) -> dict[str, int]:
        """Lengths to store in a checkpoint. The files are on the disk up to there when this returns."""
        for log in self._logs.values():
            log.sync()
        return {name: self._logs[name].position() for name in REPLAYED if name in self._logs}

    def resume(self, positions: Mapping[str, int] | None, step: int = 0) -> None:
        """Cut the logs back to their `positions` at the checkpoint of `step`; None if the run starts from nothing.

        A log that has no position was not there when the checkpoint was made. TensorBoard is told to hide what it
        has of later steps. A log that was changed is an error.
        """
        self._verify()
        for name in REPLAYED:
            position = int((positions or {}).get(name, 0))
            if position or name in self._logs:
                self._open(name).cut_back(position)
        self._purge_step = step + 1 if positions else 0

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self.tracking is not None:
            self.tracking.close()

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"

    def _open(self, name: str) -> JsonlLog:
        if name not in self._logs:
            self._logs[name] = JsonlLog(self._path(name), self._verify)
            with files.writing(self._path(name), f"{name}.jsonl"):
                files.fsync_directory(self.directory, self._verify)  # a checkpoint may refer to this file
        return self._logs[name]

    def _scalars(self, step: int, values: Mapping[str, Any]) -> None:
        if self.tracking is not None:
            self.tracking.log(step, values)
        if not self._use_tensorboard:
            return
        if self._tensorboard is None:
            self._tensorboard = TensorBoardLog(self.directory / "tb", self._purge_step, self._verify)
        self._tensorboard.write(step, values)
