"""What the scheduler adds to a job: `python -m benchmarks.schedule [--on local|ray] [--jobs 10000] [--json]`.

Each job is a process that does nothing but note that it ran. With `--inside` it is a function that takes milliseconds
in a worker of Ray, so that the scheduler and Ray are what is measured. One in a hundred kills its own process, or
worker, at its first attempt. On Ray such a job is submitted again. On this machine it is reported as failed, and a
second call of the scheduler continues it, as the same command of a user would. At the end every job must have ended
exactly once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fidec.bench import schedule
from fidec.cli.parsing import parse, print_json, print_table
from fidec.executors import EXECUTORS, Request, attempt
from fidec.store.lock import is_locked
from fidec.train.loop import Signals

# The words after PROGRAM are those of `fidec train`: --out at the first attempt, --resume RUN at the second.
JOB = """
import os, signal, sys
again = '--resume' in sys.argv
run = sys.argv[sys.argv.index('--resume') + 1] if again else sys.argv[sys.argv.index('--out') + 1] + '/seed000'
os.makedirs(run, exist_ok=True)
open(run + '/config.json', 'a').close()
if '--dies' in sys.argv and not again:
    os.kill(os.getpid(), signal.SIGKILL)
with open(run + '/ends', 'a') as file:
    file.write('x')
"""


@dataclass(frozen=True)
class BenchmarkArgs:
    """Run jobs that do nothing, and measure what each costs."""

    on: str = "local"
    """Executor: local or ray."""
    jobs: int = 1000
    """Number of jobs."""
    workers: int = 8
    """Jobs at the same time."""
    failures: float = 0.01
    """Share of the jobs whose process is killed at the first attempt."""
    inside: bool = False
    """Ray only: run the jobs in its workers, and not as processes of their own."""
    json: bool = False
    """Print as JSON."""


def run_inside(job: Mapping[str, Any]) -> int:
    """In the place of `attempt.run`: the job as a function, in the worker."""
    sys.argv = ["-c", *attempt.choose(job)[2:]]
    exec(JOB, {})
    return 0


class Job:
    """A job of its own group, with what the scheduler asks of a run."""

    seed, plan = 0, SimpleNamespace(online_steps=1)

    def __init__(self, directory: Path, dies: bool):
        self.directory, self.name, self._dies = directory / "seed000", directory.name, dies
        self.log = directory / "seed000.log"

    def state(self) -> str:
        if not (self.directory / "config.json").exists():
            return "new"
        return "done" if self.ends else "running"

    @property
    def ends(self) -> int:
        path = self.directory / "ends"
        return path.stat().st_size if path.exists() else 0

    def arguments(self) -> list[str]:
        return ["--dies"] if self._dies else []

    def is_busy_elsewhere(self) -> bool:
        return False

    def is_busy(self) -> bool:
        return is_locked(self.log)

    def reason(self) -> None: ...

    def progress(self) -> SimpleNamespace:
        return SimpleNamespace(step=0)


class Watcher:
    """Counts how often each job ended; a failure is not an end."""

    def __init__(self) -> None:
        self.ended, self.failed = Counter[str](), 0

    def print(self, text: str) -> None: ...
    def job_started(self, job: Any, how: str, log: Path) -> None: ...
    def update(self, running: Sequence[Any], waiting: int) -> None: ...

    def job_ended(self, job: Any, state: str, detail: str = "") -> None:
        self.failed += state == "failed"
        self.ended[job.name] += state == "done"


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.schedule")
    every = round(1 / args.failures) if args.failures else 0
    if args.inside and args.on != "ray":
        raise SystemExit("--inside is for --on ray: a job of this machine is a process")
    program, schedule.PROGRAM = schedule.PROGRAM, ("-c", JOB)
    before, run = os.getcwd(), attempt.run
    try:
        attempt.run = run_inside if args.inside else run
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            jobs: list[Any] = [
                Job(Path(directory, f"job{n:05d}"), bool(every) and n % every == every - 1) for n in range(args.jobs)
            ]
            row = _measure(args, jobs)
            os.chdir(before)
    finally:
        schedule.PROGRAM, attempt.run = program, run
        os.chdir(before)
    if args.json:
        print_json(row)
    else:
        print_table(tuple(row), [tuple(row.values())])
    return row


def _measure(args: BenchmarkArgs, jobs: list[Any]) -> dict[str, Any]:
    request, watcher, calls = Request(args.workers), Watcher(), 0
    start = time.perf_counter()
    with EXECUTORS.get(args.on).open(request) as pool:
        opened = time.perf_counter()
        while (left := [job for job in jobs if job.state() != "done"]) and calls < 2:
            schedule.run_jobs(left, args.workers, watcher, Signals(), pool)
            calls += 1
        seconds = time.perf_counter() - opened
    ends = Counter(job.ends for job in jobs)
    if ends != {1: len(jobs)} or set(watcher.ended.values()) != {1}:
        raise AssertionError(f"not every job ended exactly once: {dict(ends)}")
    return {
        "on": f"{args.on}, inside" if args.inside else args.on,
        "jobs": len(jobs),
        "workers": args.workers,
        "killed": sum(bool(job.arguments()) for job in jobs),
        "reported failed": watcher.failed,
        "seconds to start": round(opened - start, 1),
        "seconds": round(seconds, 1),
        "ms a job": round(1000 * seconds / len(jobs), 1),
    }


if __name__ == "__main__":
    main()
