"""How far the making of a data set or of an expert is: a bar on a terminal, else a line now and then; on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class RowProgress:
    """Rows made, rows per second and time left. Rows of an earlier run count as done, not as speed."""

    def __init__(self, name: str, total: int, done: int, *, enabled: bool, every: float = 10.0, unit: str = "rows"):
        self._name, self._total, self._done, self._first = name, total, done, done
        self._unit, self._note = unit, ""
        self._enabled, self._every = enabled, every
        self._start = self._last = time.monotonic()
        self._bar = self._open_bar() if enabled and sys.stderr.isatty() else None

    def _open_bar(self):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
        bar = Progress(*columns, console=Console(stderr=True))
        self._task = bar.add_task(self._name, total=self._total, completed=self._done, status=self._status())
        return bar

    def _status(self) -> str:
        made, seconds = self._done - self._first, time.monotonic() - self._start
        text = f"{self._done:,} of {self._total:,} {self._unit}"
        if not made:
            return text
        left = (self._total - self._done) * seconds / made
        speed = f"{made / seconds:,.0f} {self._unit}/s, {int(left) // 60}:{int(left) % 60:02d} left"
        return ", ".join(part for part in (text, speed, self._note) if part)

    def advance(self, rows: int, note: str = "") -> None:
        """Count rows; zero just refreshes the clock. The note stays until there is another."""
        self._done += rows
        self._note = note or self._note
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, status=self._status())
        elif self._enabled and time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self.say(f"{self._name}: {self._status()}")

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> RowProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._enabled and kind is None:
            self.say(f"{self._name}: {self._status()}")
