"""Environments in their own processes, seen from the parent: start them, ask them with a time limit, end them.

`EnvProcess` is one of them. `EnvProcesses` are several: the part that evaluation and exploration share. Their other
side is `fidec.envs.worker`.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Self

import cloudpickle
import gymnasium
import numpy as np

from fidec.console import Output
from fidec.envs import worker
from fidec.errors import ConfigError, EnvError, NonFiniteError

_CONTEXT = multiprocessing.get_context("spawn")
_START_LOCK = threading.Lock()
_START_ATTEMPTS = 3
EVENTS = {"crashed": "crashed", "hung": "hung", "invalid": "returned an invalid value"}  # the ways to fail
PATIENCE = 15.0  # seconds of a start without a message
Reply = tuple[str, Any]  # its kind ("ok", "ready" or a way to fail), and its value or the reason


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
        self.sent = 0.0  # when the last command was sent
        self._pipe, far_end = _CONTEXT.Pipe()
        variables = {worker.SAFE_PATH: os.environ.get(worker.SAFE_PATH), **(environ or {})}
        self._process = _CONTEXT.Process(
            target=worker.main, args=(far_end, os.getpid(), payload, variables), name="fidec-env"
        )
        with _starting():
            self._process.start()
        far_end.close()  # so that the pipe ends when the process does
        # Ready when the process has ended. A process that the environment started may hold the pipe open beyond that,
        # and the sentinel too, which is a pipe.
        self._pidfd = _open_pidfd(self._process.pid)
        self._ended: int = self._process.sentinel if self._pidfd is None else self._pidfd

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it is alive and waits for a command."""
        return bool(self.facts) and not self.busy and not wait([self._ended], 0)

    def send(self, command: str, argument: Any = None) -> None:
        self.busy, self.sent = True, time.monotonic()
        # If the process is gone, the reply is the end of the pipe.
        with contextlib.suppress(OSError):
            self._pipe.send((command, argument))

    def ask(self, command: str, argument: Any, timeout: float) -> Reply:
        self.send(command, argument)
        return receive([self], timeout)[0]

    def _read(self, ended: bool) -> Reply:
        if ended:
            self._kill_group()  # nobody else may hold the pipe open
        try:
            if ended and not self._pipe.poll():
                raise EOFError
            reply = self._pipe.recv()
        except Exception:  # the end of the pipe, perhaps in the middle of a message
            return "crashed", self._exit_reason()
        self.busy = False
        return reply

    def _exit_reason(self) -> str:
        wait([self._ended], 1.0)
        self._kill_group()
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
        wait([self._ended], grace)
        self._kill_group()
        self._process.kill()  # if it was too young to lead a group
        self._process.join()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._process.close()

    def _kill_group(self) -> None:
        """End the process and what its environment has started, where the system can tell which these are."""
        if self._pidfd is None or self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._pidfd, 0)  # fails if it was collected: its number may be another's now
            os.killpg(self.pid, signal.SIGKILL)


def receive(processes: Sequence[EnvProcess], timeout: float, stop: Connection | None = None) -> list[Reply]:
    """One reply of each process, ("hung", reason) for those that give none within `timeout` seconds.

    It raises an EnvError as soon as there is something to read from `stop`.
    """
    replies = _replies(processes, time.monotonic() + timeout, stop)
    return [replies.get(process, _hung(timeout)) for process in processes]


def receive_any(
    processes: Sequence[EnvProcess], timeout: float, patience: float = 0.0, stop: Connection | None = None
) -> dict[EnvProcess, Reply]:
    """Wait until a process has replied or is late, and then up to `patience` seconds for the others; the replies.

    A process is late, ("hung", reason), if it has not replied `timeout` seconds after its own command. A reply that
    came while nobody was waiting is not late. For `stop` see `receive`.
    """
    deadlines = {process: process.sent + timeout for process in processes}
    replies = _next_replies(processes, min(deadlines.values()), stop)
    if replies and patience > 0:
        others = [process for process in processes if process not in replies]
        replies |= _replies(others, time.monotonic() + patience, stop)
    now = time.monotonic()
    return {process: _hung(timeout) for process, deadline in deadlines.items() if deadline <= now} | replies


