"""The display of a running suite on stderr: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from rich.live import Live
from rich.table import Table

from fidec.bench.jobs import Job, Progress
from fidec.console import Output, duration

LINES_EVERY = 60.0  # seconds between the lines of a running job, without a terminal
READ_EVERY = 1.0  # seconds between two reads of the logs of running jobs


class Board:
    """Shows what the scheduler does; `with Board(jobs) as board:`."""

    def __init__(
        self, jobs: Sequence[Job], stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self._output, self._clock = Output(stream, clock), clock
        self._names = {job: f"{number}/{len(jobs)} {job.name}" for number, job in enumerate(jobs, 1)}
        self._counts = {"done": 0, "failed": 0, "no data": 0}
        self._printed, self._read = clock(), float("-inf")
        self._live: Live | None = None
        if self._output.console is not None:
            self._live = Live(console=self._output.console, auto_refresh=False, transient=True)

    def __enter__(self) -> Board:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def name(self, job: Job) -> str:
        return self._names[job]

    def print(self, text: str) -> None:
        self._output.print(text)

    def job_started(self, job: Job, how: str, log: Path) -> None:
        self.print(f"{self.name(job)}: {how}; its output is in {log}")

    def job_ended(self, job: Job, state: str, detail: str = "") -> None:
        self._counts[state] += 1
        self.print(f"{self.name(job)}: {detail or state}")

    def update(self, running: Sequence[Job], waiting: int) -> None:
        now = self._clock()
        if self._live is not None and now - self._read >= READ_EVERY:
            self._read = now
            self._live.update(self._table(running, waiting), refresh=True)
        elif self._live is None and now - self._printed >= LINES_EVERY:
            self._printed = now
            for job in running:
                self.print(f"{self.name(job)}: {'  '.join(filter(None, cells(job, job.progress())))}")

    def _table(self, running: Sequence[Job], waiting: int) -> Table:
        counts = ", ".join(f"{count} {state}" for state, count in {**self._counts, "waiting": waiting}.items())
        table = Table(caption=f"{counts}; Ctrl-C stops all, the same command continues", caption_justify="left")
        for column in ("job", "step", "speed", "left", "last score"):
            table.add_column(column, overflow="fold")
        for job in running:
            table.add_row(self.name(job), *cells(job, job.progress()))
        return table


def cells(job: Job, progress: Progress) -> tuple[str, str, str, str]:
    """Step, speed, time left and last score as text."""
    until = "left" if progress.step >= job.plan.steps or not job.plan.online_steps else "to the online phase"
    before = f"flow first, update {progress.flow}" if progress.flow else "starting"
    return (
        f"step {progress.step}/{job.plan.total}",
        f"{progress.rate:.0f} steps/s" if progress.rate else before,
        f"{duration(progress.left)} {until}" if progress.left is not None else "",
        f"score {progress.score:.1f}" if progress.score is not None else "",
    )
