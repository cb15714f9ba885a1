"""Jobs of Slurm, through submitit: as arrays, with time limits, queued again when they are stopped.

Slurm warns a job with SIGUSR2 before its time is over, or when it is preempted. The job then saves, and is queued
again with the same command, which continues its runs. Jobs that are queued go on without the suite.
"""

from __future__ import annotations

import getpass
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fidec.errors import ConfigError, RunError
from fidec.executors import LOST, Executor, Pool, Request, Work, attempt
from fidec.extras import require

HOURS = 24.0  # the time limit of a job, unless the user gives one
RETRIES = 3
ARRAY = 1000  # jobs of an array at most: Slurm's own limit is 1,001 unless it is raised
ASK_EVERY = 10.0  # seconds between two questions to Slurm about its queue
NAMES = ("partition", "qos", "account", "constraint", "gres", "nodelist", "exclude", "comment", "signal_delay_s")


class SlurmAttempt:
    """What a job runs. submitit pickles it, calls it on the node, and calls `checkpoint` at SIGUSR2."""

    def __init__(self, job: dict[str, Any], answer: str):
        self.job, self.answer, self._running = job, answer, None

    def __call__(self) -> int:
        self._running = attempt.Attempt(self.job)
        code = self._running.run()
        if code == LOST:
            sys.exit(LOST)  # no result: either Slurm queues it again by itself, or the suite submits it again
        Path(self.answer).write_text(str(code))
        return code

    def checkpoint(self) -> Any:
        if self._running is not None:
            self._running.stop()
        helpers = require("submitit.helpers", "slurm")
        return helpers.DelayedSubmission(SlurmAttempt(self.job, self.answer))


class SlurmHandle:
    """A job of Slurm. Its exit code is in a file, so that nothing is unpickled here."""

    def __init__(self, pool: SlurmPool, answer: Path):
        self._pool, self._answer, self._code = pool, answer, None
        self._reading, self._missing = pool.reading, 0  # how often in a row the queue was without it
        self.job: Any = None  # once it is submitted

    def poll(self) -> int | None:
        if self._code is None and self.job is not None:
            gone = self._is_gone()  # before the answer is read, which may come in between
            with suppress(OSError, ValueError):  # not there, or not written completely
                self._code = int(self._answer.read_text())
                self._answer.unlink()
                return self._code
            self._code = LOST if gone else None
        return self._code

    def _is_gone(self) -> bool:
        """Whether Slurm does not have it any more. Its answer may be late on a shared file system, so one waits."""
        if not self._pool.asks_slurm:
            return self.job.done()
        self._pool.read_queue()
        if self._pool.reading != self._reading:
            self._reading = self._pool.reading
            self._missing = 0 if self.job.job_id in self._pool.queue else self._missing + 1
        return self._missing > 1

    def terminate(self) -> None:
        if self.job is None:  # its batch was not submitted
            self._code = LOST
        elif self._code is None:
            self.job.cancel(check=False)

    kill = terminate

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.5)
        return code


class SlurmPool:
    """Submits jobs with submitit. Slurm queues them, `workers` at a time."""

    remote, retries, slots = True, RETRIES, None

    def __init__(self, request: Request):
        submitit = require("submitit", "slurm", "--on slurm")
        if request.gpus is not None and request.gpus != int(request.gpus):
            raise ConfigError(f"--gpus {request.gpus:g}: Slurm gives whole GPUs")
        settings = dict(request.settings)
        cluster = settings.pop("cluster", "slurm")  # submitit's own `local` needs no Slurm
        self._folder, self._cpus = (request.directory / "slurm").absolute(), request.cpus or 1
        try:
            self._executor = submitit.AutoExecutor(
                folder=self._folder / "%j", cluster=cluster, slurm_max_num_timeout=1000, local_max_num_timeout=1000
            )
        except RuntimeError as error:
            raise RunError(f"--on slurm: {error}") from error
        self.asks_slurm = cluster == "slurm"
        self.queue, self.reading, self._asked = set[str](), 0, 0.0
        resources = {} if request.memory is None else {"mem_gb": request.memory}
        resources |= {"gpus_per_node": int(request.gpus)} if request.gpus else {}
        known = {f"slurm_{name}": settings.pop(name) for name in NAMES if name in settings}
        other = {name.replace("_", "-"): value for name, value in settings.items()}
        self._executor.update_parameters(
            name="fidec",
            timeout_min=max(1, int(60 * (request.hours or HOURS))),
            cpus_per_task=self._cpus,
            slurm_array_parallelism=request.workers,
            slurm_additional_parameters=other,
            **known,
            **resources,
        )
        self._ask = submitit.core.utils.CommandFunction
        self._command_error = submitit.core.utils.FailedJobError
        self._new: list[tuple[SlurmHandle, SlurmAttempt]] = []

    def cores(self, slot: int) -> int:
        return self._cpus

    def submit(self, slot: int, work: Work, files: Sequence[IO[bytes]]) -> SlurmHandle:
        """The job is handed to Slurm at the end of the batch."""
        answer = self._folder / f"{uuid.uuid4().hex}.code"
        handle = SlurmHandle(self, answer)
        self._new.append((handle, SlurmAttempt(attempt.describe(work, self._cpus), str(answer))))
        return handle

    def batch(self) -> AbstractContextManager[object]:
        return self._batch()

    @contextmanager
    def _batch(self) -> Iterator[None]:
        yield
        if not self._new:
            return
        new, self._new = self._new, []
        self._folder.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(new), ARRAY):
            with self._executor.batch():  # one array
                for handle, work in new[first : first + ARRAY]:
                    handle.job = self._executor.submit(work)

    def read_queue(self) -> None:
        """Read the jobs that Slurm has of this user, if the last time is long enough ago."""
        if time.monotonic() - self._asked < ASK_EVERY:
            return
        self._asked = time.monotonic()
        with suppress(self._command_error):  # Slurm may not answer for a while: then nothing is concluded
            words = self._ask(["squeue", "-h", "-r", "-o", "%i", "-u", getpass.getuser()], verbose=False)()
            self.queue, self.reading = set(words.split()), self.reading + 1


@contextmanager
def open_slurm(request: Request) -> Iterator[Pool]:
    request.refuse("slurm", "address")
    yield SlurmPool(request)


EXECUTOR = Executor(open_slurm)