def _replies(
    processes: Sequence[EnvProcess], deadline: float, stop: Connection | None = None
) -> dict[EnvProcess, Reply]:
    """The replies of all processes, or those until the deadline."""
    replies: dict[EnvProcess, Reply] = {}
    while waiting := [process for process in processes if process not in replies]:
        answered = _next_replies(waiting, deadline, stop)
        if not answered:
            break
        replies |= answered
    return replies


def _next_replies(
    processes: Sequence[EnvProcess], deadline: float, stop: Connection | None
) -> dict[EnvProcess, Reply]:
    """The replies that are there when the first one is, or none at the deadline. The end of a process is a reply."""
    handles: list[Any] = [handle for process in processes for handle in (process._pipe, process._ended)]
    ready = wait(handles if stop is None else [*handles, stop], max(0.0, deadline - time.monotonic()))
    if stop in ready:
        raise EnvError("the environments were closed while they were in use")
    return {
        process: process._read(ended=process._ended in ready)
        for process in processes
        if process._pipe in ready or process._ended in ready
    }


def _hung(timeout: float) -> Reply:
    return "hung", f"no answer for {timeout:g} s"


def wait_ready(
    processes: Sequence[EnvProcess], name: str, timeout: float, stop: Connection | None = None
) -> list[str | None]:
    """Wait until the environments are made. For each: None if it is ready, else why not (perhaps temporarily).

    A start that takes long is reported on stderr. An EnvError if the environment can never be used. For `stop` see
    `receive`.
    """
    patience = min(PATIENCE, timeout)
    replies = receive(processes, patience, stop)
    late = [process for process, (kind, _) in zip(processes, replies, strict=True) if kind == "hung"]
    if late and timeout > patience:
        Output().print(f"the environment {name} has been starting for {patience:g} s; the limit is {timeout:g} s")
        more = iter(receive(late, timeout - patience, stop))
        replies = [next(more) if reply[0] == "hung" else reply for reply in replies]
    reasons: list[str | None] = []
    for process, (kind, value) in zip(processes, replies, strict=True):
        if kind == "refused":
            raise EnvError(value)
        if kind == "ready":
            process.facts = value
        reason = f"it was not made within the time limit of {timeout:g} s" if kind == "hung" else value
        reasons.append(None if kind == "ready" else reason)
    return reasons


def end_all(processes: Sequence[EnvProcess]) -> None:
    """End processes together, so that they share two seconds in which they may end themselves."""
    deadline = time.monotonic() + 2.0
    for process in processes:
        process.close_pipe()
    for process in processes:
        process.end(max(0.0, deadline - time.monotonic()))


