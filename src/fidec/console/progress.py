"""How far a run is: a bar on a terminal, an occasional line elsewhere. Always on stderr, never on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

WINDOW = 60.0  # seconds over which the speed is measured, so that compilation is soon forgotten


class Progress:
    """Shows step, speed, loss, last score and time left of a run that starts at step `start` of `total`.

    with Progress(total, start) as progress:
        progress.update(step, loss=0.12)
        progress.update(step, score=0.4)   # fields stay until they are given again
        progress.message("saved")          # a line above the bar
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        stream: TextIO | None = None,
        every: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total = total
        self.step = start
        self.fields: dict[str, float | str] = {}
        self._stream = stream or sys.stderr
        self._every = every
        self._clock = clock
        self._marks = deque([(clock(), start)])
        self._printed: float | None = None
        self._last_line = ""
        self._bar = None

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            console = Console(file=self._stream)
            self._bar = Bar(BarColumn(bar_width=24), TextColumn("{task.description}"), console=console)
            self._task = self._bar.add_task(self.line(), total=self.total, completed=self.step)
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif kind is None and self.line() != self._last_line:
            self._print(self.line())

    def restart(self) -> None:
        """Measure the speed from now on: compiling does not count."""
        self._marks = deque([(self._clock(), self.step)])

    def update(self, step: int, **fields: float | str) -> None:
        self.step = step
        self.fields.update(fields)
        now = self._clock()
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW:
            self._marks.popleft()
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=self.line())
        elif self._printed is None or now - self._printed >= self._every:
            self._printed, self._last_line = now, self.line()
            self._print(self._last_line)

    def message(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            self._print(text)

    @property
    def rate(self) -> float:
        """Steps per second of late; 0 while unknown."""
        (first_time, first_step), (last_time, last_step) = self._marks[0], self._marks[-1]
        return (last_step - first_step) / (last_time - first_time) if last_time > first_time else 0.0

    def line(self) -> str:
        parts = [f"step {self.step}/{self.total}"]
        if self.rate > 0:
            parts.append(f"{self.rate:.3g} steps/s" if self.rate < 100 else f"{self.rate:.0f} steps/s")
        parts += [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.fields.items()
        ]
        if self.rate > 0 and self.step < self.total:
            parts.append(f"{_duration((self.total - self.step) / self.rate)} left")
        return "  ".join(parts)

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed pipe (`| head`) must not end a training run
            print(text, file=self._stream, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
