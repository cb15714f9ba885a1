"""Run the jobs of a suite or a sweep in parallel. This is the only module of the package that starts runs.

Jobs that differ only in their seeds are trained by one process, as a pack; a single job is a pack of one. A pool of
an executor starts the processes (`fidec.executors`). The log of each job is locked before its process starts. A
process on this machine inherits the locks, which are released when it ends, even if the suite was killed before. For
a process elsewhere the suite keeps them. So no job is run by two processes at once: a suite that finds a job locked
waits. A job that its engine lost or stopped is submitted again, and continues.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, NamedTuple, Protocol, TypeVar

from fidec.bench import data as suite_data
from fidec.bench import table
from fidec.bench.jobs import RESUME, Job, SuiteJob, check_environments, command, read_end
from fidec.bench.live_table import Board
from fidec.bench.suites import Scale
from fidec.bench.time_estimate import estimate
from fidec.console import duration
from fidec.errors import ConfigError, FidecError, RunError
from fidec.executors import EXECUTORS, Handle, Pool, Request, Work
from fidec.executors.kinds.local import LocalPool
from fidec.launch import env_processes
from fidec.store import files
from fidec.store.lock import lock_open_file
from fidec.store.rundir import REPORT
from fidec.train.loop import Signals, catch_signals
from fidec.train.run import Preempted

PROGRAM = ("-m", "fidec")
AnyJob = TypeVar("AnyJob", bound=Job)
PAUSE = 0.2  # seconds between two checks of the processes
INTERRUPTED = ("new", "running", "preempted")  # states of a run that neither ended nor failed
ERRORS = (RunError.exit_code, ConfigError.exit_code)  # other exit codes are those of signals


class Watcher(Protocol):
    """Shows what happens: a `Board`."""

    def print(self, text: str) -> None: ...
    def job_started(self, job: Job, how: str, log: Path) -> None: ...
    def job_ended(self, job: Job, state: str, detail: str = "") -> None: ...
    def update(self, running: Sequence[Job], waiting: int) -> None: ...


class Running(NamedTuple):
    """A pack with its process; one job with None if another program started its process.

    `locks` holds the logs of a pack whose process is elsewhere.
    """

    jobs: Sequence[Job]
    process: Handle | None
    locks: ExitStack

    @property
    def has_ended(self) -> bool:
        return not self.jobs[0].is_busy() if self.process is None else self.process.poll() is not None


def run_suite(
    jobs: Sequence[SuiteJob], scale: Scale | None, out: Path, request: Request, *, rows: int, on: str = "local"
) -> int:
    """Provide the data, run every job that is not done, and print the table. An error names the jobs that failed."""
    problems = run_all(jobs, out, request, lambda left, say: suite_data.provide(left, scale, rows, say), on=on)
    report = table.report(jobs, scale)
    if report.runs:
        text = table.markdown(report)
        files.atomic_write(out / "table.md", text + "\n")
        print(text)
        try:
            print(f"report: {table.write_page(jobs, scale, out / REPORT)}", file=sys.stderr)
        except FidecError as error:  # the table is valid without its page
            problems.append(f"no report: {error}")
    if problems:
        raise RunError(". ".join(problems))
    return 0


def run_all(
    jobs: Sequence[AnyJob],
    out: Path,
    request: Request,
    provide: Callable[[list[AnyJob], Callable[[str], None]], Mapping[AnyJob, str]] = lambda left, say: {},
    on: str = "local",
) -> list[str]:
    """Run every job that is not done, and show what happens. The result says how many failed, and which.

    `provide` makes missing data, and returns the jobs that have none, with the reason. `on` names the executor.
    """
    executor = EXECUTORS.get(on)
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
        to_run = [job for job in left if job not in without]
        with ExitStack() as stack:
            # Opened before the signals are caught, because Ray sets handlers of its own.
            pool = stack.enter_context(executor.open(replace(request, directory=out))) if to_run else None
            signals = stack.enter_context(catch_signals())
            states = run_jobs(to_run, request.workers, board, signals, pool)
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


def run_jobs(
    jobs: Sequence[Job], workers: int, watcher: Watcher, signals: Signals, pool: Pool | None = None
) -> dict[Job, str]:
    """Run all jobs in packs, `workers` at a time; the result is the state of each: done, failed or stopped.

    If a pack fails before any of its jobs is done, one of them may have stopped the others: each is tried alone.
    After a signal all processes are asked to save and stop. Without a `pool` jobs are processes of this machine.
    """
    pool = pool or LocalPool(Request(workers))
    waiting, states, tries = list(jobs), {}, Tries(pool.retries)
    groups = {job: group_of(job) for job in jobs}
    running: dict[int, Running] = {}

    def end(job: Job, state: str, detail: str) -> None:
        states[job] = state
        watcher.job_ended(job, state, detail)

    def fill(slot: int, size: int) -> None:
        """Start the next pack that is not done, of this size at most."""
        while slot not in running and waiting:
            group = groups[waiting[0]]  # whose jobs follow each other; not all are looked at, there may be thousands
            pack = list(islice(takewhile(lambda job, group=group: groups[job] == group, waiting), size))
            try:
                started = start(pack, slot, watcher, pool)
            except RunError as error:  # damaged since the suite began
                end(waiting.pop(0), "failed", str(error))
                continue
            if started is None:
                end(waiting.pop(0), "done", "there already")
            else:
                running[slot] = started
                for job in started.jobs:
                    waiting.remove(job)

    try:
        while (waiting or running) and signals.received is None:
            size = max(1, len(waiting) // workers)  # no pack leaves a worker without jobs
            with pool.batch():
                for slot in range(pool.slots or len(jobs)):
                    if slot not in running:
                        fill(slot, size)
            for slot in [slot for slot, each in running.items() if each.has_ended]:
                pack, process, locks = running.pop(slot)
                if process is None:  # done by another program, or to be continued here
                    waiting[:0] = pack
                    continue
                locks.close()
                code = process.poll() or 0
                outcomes = _outcomes(pack, code)
                if lost := [job for job in pack if code not in ERRORS and tries.allow(job, outcomes[job][0])]:
                    watcher.print(f"{len(lost)} runs were stopped and are continued. See {pack[0].log}")
                    waiting[:0] = lost
                elif len(pack) > 1 and code in ERRORS and ("done", "") not in outcomes.values():
                    watcher.print(f"{len(pack)} runs failed together, each is tried alone. See {pack[0].log}")
                    groups |= {job: job.directory for job in pack}
                    waiting[:0] = pack
                    continue
                for job, outcome in outcomes.items():
                    if job not in lost:
                        end(job, *outcome)
            watcher.update([job for each in running.values() for job in each.jobs], len(waiting))
            time.sleep(PAUSE)
    finally:
        _stop([each.process for each in running.values() if each.process is not None])
        for each in running.values():
            each.locks.close()
    return states | {job: "stopped" for each in running.values() for job in each.jobs}


class Tries:
    """Counts how often a job was lost since it last made progress."""

    def __init__(self, most: int):
        self._most, self._counts = most, dict[Job, tuple[int, int]]()

    def allow(self, job: Job, outcome: str) -> bool:
        """Whether a job that was lost is run again. One that is done, or that failed by itself, is not."""
        if not self._most or outcome == "done" or read_states([job])[0].get(job) not in INTERRUPTED:
            return False
        step = job.progress().step
        before, count = self._counts.get(job, (-1, 0))
        self._counts[job] = (step, 1) if step > before else (before, count + 1)
        return self._counts[job][1] <= self._most


def group_of(job: Job) -> Path:
    """The same for jobs that one process can train: offline runs that differ only in their seeds."""
    return job.directory if job.plan.online_steps else job.directory.parent


def start(pack: Sequence[Job], slot: int, watcher: Watcher, pool: Pool) -> Running | None:
    """Start the process of a pack, or wait for the process of another program. None: the first job is done.

    Left out are jobs that another process has, and those that are not in the state of the first: new, or started.
    """
    first = pack[0]
    with ExitStack() as stack:  # the process inherits the open files and their locks
        logs = {job: log for job in pack if (log := _lock_log(job, stack))}
        if first not in logs:
            watcher.job_started(first, "waits for another process that runs it", first.log)
            return Running([first], None, ExitStack())
        how = _how(first.state())
        if not how:
            return None
        jobs = [job for job, state in read_states(list(logs))[0].items() if _how(state) == how]
        words = command(jobs)
        given = {word.partition("=")[0].replace("_", "-") for word in words}
        if how == "starts" and "--eval-envs" not in given:
            words += ["--eval-envs", str(env_processes(pool.cores(slot)))]
        for job in jobs:
            watcher.job_started(job, how, first.log)
        for job in jobs[1:]:
            logs[job].write(f"{how} in one process with others; the output is in {first.log}\n".encode())
        work = Work((*PROGRAM, *words), (*PROGRAM, *RESUME), [job.directory for job in jobs], first.log)
        process = pool.submit(slot, work, [logs[job] for job in jobs])
        return Running(jobs, process, stack.pop_all() if pool.remote else ExitStack())


def _lock_log(job: Job, stack: ExitStack) -> IO[bytes] | None:
    """The log of a job, open and locked until `stack` is closed; None if another process has the job."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = stack.enter_context(job.log.open("ab"))
    return log if lock_open_file(log) and not job.is_busy_elsewhere() else None