def _open_pidfd(pid: int | None) -> int | None:
    """A handle of a process, on Linux."""
    if pid is None or not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel
        return None


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """What a spawned process inherits from this one at its start.

    Ctrl-C is blocked: it inherits the mask, until it ignores the signals itself. The caller's script is hidden, which
    it would import again: without a `__main__` guard the script would train again in each process. PYTHONSAFEPATH
    keeps it from importing a `types.py` of the working directory instead of Python's own module: it imports modules
    before it gets this process's `sys.path`, in which the working directory may be.
    """
    signals = {signal.SIGINT, signal.SIGTERM} if hasattr(signal, "pthread_sigmask") else set()
    with _START_LOCK:
        main, safe_path = sys.modules["__main__"], os.environ.get(worker.SAFE_PATH)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals) if signals else set()
        try:
            sys.modules["__main__"] = types.ModuleType("__main__")
            os.environ[worker.SAFE_PATH] = "1"
            yield
        finally:
            worker.set_environ({worker.SAFE_PATH: safe_path})
            sys.modules["__main__"] = main
            if signals:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class EnvProcesses:
    """`num_envs` environments ("lanes"), each in a spawned process that stays for many episodes.

    `make_env` is sent to the processes (`pickled`). Observations must be a Box (uint8 stays, all
    else becomes float32) or a Dict of them, actions a bounded Box with one axis. The environment must end its
    episodes itself, for example by a time limit. The processes end with this one, also if it is killed.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        num_envs: int,
        *,
        name: str = "unnamed",
        step_timeout: float = 60.0,
        start_timeout: float = 120.0,
    ):
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}, expected at least 1")
        self.num_envs = num_envs
        self._name = name
        self._step_timeout = step_timeout
        self._start_timeout = max(start_timeout, 2 * step_timeout)
        self._payload = pickled(make_env)
        self._processes: dict[int, EnvProcess] = {}
        self._closed = False
        self._in_use = threading.RLock()  # held by whoever needs the processes to stay until it is done
        self._stop, self._stopper = Pipe(duplex=False)  # its bytes wake up who waits for a reply
        atexit.register(self.close)  # before multiprocessing's own exit, which would wait for the processes
        try:
            self._start(range(num_envs))
        except BaseException:
            self.close()
            raise
        facts = self._processes[0].facts
        self.observation_shape: Any = facts["shape"]  # a tuple, or one for each part
        self.observation_dtype: Any = facts["dtype"]
        self.unused_parts: tuple[str, ...] = tuple(facts["unused"])
        self.action_dim: int = facts["action_dim"]
        self.action_low: list[float] = facts["action_low"]
        self.action_high: list[float] = facts["action_high"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. Closing twice does no harm.

        Another thread that uses the processes is stopped first: a process's handles must not be closed, and their
        numbers reused, while that thread reads from them.
        """
        if not self._closed:
            self._closed = True
            self._stopper.send_bytes(b"")
        with self._in_use:
            processes, self._processes = list(self._processes.values()), {}
            end_all(processes)
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(f"this {type(self).__name__} is closed; make a new one")

    def _check_actions(self, actions: Any, lanes: Iterable[int], ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        actions = np.asarray(actions, np.float32)
        expected = (self.num_envs, self.action_dim)
        if actions.shape != expected:
            raise EnvError(f"the policy returned actions of shape {actions.shape}, the environments need {expected}")
        for lane in lanes:
            if not np.isfinite(actions[lane]).all():
                raise NonFiniteError(
                    f"the policy returned a non-finite action in episode {ids[lane]}, step {steps[lane]}: "
                    f"{actions[lane]}"
                )
        return actions

    def _end(self, lane: int) -> None:
        if lane in self._processes:
            self._processes.pop(lane).end()

    def _revive(self, lanes: Iterable[int]) -> None:
        """Replace processes that ended between two commands, or that an interruption left busy."""
        self._start([lane for lane in lanes if not (lane in self._processes and self._processes[lane].idle)])

    def _start(self, lanes: Iterable[int]) -> None:
        """(Re)start the processes of these lanes together, within the time limit. An EnvError says why they fail."""
        lanes = list(lanes)
        deadline, attempt, reasons = time.monotonic() + self._start_timeout, 0, {}
        while lanes and attempt < _START_ATTEMPTS and (left := deadline - time.monotonic()) > 0:
            self._check_open()
            attempt += 1
            for lane in lanes:
                self._end(lane)
            for lane in lanes:
                self._processes[lane] = EnvProcess(self._payload)
            found = wait_ready([self._processes[lane] for lane in lanes], self._name, left, self._stop)
            reasons = dict(zip(lanes, found, strict=True))
            lanes = [lane for lane in lanes if reasons[lane] is not None]
        if lanes:
            raise EnvError(
                f"the environment {self._name} (process {lanes[0] + 1} of {self.num_envs}) did not start in "
                f"{attempt} attempt{'s' if attempt > 1 else ''}: {reasons[lanes[0]]}"
            )
