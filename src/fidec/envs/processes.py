"""Several environments, each in its own process: the part that evaluation and exploration share."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Pipe
from typing import Any, Self

import gymnasium
import numpy as np

from fidec.envs.process import EnvProcess, end_all, pickled, wait_ready
from fidec.errors import ConfigError, EnvError, NonFiniteError

_START_ATTEMPTS = 3


class EnvProcesses:
    """`num_envs` environments ("lanes"), each in a spawned process that stays for many episodes.

    `make_env` is sent to the processes (`fidec.envs.process.pickled`). Observations must be a Box (uint8 stays, all
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
