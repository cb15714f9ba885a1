"""The logs of a run: JSON lines, one per event, and a copy of the numbers for TensorBoard and for a tracker.

`train.jsonl`, `eval.jsonl`, `episodes.jsonl` and `exploration.jsonl` hold nothing that depends on the clock. Each
checkpoint records their lengths. A resumed run cuts them back to these lengths, so that they end up byte for byte as
in an uninterrupted run. Everything that depends on the clock goes to `time.jsonl`, which is only appended to.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fidec.store import files
from fidec.store.jsonl import JsonlLog
from fidec.store.trackers import Tracking

REPLAYED = ("train", "eval", "episodes", "exploration")
LAZY = ("exploration",)  # created with its first row, so that a run without an online phase has none


class TensorBoardLog:
    """Scalars as TensorBoard events.

    tensorboardX's usual writer passes events to a thread. If a full disk ends that thread, training waits for it for
    ever. All its writers open the file by its path, where another run may be by then.
    """

    def __init__(
        self, directory: str | Path, purge_step: int | None = None, verify: Callable[[], None] = files.nothing
    ):
        from tensorboardX.record_writer import masked_crc32c

        # The message types are created at import, so a type checker does not see them.
        event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
        summary_pb2 = importlib.import_module("tensorboardX.proto.summary_pb2")
        self._event, self._summary, self._checksum = event_pb2.Event, summary_pb2.Summary, masked_crc32c
        self.directory, now = Path(directory), time.time_ns()
        # TensorBoard reads the seconds. Without the rest a quick resume would continue the earlier file.
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now % 10**9:09d}.{os.getpid()}"
        with files.writing(self.directory, "TensorBoard's events"):
            files.make_directory(self.directory, verify)
            self._file = open(files.open_to_append(self.directory / name, verify), "ab")  # noqa: SIM115
            self._append(file_version="brain.Event:2")
            if purge_step is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._append(step=purge_step, session_log=start)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write those of `values` that are single numbers."""
        numbers = {tag: files.to_builtin(value) for tag, value in values.items()}
        scalars = [
            self._summary.Value(tag=tag, simple_value=float(number))
            for tag, number in numbers.items()
            if isinstance(number, int | float)
        ]
        if not scalars:
            return
        with files.writing(self.directory, "TensorBoard's events"):
            self._append(step=step, summary=self._summary(value=scalars))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be flushed was reported when it was written
            self._file.close()

    def _append(self, **values: Any) -> None:
        """Write an event as a record of TensorFlow: its length and its bytes, each with a checksum."""
        data = self._event(wall_time=time.time(), **values).SerializeToString()
        for part in (struct.pack("<Q", len(data)), data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))
        self._file.flush()
        os.fsync(self._file.fileno())


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

    def resume(self, positions: Mapping[str, int] | None, step: int = 0, salvage: bool = False) -> list[str]:
        """Cut the logs back to their `positions` at the checkpoint of `step`; None if the run starts from nothing.

        A log that has no position was not there when the checkpoint was made. TensorBoard is told to hide what it
        has of later steps. A log that was changed is an error. With `salvage` its whole rows stay, and the result
        says what is lost.
        """
        self._verify()
        lost = []
        for name in REPLAYED:
            position = int((positions or {}).get(name, 0))
            if position or name in self._logs:
                # An episode online may be logged before the updates of its steps are made.
                latest = None if name in LAZY else step
                lost.append(self._open(name).cut_back(position, latest, salvage))
        self._purge_step = step + 1 if positions else 0
        return [text for text in lost if text is not None]

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
