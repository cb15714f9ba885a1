"""One run of a suite or a sweep: what the scheduler, the display and the cost estimate know of it.

A job can be started again at any time: a finished run is skipped, an interrupted one is resumed. All that is known
of a job is in its run directory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fidec.bench.suite import Plan, Variant
from fidec.store.jsonl import parse_line
from fidec.store.lock import is_held, is_locked
from fidec.store.records import ROWS
from fidec.store.rundir import LOCK, RunDirectory, check_no_results
from fidec.train.config import RunConfig
from fidec.train.stored import read_config

RESUME = ("train", "--resume")  # and the run directories


class Progress(NamedTuple):
    """How far a job is, read from its logs."""

    step: int
    rate: float | None  # steps a second
    left: float | None  # seconds to the end of the phase; the speed of the online phase is not known before it begins
    score: float | None  # of the last evaluation
    flow: int = 0  # updates of the behaviour flow, while it is trained before the rest


class RunJob(ABC):
    """One method on one task with one seed."""

    variant: Variant
    plan: Plan
    seed: int
    directory: Path  # runs that differ only in their seeds are side by side, named by `seed_name`
    data_dir: Path | None  # None: the cache directory

    @property
    @abstractmethod
    def task(self) -> str:
        """The name of its task or environment."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For messages."""

    @abstractmethod
    def data(self) -> str:
        """The source of its data."""

    @abstractmethod
    def arguments(self) -> list[str]:
        """The arguments of `fidec train` that start it, without seed and directory."""

    @abstractmethod
    def check_config(self, found: RunConfig, any_data: bool) -> None:
        """Raise an error if the directory holds another run than asked for. With `any_data` its data may differ."""

    @abstractmethod
    def check_environment(self) -> None:
        """Raise an error if its environment does not exist. None is made."""

    @property
    def log(self) -> Path:
        """The output of its process, or which log has it. It is beside the run directory and locked meanwhile."""
        return self.directory.with_suffix(".log")

    def state(self, any_data: bool = False) -> str:
        """`new`, or the state in the run directory. A killed run still says `running`.

        ConfigError if the directory holds another run than asked for, RunError if the run is damaged.
        """
        if not (self.directory / "config.json").exists():
            check_no_results(self.directory)
            return "new"
        directory = RunDirectory.open(self.directory, read_only=True)
        self.check_config(read_config(directory), any_data)
        return (directory.read_status() or {"state": "failed"})["state"]

    def reason(self) -> str | None:
        """Why the run failed, as its run directory says."""
        status = RunDirectory.open(self.directory, read_only=True).read_status()
        return (status or {}).get("reason")

    def is_busy(self) -> bool:
        """Whether a process works on it: one that a scheduler started, or any other."""
        return is_locked(self.log) or self.is_busy_elsewhere()

    def is_busy_elsewhere(self) -> bool:
        """Whether a process holds its run directory."""
        return is_held(self.directory / LOCK)

    def progress(self) -> Progress:
        """Read from the ends of its logs, also while it runs."""
        train, score = last_row(self.directory / "train.jsonl"), last_row(self.directory / "eval.jsonl")
        times = [last_row(self.directory / "time.jsonl", key) for key in ("steps_per_second", "evaluation")]
        step, plan = train.get("step", 0), self.plan
        begin, end = (0, plan.steps) if step < plan.steps or not plan.online_steps else (plan.steps, plan.total)
        rate = times[0].get("time/steps_per_second") if times[0].get("step", 0) > begin else None
        evaluations = sum(score.get("step", 0) < due <= end for due in plan.evaluations)
        left = (end - step) / rate + evaluations * times[1].get("time/evaluation", 0.0) if rate else None
        flow = 0 if step else last_row(self.directory / "flow" / "train.jsonl").get("step", 0)
        return Progress(step, rate, left, score.get("evaluation/score"), flow)


def command(jobs: Sequence[RunJob]) -> list[str]:
    """The arguments of `fidec` that start or resume these runs in one process. They differ only in their seeds."""
    if jobs[0].state() != "new":
        return [*RESUME, *(str(job.directory) for job in jobs)]
    seeds = [str(job.seed) for job in jobs]
    return ["train", *jobs[0].arguments(), "--seeds", *seeds, "--out", str(jobs[0].directory.parent)]


def check_environments(jobs: Sequence[RunJob]) -> None:
    """Raise an error if an environment does not exist, before any process starts. None is made."""
    for job in {job.task: job for job in jobs}.values():
        job.check_environment()


def read_end(path: Path, size: int = 4096) -> list[str]:
    """The lines in the last bytes of a file; the first may be cut."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def last_row(path: Path, key: str = "") -> dict[str, Any]:
    """The last row of a JSON log that contains `key`; empty if there is none. Incomplete lines are skipped.

    Between two evaluations there may be hundreds of other rows, so a large part of the file is read.
    """
    for line in reversed(read_end(path, 65_536)):
        if key in line and line.startswith("{"):
            with suppress(ValueError):
                return parse_line(line.encode(), ROWS[path.stem])
    return {}
