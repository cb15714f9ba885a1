"""How far a download is: a bar with its rate on a terminal, else a plain line now and then; on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any


class Meter:
    """Bytes of one file. A resumed part counts as done, not as speed."""

    def __init__(self, name: str, *, every: float = 10.0):
        self._name, self._every = name, every
        self._bar: Any = None
        self._task: Any = None
        self._total: int | None = None
        self._done = self._first = 0
        self._start = self._last = time.monotonic()

    def restart(self, total: int | None, done: int) -> None:
        """A transfer begins, with `done` bytes already here."""
        self._total, self._done, self._first = total, done, done
        self._start = self._last = time.monotonic()
        if not sys.stderr.isatty():
            return
        self.close()
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Progress("{task.description}", *columns, console=Console(stderr=True))
        self._task = self._bar.add_task(self._name, total=total, completed=done)
        self._bar.start()

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self.say(f"{self._name}: {self._status()}")

    def _status(self) -> str:
        rate = (self._done - self._first) / max(time.monotonic() - self._start, 1e-9) / 1e6
        of = f" of {self._total / 1e6:.1f}" if self._total else ""
        return f"{self._done / 1e6:.1f}{of} MB, {rate:.2f} MB/s"

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
