"""Episodes in parallel, each environment in its own process, failures contained and reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fidec.envs.process import receive
from fidec.envs.processes import EnvProcesses
from fidec.errors import ConfigError, EnvError

Status = Literal["ok", "crashed", "hung", "invalid"]
Act = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
LONGEST = 100_000  # steps after which an episode counts as endless


@dataclass(frozen=True)
class Episode:
    """One evaluation episode. Unless `status` is "ok", return and length are those until the failure."""

    index: int
    seed: int
    lane: int
    status: Status
    return_: float
    length: int
    success: float | None  # info["success"] or info["is_success"] of the last step, None without either
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


def episode_seed(seed: int, index: int, fresh: int | None = None) -> int:
    """The reset seed of episode `index`: the first word of NumPy's `SeedSequence([seed, index])`.

    With `fresh`, the training step of an evaluation, it is that of `SeedSequence([seed, index, 2, fresh])`: every
    evaluation has other episodes. Exploration takes `SeedSequence([seed, index, 1])`.
    """
    words = [seed, index] if fresh is None else [seed, index, 2, fresh]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class EnvPool(EnvProcesses):
    """Environments for evaluation: whole episodes, given by their indices."""

    def run(
        self,
        act: Act,
        episodes: int,
        seed: int,
        *,
        fresh: int | None = None,
        progress: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Run `episodes` episodes and return them in order, failed ones included.

        Lane i runs the episodes i, i + n, i + 2n, ...: a fixed quota. The first episodes to finish would
        over-represent short ones, which in many tasks are the successes (or the falls). Episode k is reset with
        `episode_seed(seed, k, fresh)`, so it does not depend on n, up to the rounding of a policy that is computed
        for n observations at once.

        `act(observations, episode_ids, steps)` is always called with all n lanes, so that a compiled policy sees one
        shape. Idle lanes keep their last values, and their actions are ignored. It returns actions (n, d) in [-1, 1],
        which are clipped and scaled to the bounds of the environment's Box.

        A process that raises or dies ("crashed"), does not answer in `step_timeout` seconds ("hung") or returns a
        non-finite or misshapen value ("invalid") loses that one episode, and is replaced before the lane's next.
        """
        self._check_open()
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
                seed=episode_seed(seed, index, fresh),
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
            self._revive(starting)
            stepping = sorted(running)
            if stepping:
                actions = act(observations.copy(), ids.copy(), steps.copy())
                actions = self._check_actions(actions, stepping, ids, steps)
                for lane in stepping:
                    self._processes[lane].send("step", actions[lane])
            for lane in starting:
                ids[lane], steps[lane], returns[lane] = queues[lane].popleft(), 0, 0.0
                self._processes[lane].send("reset", episode_seed(seed, int(ids[lane]), fresh))
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
                    observations[lane], reward, terminated, truncated, success = value
                    returns[lane] += reward
                    steps[lane] += 1
                    if terminated or truncated:
                        finish(lane, "ok", success)
                    elif steps[lane] >= LONGEST:
                        raise EnvError(
                            f"an episode has not ended after {LONGEST:,} steps. Give the environment a time limit: "
                            "max_episode_steps where it is registered, or gymnasium.wrappers.TimeLimit"
                        )
        return [finished[index] for index in range(episodes)]
