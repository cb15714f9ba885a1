"""Evaluation episodes: run in parallel, failures contained and reported, and their means and intervals."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fidec.envs.processes import EnvProcess, EnvProcesses, receive_any
from fidec.errors import ConfigError, EnvError
from fidec.parts import Observations, arrays_of, map_parts
from fidec.stats import bootstrap_mean, paired_difference, wilson

Status = Literal["ok", "crashed", "hung", "invalid"]
Act = Callable[[Observations, np.ndarray, np.ndarray], np.ndarray]
LONGEST = 100_000  # steps after which an episode counts as endless
# The share of their time that lanes spend in calls of a slow policy. It is a half if a call takes as long as a step,
# and also if it takes longer and the lanes take turns; a little less leaves room for noise.
_SLOW = 0.45


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
        names = {"index": "episode", "return_": "return"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


def episode_seed(seed: int, index: int, fresh: int | None = None) -> int:
    """The reset seed of episode `index`: the first word of NumPy's `SeedSequence([seed, index])`.

    With `fresh`, the training step of an evaluation, it is that of `SeedSequence([seed, index, 2, fresh])`: every
    evaluation has other episodes. Exploration takes `SeedSequence([seed, index, 1])`.
    """
    words = [seed, index] if fresh is None else [seed, index, 2, fresh]
    return int(np.random.SeedSequence(words).generate_state(1)[0])


class _Policy:
    """Calls `act` and finds out whether it is what the lanes spend their time on.

    A call computes the actions of all lanes. If it takes longer than a step of the environments, two calls for one
    half of the lanes each take longer than waiting for all and calling once. `patience` is then the time of a call,
    in which the others answer. Else it is 0: a process that has answered would only be idle longer.
    """

    def __init__(self, act: Act):
        self.patience = 0.0
        self._act, self._first, self._lane_seconds = act, None, 0.0

    def __call__(self, observations: Observations, ids: np.ndarray, steps: np.ndarray, waiting: int) -> np.ndarray:
        before = time.monotonic()
        actions = self._act(map_parts(np.copy, observations), ids.copy(), steps.copy())
        now = time.monotonic()
        if self._first is None:
            self._first = now  # this call may have compiled the policy
        else:
            self._lane_seconds += waiting * (now - before)
            share = self._lane_seconds / (len(ids) * (now - self._first))
            self.patience = now - before if share > _SLOW else 0.0
        return actions


class EnvPool(EnvProcesses):
    """Environments for evaluation: whole episodes, given by their indices."""

    def run(
        self,
        act: Act,
        episodes: int,
        seed: int,
        *,
        first: int = 0,
        fresh: int | None = None,
        progress: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Run `episodes` episodes, from number `first` on, and return them in order, failed ones included.

        Lane i runs the episodes first + i, first + i + n, ...: a fixed quota. The first episodes to finish would
        over-represent short ones, which in many tasks are the successes (or the falls). Episode k is reset with
        `episode_seed(seed, k, fresh)`, so it does not depend on n, up to the rounding of a policy that is computed
        for n observations at once.

        Lanes do not wait for each other: one that has answered gets its next action while others step. (Only a policy
        that takes longer than a step waits for more lanes, see `_Policy`.)
        `act(observations, episode_ids, steps)` is still called with all n lanes, so that a compiled policy sees one
        shape. Lanes that step or are idle keep their last values, and their actions are ignored. It returns actions
        (n, d) in [-1, 1], which are clipped and scaled to the bounds of the environment's Box. An action must depend
        on its own lane's arguments only: which lanes are ready together depends on the speed of the processes.

        A process that raises or dies ("crashed"), does not answer its command in `step_timeout` seconds ("hung") or
        returns a non-finite or misshapen value ("invalid") loses that one episode, and is replaced before the lane's
        next. `progress` is called with each episode when it ends.

        If another thread calls `close`, this raises an EnvError, after the call of `act` that is under way.
        """
        if min(episodes, seed, first) < 0:
            raise ConfigError(f"episodes = {episodes}, seed = {seed} and first = {first} must not be negative")
        finished: dict[int, Episode] = {}
        with self._in_use:
            self._check_open()
            for episode in self._run(act, range(first, first + episodes), seed, fresh):
                finished[episode.index] = episode
                if progress is not None:
                    progress(episode)
        return [finished[index] for index in sorted(finished)]

    def _run(self, act: Act, episodes: range, seed: int, fresh: int | None) -> Iterator[Episode]:
        """The episodes in the order in which they end."""
        n, policy = self.num_envs, _Policy(act)
        queues = [deque(episodes[lane::n]) for lane in range(n)]
        shapes, types = self.observation_shape, self.observation_dtype
        observations = map_parts(lambda shape, dtype: np.zeros((n, *shape), dtype), shapes, types)
        ids, steps, returns = np.arange(n), np.zeros(n, np.int64), np.zeros(n)
        free, ready = list(range(n)), list[int]()  # lanes without an episode; lanes that wait for an action
        busy: dict[EnvProcess, tuple[int, str]] = {}  # the lane and the command of the processes that have one

        def put(lane: int, observation: Any) -> None:
            for lanes, part in zip(arrays_of(observations), arrays_of(observation), strict=True):
                lanes[lane] = part

        def send(lane: int, command: str, argument: Any) -> None:
            process = self._processes[lane]
            process.send(command, argument)
            busy[process] = lane, command

        def end(lane: int, status: Status, success: float | None = None, detail: str | None = None) -> Episode:
            free.append(lane)
            index, played = int(ids[lane]), (float(returns[lane]), int(steps[lane]))
            return Episode(index, episode_seed(seed, index, fresh), lane, status, *played, success, detail)

        while True:
            if ready:
                actions = policy(observations, ids, steps, waiting=len(ready))
                self._check_open()
                actions = self._check_actions(actions, ready, ids, steps)
                for lane in ready:
                    send(lane, "step", actions[lane])
                ready.clear()
            # Replacing a process waits until it has started. The others, which have their commands by now, go on with
            # these: their replies stay in the pipes.
            starting = [lane for lane in free if queues[lane]]
            self._revive(starting)
            for lane in starting:
                ids[lane], steps[lane], returns[lane] = queues[lane].popleft(), 0, 0.0
                send(lane, "reset", episode_seed(seed, int(ids[lane]), fresh))
            free.clear()
            if not busy:
                return
            replies = receive_any(list(busy), self._step_timeout, policy.patience, self._stop)
            for process, (kind, value) in replies.items():
                lane, command = busy.pop(process)
                if kind != "ok":
                    self._end(lane)
                    yield end(lane, kind, detail=value)  # type: ignore[arg-type]
                elif command == "reset":
                    put(lane, value)
                    ready.append(lane)
                else:
                    observation, reward, terminated, truncated, success = value
                    put(lane, observation)
                    returns[lane] += reward
                    steps[lane] += 1
                    if terminated or truncated:
                        yield end(lane, "ok", success)
                    elif steps[lane] >= LONGEST:
                        raise EnvError(
                            f"an episode has not ended after {LONGEST:,} steps. Give the environment a time limit: "
                            "max_episode_steps where it is registered, or gymnasium.wrappers.TimeLimit"
                        )
                    else:
                        ready.append(lane)


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means and 95 % intervals over the episodes that ran to their end. The others are only counted.

    `success` has a Wilson interval, `return` a bootstrap interval. An environment may report success only when it
    succeeds: if any episode reports it, an episode that does not is a failure (`reported`). A number that cannot be
    computed (no episode left, no success reported) is None, so that the result is valid JSON.
    """
    good = [episode for episode in episodes if episode.status == "ok"]
    failed = Counter(episode.status for episode in episodes if episode.status != "ok")
    successes = reported([episode.success for episode in good])
    returns = [episode.return_ for episode in good]
    # A success is 0 or 1. For the interval a fraction counts as a success from one half on.
    success = wilson(sum(value >= 0.5 for value in successes), len(successes)) if successes else (None, None)
    spread = bootstrap_mean(returns)
    return {
        "n": len(good),
        "n_failed": sum(failed.values()),
        "failed": dict(failed),
        "success": _mean(successes),
        "success_low": success[0],
        "success_high": success[1],
        "return": _mean(returns),
        "return_low": _or_none(spread.low),
        "return_high": _or_none(spread.high),
        "length": _mean([episode.length for episode in good]),
    }


def reported(values: Sequence[float | None]) -> list[float]:
    """Values of episodes, 0 for one that reports none; empty if no episode reports any."""
    return [value or 0.0 for value in values] if any(value is not None for value in values) else []


class Gain(NamedTuple):
    """A paired difference in success rate, or in return if the environment reports no success."""

    of: Literal["success", "return"]
    mean: float
    low: float
    high: float
    n: int


def compare(before: Sequence[Episode], after: Sequence[Episode]) -> Gain:
    """The gain from `before` to `after`, as a paired difference over the same episodes."""
    reports = any(episode.success is not None for episode in (*before, *after))
    of = "success" if reports else "return"
    first, second = ({(e.index, e.seed): _value(e, of) for e in episodes} for episodes in (before, after))
    if first.keys() != second.keys():
        raise ValueError("the two evaluations ran different episodes; use the same seed and number of episodes")
    pairs = list(first.values()), [second[key] for key in first]
    return Gain(of, *paired_difference(*pairs, success=of == "success"))


def _value(episode: Episode, of: str) -> float:
    """NaN for an episode that failed."""
    value = episode.success or 0.0 if of == "success" else episode.return_
    return value if episode.status == "ok" else math.nan


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
