"""Run the jobs of a suite or a sweep in parallel processes. This is the only module of the package that starts runs.

The log of a job is locked before its process starts, and the process inherits the lock with its output. The lock is
released when the process ends, even if the suite was killed before. So no job is run by two processes at once: a
suite that finds a job locked waits for it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from fidec.bench import data as suite_data
from fidec.bench import table
from fidec.bench.board import Board
from fidec.bench.cost import estimate
from fidec.bench.job import RunJob, check_environments, read_end
from fidec.bench.jobs import Job
from fidec.bench.suite import Scale
from fidec.console import duration
from fidec.errors import RunError
from fidec.launch import launch, share_cores
from fidec.store import files
from fidec.store.lock import lock_open_file
from fidec.train.loop import Signals, catch_signals
from fidec.train.run import Preempted

PROGRAM = ("-m", "fidec")
AnyJob = TypeVar("AnyJob", bound=RunJob)
PAUSE = 0.2  # seconds between two checks of the processes


class Watcher(Protocol):
    """Shows what happens: a `Board`."""

    def job_started(self, job: RunJob, how: str) -> None: ...
    def job_ended(self, job: RunJob, state: str, detail: str = "") -> None: ...
    def update(self, running: Sequence[RunJob], waiting: int) -> None: ...


class Running(NamedTuple):
    """A job with its process; None if another program started the process."""

    job: RunJob
    process: subprocess.Popen | None

    @property
    def has_ended(self) -> bool:
        return not self.job.is_busy() if self.process is None else self.process.poll() is not None


def run_suite(jobs: Sequence[Job], scale: Scale | None, out: Path, *, workers: int, rows: int) -> int:
    """Provide the data, run every job that is not done, and print the table. An error names the jobs that failed."""
    problems = run_all(jobs, out, workers, lambda left, say: suite_data.provide(left, scale, rows, say))
    report = table.report(jobs, scale)
    if report.runs:
        text = table.markdown(report)
        files.atomic_write(out / "table.md", text + "\n")
        print(text)
    if problems:
        raise RunError(". ".join(problems))
    return 0


def run_all(
    jobs: Sequence[AnyJob],
    out: Path,
    workers: int,
    provide: Callable[[list[AnyJob], Callable[[str], None]], Mapping[AnyJob, str]] = lambda left, say: {},
) -> list[str]:
    """Run every job that is not done, and show what happens. The result says how many failed, and which.

    `provide` makes missing data, and returns the jobs that have none, with the reason.
    """
    states_before, damaged = read_states(jobs)  # another configuration is an error before anything starts
    left = [job for job, state in states_before.items() if state != "done"]
    check_environments(left)
    with files.writing(out, "the directory of the runs"):
        out.mkdir(parents=True, exist_ok=True)
    with Board(jobs) as board:
        for job, state in states_before.items():
            if state == "done":
                board.job_ended(job, "done", "there already")
        for job, reason in damaged.items():
            board.job_ended(job, "failed", reason)
        without = provide(left, board.print)
        for job, reason in without.items():
            board.job_ended(job, "no data", f"has no data. {reason}")
        with catch_signals() as signals:
            states = run_jobs([job for job in left if job not in without], workers, board, signals)
        if signals.received is not None:
            stopped = [board.name(job) for job, state in states.items() if state == "stopped"]
            where = f"stopped in {'; '.join(stopped)}. " if stopped else ""
            raise Preempted(signals.received, f"{where}The same command continues from there.")
    failed = [board.name(job) for job in jobs if job in damaged or states.get(job) == "failed"]
    problems = [f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}"] if failed else []
    return problems + ([f"{len(without)} of {len(jobs)} runs have no data"] if without else [])


def read_states(jobs: Sequence[AnyJob]) -> tuple[dict[AnyJob, str], dict[AnyJob, str]]:
    """The state of each job, and of those whose run is damaged, which are not run, the reason instead."""
    states, damaged = {}, {}
    for job in jobs:
        try:
            states[job] = job.state()
        except RunError as error:
            damaged[job] = f"is damaged and is not run. {error}"
    return states, damaged


def run_jobs(jobs: Sequence[RunJob], workers: int, watcher: Watcher, signals: Signals) -> dict[RunJob, str]:
    """Run all jobs, `workers` at a time; the result is the state of each: done, failed or stopped.

    After a signal all processes are asked to save and stop.
    """
    waiting, states, shares = deque(jobs), {}, share_cores(workers)
    running: dict[int, Running] = {}
    environ = memory_share(workers)
    try:
        while (waiting or running) and signals.received is None:
            for slot in range(workers):
                while slot not in running and waiting:
                    job = waiting.popleft()
                    try:
                        started = start(job, shares[slot], watcher, environ)
                    except RunError as error:  # damaged since the suite began
                        states[job] = "failed"
                        watcher.job_ended(job, "failed", str(error))
                        continue
                    if started is None:
                        states[job] = "done"
                        watcher.job_ended(job, "done", "there already")
                    else:
                        running[slot] = started
            for slot in [slot for slot, each in running.items() if each.has_ended]:
                job, process = running.pop(slot)
                if process is None:  # done by another program, or to be continued here
                    waiting.appendleft(job)
                    continue
                states[job], detail = _outcome(job, process.returncode)
                watcher.job_ended(job, states[job], detail)
            watcher.update([each.job for each in running.values()], len(waiting))
            time.sleep(PAUSE)
    finally:
        _stop([each.process for each in running.values() if each.process is not None])
    return states | {each.job: "stopped" for each in running.values()}


def start(
    job: RunJob, cores: Sequence[int], watcher: Watcher, environ: Mapping[str, str] | None = None
) -> Running | None:
    """Start the process of a job, or wait for the process of another program. None: the job is done."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:  # the process inherits the open file and its lock
        if not lock_open_file(log) or job.is_busy_elsewhere():
            watcher.job_started(job, "waits for another process that runs it")
            return Running(job, None)
        state = job.state()
        if state == "done":
            return None
        words = job.command()
        given = {word.partition("=")[0].replace("_", "-") for word in words}
        if state == "new" and "--eval-envs" not in given:
            words += ["--eval-envs", str(min(len(cores), 8))]
        watcher.job_started(job, "starts" if state == "new" else "continues")
        output = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return Running(job, launch(*PROGRAM, *words, environ=environ, cores=cores, **output))


