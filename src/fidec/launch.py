"""Start Python processes: on a share of the cores, with a share of the threads, in a controlled environment.

`run_jobs` does many jobs in a few processes. These are separate commands and not `multiprocessing` processes, so that
they never import the caller's main module (which may start JAX, or have no `__main__` guard).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fidec.errors import FidecError

SOURCE = Path(__file__).resolve().parents[1]  # the directory that holds the package


def launch(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
    threads: int = 0,
    **options: Any,
) -> subprocess.Popen:
    """Run `python -P *arguments`, which finds the same fidec as this process.

    `environ` is added to this process's environment. With `cores` the process may use only these; XLA starts one
    thread per core. `threads` limits the threads of numerical libraries. `options` are those of `subprocess.Popen`.
    """
    environment = {**os.environ, **(environ or {})}
    if threads:
        environment |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    paths = [str(SOURCE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with _on_cores(cores):
        return subprocess.Popen([sys.executable, "-P", *arguments], env=environment, **options)


def run(*arguments: str, timeout: float, **options: Any) -> tuple[int, str] | None:
    """`launch`, to the end: the exit code and what it wrote to stderr; None if it took longer than `timeout`."""
    with launch(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            _, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return None
    return process.returncode, stderr


def usable_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # only Linux has it
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def env_processes(cores: int) -> int:
    """How many environment processes evaluate on so many cores, at most 8.

    One more than there are cores: the policy runs between the steps of an environment, and meanwhile a core is free.
    """
    return min(cores + 1, 8) if cores > 1 else 1


def share_cores(workers: int) -> list[list[int]]:
    """Divide the usable cores among workers. With more workers than cores, some share one."""
    cores = usable_cores()
    return [cores[slot::workers] or [cores[slot % len(cores)]] for slot in range(workers)]


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """A process that is started inside this block inherits these cores."""
    if not cores or not hasattr(os, "sched_setaffinity"):  # only Linux has it
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# --- many jobs in a few processes -----------------------------------------------------------------------------


class JobError(Exception):
    """A job failed, or its process ended (`died`). The text says how."""

    def __init__(self, job: Any, text: str, died: bool, log: Path | None):
        super().__init__(text)
        self.job, self.died, self.log = job, died, log


class _Worker:
    """One process, and a thread that passes its answers on to the common queue."""

    def __init__(self, name: str, module: str, answers: queue.SimpleQueue[Any], log: Path | None, **options: Any):
        self.name, self.log, self.job = name, log, None
        with open(log, "wb") if log else nullcontext() as errors:
            self.process = launch(
                *("-W", "ignore", "-m", module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Ctrl-C reaches the parent only, which ends the workers.
                process_group=0 if os.name == "posix" else None,
                **options,
            )
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # a line cut short by a crash
            for line in self.process.stdout:
                answers.put((self, json.loads(line)))
        answers.put((self, None))

    def send(self, content: Any) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # a worker that has ended is reported when its answers end
            self.process.stdin.write(json.dumps(content) + "\n")
            self.process.stdin.flush()

    def start(self, job: Any) -> None:
        self.job = job
        self.send(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def failure(self, answer: dict[str, str] | None) -> JobError:
        if answer is not None:
            return JobError(self.job, answer["error"], False, self.log)
        code = self.process.wait()
        ending = f"ended with code {code}"
        if code < 0:
            with suppress(ValueError):
                ending = f"was ended by {signal.Signals(-code).name}"
        return JobError(self.job, f"{self.name} {ending}", True, self.log)


def run_jobs(
    module: str,
    setup: Any,
    jobs: Sequence[Any],
    workers: int,
    *,
    logs: Path | None = None,
    wake: float | None = None,
    **options: Any,
) -> Generator[Any]:
    """Do jobs in processes that run `module`, which calls `serve`. A process gets its next job when it has done one.

    Yields each job when it is done, and None after `wake` seconds without one. Raises a `JobError` for the first that
    fails. `setup` and jobs are JSON. `logs` is a directory for what the processes write to stderr, `options` those
    of `launch`. All processes are ended when the iterator is closed, whether by the last job, an error or Ctrl-C.
    """
    waiting, answers = deque(jobs), queue.SimpleQueue()
    crew: list[_Worker] = []
    try:
        for number in range(min(workers, len(jobs))):
            log = logs / f"worker-{number}.log" if logs else None
            crew.append(_Worker(f"worker {number}", module, answers, log, **options))
            crew[-1].send(setup)
            crew[-1].start(waiting.popleft())
        unfinished = len(jobs)
        while unfinished:
            try:
                worker, answer = answers.get(timeout=wake)
            except queue.Empty:
                yield None
                continue
            if answer is None or answer:
                raise worker.failure(answer)
            unfinished -= 1
            done = worker.job
            if waiting:
                worker.start(waiting.popleft())
            yield done
    finally:
        for worker in crew:
            worker.stop()


def serve(start: Callable[[Any], Callable[[Any], object]]) -> None:
    """The other side of `run_jobs`: `start(setup)` gives the function that does a job.

    The process ends as soon as its input closes, so it never outlives its parent process.
    """
    # Answers go to a private copy of stdout, so that nothing that a library prints can get among them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    try:
        do = start(json.loads(lines.get()))
        while True:
            do(json.loads(lines.get()))
            print("{}", file=answers, flush=True)
    except FidecError as error:
        reason = str(error)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    print(json.dumps({"error": reason}), file=answers, flush=True)


def _read_lines(lines: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # the parent has ended: stop in the middle of a job