def _how(state: str) -> str:
    """How a job in this state begins; empty if it is done."""
    return {"new": "starts", "done": ""}.get(state, "continues")


def _outcomes(pack: Sequence[Job], code: int) -> dict[Job, tuple[str, str]]:
    """The state of each job of a pack after its process ended, and the reason of a failure."""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"FAILED with exit code {code}"
    log = pack[0].log
    end = "\n".join(read_end(log)[-5:])
    states, damaged = read_states(pack)
    outcomes = {job: ("failed", reason) for job, reason in damaged.items()}
    for job, state in states.items():
        if state == "done":
            outcomes[job] = "done", ""
        elif state == "failed" and "done" in states.values() and (reason := job.reason()):
            outcomes[job] = "failed", f"FAILED: {reason}"
        else:
            outcomes[job] = "failed", f"{how}. The end of its log, {log}:\n{end}"
    return outcomes


def _stop(processes: Sequence[Handle]) -> None:
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


def dry_run(jobs: Sequence[Job]) -> int:
    """Print the commands of one worker as a shell script, with the expected time of each; the sum on stderr."""
    states, damaged = read_states(jobs)
    left = [job for job, state in states.items() if state != "done"]
    check_environments(left)
    done = [job for job, state in states.items() if state == "done"]
    busy = {job for job in left if job.is_busy()}
    speeds = {job: estimate(job, done) for job in left}
    seconds = {job: speed.seconds(job.plan) for job, speed in speeds.items() if speed}
    packs: dict[tuple[Path, str], list[Job]] = {}
    for job in left:
        if job not in busy:
            packs.setdefault((group_of(job), _how(states[job])), []).append(job)
    first = {pack[0]: pack for pack in packs.values()}
    for job in jobs:
        if job in damaged:
            print(f"# {job.name}: {damaged[job]}")
        elif states[job] == "done":
            print(f"# done: {job.name}")
        elif job in busy:
            print(f"# runs now: {job.name}")
        elif job in first:
            speed, count = speeds[job], len(first[job])
            most = "at most " * (count > 1)
            cost = f"{most}{duration(count * seconds[job])} ({speed.source})" if speed else "cost unknown"
            print(f"{shlex.join(['fidec', *command(first[job])])}  # {cost}")
    parts = [f"{len(jobs)} runs, {len(done)} done"]
    if seconds:
        parts.append(f"{len(seconds)} to go would take about {duration(sum(seconds.values()))} one after the other")
    if unknown := len(left) - len(seconds):
        parts.append(f"the cost of {unknown} is unknown")
    print(*parts, sep="; ", file=sys.stderr)
    return 0