def _outcome(job: RunJob, code: int) -> tuple[str, str]:
    states, damaged = read_states([job]) if code == 0 else ({}, {})
    if damaged:
        return "failed", damaged[job]
    if states.get(job) == "done":
        return "done", ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"FAILED with exit code {code}"
    end = "\n".join(read_end(job.log)[-5:])
    return "failed", f"{how}. The end of its log, {job.log}:\n{end}"


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """Ask every process to save and stop, and wait for it. A second Ctrl-C kills them."""
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.kill()
        raise


def memory_share(workers: int) -> dict[str, str]:
    """Environment variables that share a GPU's memory: by default JAX takes three quarters of it for each process."""
    names = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # JAX accepts only one of them
    if workers == 1 or any(name in os.environ for name in names):
        return {}
    return {names[0]: f"{0.9 / workers:.3f}"}


def dry_run(jobs: Sequence[RunJob]) -> int:
    """Print the commands as a shell script, with the expected time of each as a comment; the sum on stderr."""
    states, damaged = read_states(jobs)
    left = [job for job, state in states.items() if state != "done"]
    check_environments(left)
    done = [job for job, state in states.items() if state == "done"]
    speeds = {job: estimate(job, done) for job in left}
    seconds = {job: speed.seconds(job.plan) for job, speed in speeds.items() if speed}
    for job in jobs:
        speed = speeds.get(job)
        if job in damaged:
            print(f"# {job.name}: {damaged[job]}")
        elif states[job] == "done":
            print(f"# done: {job.name}")
        elif job.is_busy():
            print(f"# runs now: {job.name}")
        else:
            cost = f"{duration(seconds[job])} ({speed.source})" if speed else "cost unknown"
            print(f"{shlex.join(['fidec', *job.command()])}  # {cost}")
    parts = [f"{len(jobs)} runs, {len(done)} done"]
    if seconds:
        parts.append(f"{len(seconds)} to go will take about {duration(sum(seconds.values()))} one after the other")
    if unknown := len(left) - len(seconds):
        parts.append(f"the cost of {unknown} is unknown")
    print(*parts, sep="; ", file=sys.stderr)
    return 0
