"""Jobs side by side, as processes that share the cores and can be stopped and started again.

A job's log is locked before its process starts, and the process inherits the lock with its output: it is free again
when the process has ended, however the suite ended. So two suites, or a suite that follows one that was killed, never
run a job twice at once: who finds it taken waits for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from fidec.bench.jobs import Job, last_lines
from fidec.launch import launch, share_cores
from fidec.store.lock import lock_open_file
from fidec.train.loop import Signals

PROGRAM = ("-m", "fidec")
PAUSE = 0.2  # seconds between two looks


class Outcome(NamedTuple):
    """How a job ended: done, failed or stopped."""

    job: Job
    state: str
    detail: str = ""


class Watcher(Protocol):
    """Who is told what happens."""

    def begins(self, job: Job, how: str) -> None: ...
    def ends(self, outcome: Outcome) -> None: ...
    def shows(self, running: Sequence[Job], waiting: int) -> None: ...


class Running(NamedTuple):
    """A job with its process, or None if it belongs to somebody else."""

    job: Job
    process: subprocess.Popen | None

    @property
    def over(self) -> bool:
        return not self.job.busy() if self.process is None else self.process.poll() is not None


def see_through(jobs: Sequence[Job], workers: int, watcher: Watcher, signals: Signals) -> list[Outcome]:
    """Run all jobs that are not done, `workers` at a time, unless a signal comes; then all are stopped, and saved."""
    waiting, outcomes, shares = deque(jobs), [], share_cores(workers)
    running: dict[int, Running] = {}
    environ = memory_share(workers)
    try:
        while (waiting or running) and signals.received is None:
            for slot in range(workers):
                while slot not in running and waiting:
                    begun = _begin(waiting.popleft(), shares[slot], watcher, environ)
                    if isinstance(begun, Outcome):
                        outcomes.append(begun)
                        watcher.ends(begun)
                    else:
                        running[slot] = begun
            for slot in [slot for slot, each in running.items() if each.over]:
                ended = running.pop(slot)
                if ended.process is None:  # somebody else's: done, or ours to go on with
                    waiting.appendleft(ended.job)
                    continue
                outcomes.append(_outcome(ended.job, ended.process.returncode))
                watcher.ends(outcomes[-1])
            watcher.shows([each.job for each in running.values()], len(waiting))
            time.sleep(PAUSE)
    finally:
        outcomes += _stop(running)
    return outcomes


def _begin(
    job: Job, cores: Sequence[int], watcher: Watcher, environ: Mapping[str, str] | None = None
) -> Running | Outcome:
    """Start a job's process, or wait for another's; a job that is done ends at once."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:  # the process keeps it open, and so locked
        if not lock_open_file(log) or job.busy_elsewhere():
            watcher.begins(job, "is run by another process: waits for it")
            return Running(job, None)
        state = job.state()
        if state == "done":
            return Outcome(job, "done", "there already")
        words = job.command()
        if state == "new":
            words += ["--eval-envs", str(min(len(cores), 8))]
        watcher.begins(job, "starts" if state == "new" else "goes on")
        output = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        return Running(job, launch(*PROGRAM, *words, environ=environ, cores=cores, **output))


def _outcome(job: Job, code: int) -> Outcome:
    if code == 0 and job.state() == "done":
        return Outcome(job, "done")
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"FAILED with exit code {code}"
    return Outcome(job, "failed", f"{how}. The end of its log, {job.log}:\n{last_lines(job.log, 5)}")


def _stop(running: dict[int, Running]) -> list[Outcome]:
    """Ask every process of ours to save and stop, and wait until they have; a second Ctrl-C kills them."""
    own = [each.process for each in running.values() if each.process is not None]
    try:
        for process in own:
            process.terminate()
        for process in own:
            process.wait()
    except BaseException:
        for process in own:
            process.kill()
        raise
    return [Outcome(each.job, "stopped") for each in running.values()]


def memory_share(workers: int) -> dict[str, str]:
    """Environment variables that share a GPU's memory: by default JAX takes three quarters of it for each process."""
    names = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # JAX refuses both at once
    if workers == 1 or any(name in os.environ for name in names):
        return {}
    return {names[0]: f"{0.9 / workers:.3f}"}
