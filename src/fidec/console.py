"""Progress on stderr: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

WINDOW = 60.0  # seconds over which the speed is measured


class Output:
    """Lines on stderr. `console` is rich's, for live displays, or None if stderr is not a terminal.

    With a `clock` every line begins with the seconds since the start.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] | None = None):
        self._stream = stream or sys.stderr
        self._clock, self._begin = clock, clock() if clock else 0.0
        self.console: Any = None
        if self._stream.isatty():
            from rich.console import Console

            self.console = Console(file=self._stream)

    def print(self, text: str) -> None:
        """Print a line, above a live display if there is one."""
        if self._clock is not None:
            text = f"[{self._clock() - self._begin:5.0f} s] {text}"
        with contextlib.suppress(OSError):  # a closed pipe (`| head`) must not end a training run
            if self.console is not None:
                self.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=self._stream, flush=True)


class Progress:
    """Count, speed, time left and named values of work that begins at `start` and ends at `total`.

    with Progress(total, start) as progress:
        progress.update(step, loss=0.12)
        progress.update(step, score=0.4)   # values stay until they are given again
        progress.message("saved")          # a line above the bar

    `total` is None if it is not known. `unit` is the name of one thing that is counted; "MB" counts bytes. Unless
    `enabled`, only messages are shown.
    """

    def __init__(
        self,
        total: int | None,
        start: int = 0,
        *,
        name: str = "",
        unit: str = "step",
        enabled: bool = True,
        stream: TextIO | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total, self.step = total, start
        self.values: dict[str, float | str] = {}
        self._name, self._unit, self._enabled = name, unit, enabled
        self._output, self._every, self._clock = Output(stream), every, clock
        self._marks = deque([(clock(), start)])
        self._printed: float | None = None  # when the last line was printed
        self._last_line = ""
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.stop()
            self._bar = None
        elif kind is None and self._printed is not None and self.line() != self._last_line:
            self._output.print(self.line())

    def restart(self, step: int | None = None, total: int | None = None) -> None:
        """Measure the speed from now on, at this step and up to this total if they are given."""
        self.step = self.step if step is None else step
        self.total = self.total if total is None else total
        self._marks = deque([(self._clock(), self.step)])

    def advance(self, count: int = 1, **values: float | str) -> None:
        self.update(self.step + count, **values)

    def update(self, step: int, **values: float | str) -> None:
        self.step = step
        self.values.update(values)
        now = self._clock()
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW:
            self._marks.popleft()
        if not self._enabled:
            return
        if self._output.console is not None:
            try:
                self._show_bar()
            except OSError:  # the terminal was closed, which must not end a training run
                self._enabled = False
        elif self._printed is None or now - self._printed >= self._every:
            self._printed, self._last_line = now, self.line()
            self._output.print(self._last_line)

    def _show_bar(self) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
            self._bar = Bar(*columns, console=self._output.console)
            self._task = self._bar.add_task("")
            self._bar.start()
        self._bar.update(self._task, completed=self.step, total=self.total, description=self.line())

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._output.print(text)

    @property
    def rate(self) -> float:
        """Steps per second in the last minute; 0 while unknown."""
        (first_time, first_step), (last_time, last_step) = self._marks[0], self._marks[-1]
        return (last_step - first_step) / (last_time - first_time) if last_time > first_time else 0.0

    def line(self) -> str:
        parts, rate = [self._count()], self.rate
        if rate > 0 and self._unit == "MB":
            parts.append(f"{rate / 1e6:.2f} MB/s")
        elif rate > 0:
            parts.append(f"{rate:.3g} {self._unit}s/s" if rate < 100 else f"{rate:.0f} {self._unit}s/s")
        parts += [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.values.items()
        ]
        if rate > 0 and self.total is not None and self.step < self.total:
            parts.append(f"{duration((self.total - self.step) / rate)} left")
        return (f"{self._name}: " if self._name else "") + "  ".join(parts)

    def _count(self) -> str:
        if self._unit == "MB":
            return "/".join(f"{count / 1e6:.1f}" for count in (self.step, self.total) if count is not None) + " MB"
        return f"{self._unit} {self.step}" + (f"/{self.total}" if self.total is not None else "")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
