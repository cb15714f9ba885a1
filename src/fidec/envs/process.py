"""One environment in its own process, seen from the parent: start it, ask it with a time limit, end it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from fidec.envs import worker
from fidec.errors import EnvError

_CONTEXT = multiprocessing.get_context("spawn")
_START_LOCK = threading.Lock()


def pickled(make_env: Callable[[], Any]) -> bytes:
    """The bytes from which a process makes its environment.

    A function of a module is named and imported there. A lambda, a local function and a function of a script or
    notebook are sent with their code.
    """
    try:
        return cloudpickle.dumps(make_env)
    except Exception as error:  # whatever the function refers to decides what is raised
        raise EnvError(
            f"the function that makes the environment cannot be sent to another process: {type(error).__name__}: "
            f"{error}. It refers to an object that cannot be pickled: create that object inside the function"
        ) from error


class EnvProcess:
    """One environment in one spawned process. `receive` never raises: the ways to fail are values."""

    def __init__(self, payload: bytes, environ: Mapping[str, str] | None = None):
        self.facts: dict[str, Any] = {}
        self.busy = False
        self._pipe, far_end = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=worker.main, args=(far_end, os.getpid(), payload, dict(environ or {})), name="fidec-env"
        )
        with _START_LOCK, _signals_blocked(), _main_module_hidden():
            self._process.start()
        far_end.close()  # so that the pipe ends when the process does

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it is alive and waits for a command."""
        return bool(self.facts) and not self.busy and self._process.is_alive()

    def wait_ready(self, timeout: float) -> str | None:
        """Wait until the environment is made. The reason as a string if that fails, and may succeed another time."""
        kind, value = receive([self], timeout)[0]
        if kind == "refused":
            raise EnvError(value)
        if kind == "ready":
            self.facts = value
            return None
        if kind == "hung":
            return "the environment was not made within the start time limit"
        return value

    def send(self, command: str, argument: Any = None) -> None:
        self.busy = True
        # If the process is gone, the reply is the end of the pipe.
        with contextlib.suppress(OSError):
            self._pipe.send((command, argument))

    def ask(self, command: str, argument: Any, timeout: float) -> tuple[str, Any]:
        self.send(command, argument)
        return receive([self], timeout)[0]

    def _read(self) -> tuple[str, Any]:
        try:
            reply = self._pipe.recv()
        except Exception:  # the end of the pipe, perhaps in the middle of a message
            return "crashed", self._exit_reason()
        self.busy = False
        return reply

    def _exit_reason(self) -> str:
        self._process.join(1.0)
        code = self._process.exitcode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"process ended by {signal.Signals(-code).name}"
        return f"process ended with exit code {code}"

    def close_pipe(self) -> None:
        """Close the pipe: an idle process then closes its environment and ends by itself."""
        self._pipe.close()

    def end(self, grace: float = 0.0) -> None:
        """End the process for certain, after `grace` seconds in which it may do so itself."""
        self.close_pipe()
        self._process.join(grace)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()


def receive(processes: Sequence[EnvProcess], timeout: float) -> list[tuple[str, Any]]:
    """One reply of each process, ("hung", reason) for those that give none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    replies: dict[int, tuple[str, Any]] = {}
    waiting = {process._pipe: index for index, process in enumerate(processes)}
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            index = waiting.pop(pipe)  # type: ignore[arg-type]
            replies[index] = processes[index]._read()
    hung = ("hung", f"no answer for {timeout:g} s")
    return [replies.get(index, hung) for index in range(len(processes))]


def end_all(processes: Sequence[EnvProcess], grace: float = 2.0) -> None:
    """End processes together, so that they share one time of grace."""
    deadline = time.monotonic() + grace
    for process in processes:
        process.close_pipe()
    for process in processes:
        process.end(max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block Ctrl-C while a process starts. It inherits the mask, until it ignores the signals itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep a spawned process from importing the caller's script again.

    Otherwise a script without a `__main__` guard would train again in each process.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
