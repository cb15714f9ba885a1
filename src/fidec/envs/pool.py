"""Episodes in parallel, each environment in its own process, failures contained and reported."""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from fidec.envs.process import EnvProcess, end_all, pickled, receive
from fidec.errors import ConfigError, EnvError, NonFiniteError

Status = Literal["ok", "crashed", "hung", "invalid"]
Act = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_START_ATTEMPTS = 3


@dataclass(frozen=True)
class Episode:
    """One evaluation episode. Unless `status` is "ok", return and length are those up to the failure."""

    index: int
    seed: int
    lane: int
    status: Status
    return_: float
    length: int
    success: float | None  # info["success"] of the last step, None if the environment does not report it
    detail: str | None = None  # what went wrong

    def row(self) -> dict[str, Any]:
        """The episode as a JSON object."""
        return {
            "episode": self.index,
            "seed": self.seed,
            "lane": self.lane,
            "status": self.status,
            "return": self.return_,
            "length": self.length,
            "success": self.success,
            "detail": self.detail,
        }


def episode_seed(seed: int, index: int) -> int:
    """The reset seed of episode `index`: the first word of NumPy's `SeedSequence([seed, index])`."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


class EnvPool:
    """`num_envs` environments ("lanes"), each in a spawned process that stays for many evaluations.

    `make_env` must be picklable, for example `functools.partial(fidec.envs.make.make, task)`. Observations
    must be a Box (uint8 stays, all else becomes float32), actions a bounded Box of one dimension; the
    environment must end its episodes itself (a time limit). The processes end with this one, however it ends.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        num_envs: int,
        *,
        step_timeout: float = 60.0,
        start_timeout: float = 120.0,
    ):
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}, expected at least 1")
        self.num_envs = num_envs
        self._step_timeout = step_timeout
        self._start_timeout = start_timeout
        self._payload = pickled(make_env)
        self._processes: dict[int, EnvProcess] = {}
        self._closed = False
        atexit.register(self.close)  # runs before multiprocessing's own exit, which would wait for the processes
        try:
            self._start(range(num_envs))
        except BaseException:
            self.close()
            raise
        facts = self._processes[0].facts
        self.observation_shape: tuple[int, ...] = facts["shape"]
        self.observation_dtype: str = facts["dtype"]
        self.action_dim: int = facts["action_dim"]
        self.action_low: list[float] = facts["action_low"]
        self.action_high: list[float] = facts["action_high"]

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. Closing twice does no harm."""
        self._closed = True
        processes, self._processes = list(self._processes.values()), {}
        end_all(processes)
        atexit.unregister(self.close)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def run(
        self, act: Act, episodes: int, seed: int, *, progress: Callable[[Episode], None] | None = None
    ) -> list[Episode]:
        """Run `episodes` episodes and return them in order, failed ones included.

        Lane i runs the episodes i, i + n, i + 2n, ...: a fixed quota. Taking the first episodes to finish
        instead would over-represent short ones, which in many tasks are the successes (or the falls). Episode
        k is reset with `episode_seed(seed, k)`, so it is the same episode whatever n is, up to the rounding
        of a policy that is computed for n observations at once.

        `act(observations, episode_ids, steps)` is always called with all n lanes, so that a compiled policy
        sees one shape; lanes that have nothing to do keep their last values, and their actions are ignored.
        It returns actions (n, d) in [-1, 1], which are clipped and, if the environment's Box has other
        bounds, scaled to them.

        A worker that raises, dies ("crashed"), does not answer in `step_timeout` seconds ("hung") or returns
        a non-finite or misshapen value ("invalid") loses that one episode, and is replaced before the lane's
        next.
        """
        if self._closed:
            raise EnvError("this EnvPool is closed; make a new one")
        if episodes < 0 or seed < 0:
            raise ConfigError(f"episodes = {episodes} and seed = {seed} must not be negative")
        n = self.num_envs
        queues = [deque(range(lane, episodes, n)) for lane in range(n)]
        observations = np.zeros((n, *self.observation_shape), self.observation_dtype)
        ids, steps, returns = np.arange(n), np.zeros(n, np.int64), np.zeros(n)
        running: set[int] = set()
        finished: dict[int, Episode] = {}

        def finish(lane: int, status: Status, success: float | None = None, detail: str | None = None) -> None:
            index = int(ids[lane])
            running.discard(lane)
            finished[index] = Episode(
                index=index,
                seed=episode_seed(seed, index),
                lane=lane,
                status=status,
                return_=float(returns[lane]),
                length=int(steps[lane]),
                success=success,
                detail=detail,
            )
            if progress is not None:
                progress(finished[index])

        while running or any(queues):
            starting = [lane for lane in range(n) if lane not in running and queues[lane]]
            # A process that died while nothing was asked of it, or that an interrupted run left busy, is
            # replaced.
            self._start([lane for lane in starting if not self._is_idle(lane)])
            stepping = sorted(running)
            if stepping:
                actions = self._checked(act(observations.copy(), ids.copy(), steps.copy()), stepping, ids, steps)
                for lane in stepping:
                    self._processes[lane].send("step", actions[lane])
            for lane in starting:
                ids[lane], steps[lane], returns[lane] = queues[lane].popleft(), 0, 0.0
                self._processes[lane].send("reset", episode_seed(seed, int(ids[lane])))
                running.add(lane)
            lanes = stepping + starting
            replies = receive([self._processes[lane] for lane in lanes], self._step_timeout)
            for lane, (kind, value) in zip(lanes, replies, strict=True):
                if kind != "ok":
                    self._end(lane)
                    finish(lane, kind, detail=value)  # type: ignore[arg-type]
                elif lane in starting:
                    observations[lane] = value
                else:
                    observations[lane], reward, over, success = value
                    returns[lane] += reward
                    steps[lane] += 1
                    if over:
                        finish(lane, "ok", success)
        return [finished[index] for index in range(episodes)]

    def _checked(self, actions: Any, lanes: Sequence[int], ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
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

    def _is_idle(self, lane: int) -> bool:
        return lane in self._processes and self._processes[lane].idle

    def _end(self, lane: int) -> None:
        if lane in self._processes:
            self._processes.pop(lane).end()

    def _start(self, lanes: Iterable[int]) -> None:
        """(Re)start the processes of these lanes together; give up after some attempts and say why."""
        lanes, reasons = list(lanes), {}
        for _ in range(_START_ATTEMPTS):
            for lane in lanes:
                self._end(lane)
                self._processes[lane] = EnvProcess(self._payload)
            deadline = time.monotonic() + self._start_timeout
            reasons = {
                lane: self._processes[lane].wait_ready(max(0.0, deadline - time.monotonic())) for lane in lanes
            }
            lanes = [lane for lane in lanes if reasons[lane] is not None]
            if not lanes:
                return
        raise EnvError(
            f"environment {lanes[0]} of {self.num_envs} did not start in {_START_ATTEMPTS} attempts: "
            f"{reasons[lanes[0]]}"
        )
