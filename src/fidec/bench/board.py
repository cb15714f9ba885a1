"""What a running suite shows: a live table on a terminal, lines elsewhere. Always on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.live import Live
from rich.table import Table

from fidec.bench.cost import duration
from fidec.bench.jobs import Job, Standing
from fidec.bench.schedule import Outcome
from fidec.console.progress import Output

LINES_EVERY = 60.0  # seconds between the lines of a job that runs, where there is no terminal
LOOKS_EVERY = 1.0  # seconds between two looks into the logs of the jobs that run


class Board:
    """The watcher of a schedule; `with Board(jobs) as board:`."""

    def __init__(
        self, jobs: Sequence[Job], stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self._output = Output(stream)
        self._clock, self._begin = clock, clock()
        self._names = {job: f"{number}/{len(jobs)} {job.name}" for number, job in enumerate(jobs, 1)}
        self._counts = {"done": 0, "failed": 0, "no data": 0}
        self._printed, self._looked = self._begin, float("-inf")
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

    def say(self, text: str) -> None:
        self._output.print(f"[{self._clock() - self._begin:5.0f} s] {text}")

    def begins(self, job: Job, how: str) -> None:
        self.say(f"{self.name(job)}: {how}; its output is in {job.log}")

    def ends(self, outcome: Outcome) -> None:
        self._counts[outcome.state] += 1
        self.say(f"{self.name(outcome.job)}: {outcome.detail or outcome.state}")

    def shows(self, running: Sequence[Job], waiting: int) -> None:
        now = self._clock()
        if self._live is not None and now - self._looked >= LOOKS_EVERY:
            self._looked = now
            self._live.update(self._table(running, waiting), refresh=True)
        elif self._live is None and now - self._printed >= LINES_EVERY:
            self._printed = now
            for job in running:
                self.say(f"{self.name(job)}: {'  '.join(filter(None, cells(job, job.standing())))}")

    def _table(self, running: Sequence[Job], waiting: int) -> Table:
        counts = ", ".join(f"{count} {state}" for state, count in {**self._counts, "waiting": waiting}.items())
        table = Table(caption=f"{counts}; Ctrl-C stops all, the same command goes on", caption_justify="left")
        for column in ("job", "step", "speed", "left", "last score"):
            table.add_column(column, overflow="fold")
        for job in running:
            table.add_row(self.name(job), *cells(job, job.standing()))
        return table


def cells(job: Job, standing: Standing) -> tuple[str, str, str, str]:
    """Step, speed, time left and last score, as words."""
    until = "left" if standing.step >= job.plan.steps or not job.plan.online_steps else "to the online phase"
    return (
        f"step {standing.step}/{job.plan.total}",
        f"{standing.rate:.0f} steps/s" if standing.rate else "starting",
        f"{duration(standing.left)} {until}" if standing.left is not None else "",
        f"score {standing.score:.1f}" if standing.score is not None else "",
    )
