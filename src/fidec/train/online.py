"""The online phase of a run: environment steps, a buffer on the device, and updates on offline and online rows.

One step is one transition, added to the buffer, and `updates` gradient steps on batches drawn from offline and online
rows together. With `collect` episode, a whole episode is collected first and its updates follow. Collection is at
most one round ahead of the updates, or, for windows of several steps, as many rounds as the first window takes. A
checkpoint needs only both counts, and the chunks of actions that are being played: random numbers are functions of
the seed and the step, the rows are on the disk (`fidec.store.replay`), and the running episode is replayed from its
seed and its recorded actions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NotRequired, TypedDict

import jax
import numpy as np

from fidec import algos
from fidec.algos import Algorithm
from fidec.data.batches import DeviceFeed, Feed, Sampling, Source
from fidec.data.dataset import returns_of
from fidec.envs.evaluation import reported
from fidec.envs.exploration import Lanes, Transition
from fidec.envs.factory import EnvFactory
from fidec.errors import ConfigError, EnvError
from fidec.store.replay import ReplayStore
from fidec.train import dispatch, loop
from fidec.train.action_chunks import ChunkExecutor
from fidec.train.buffer import Buffer, check_buffer, next_actions
from fidec.train.collect import Collector, has_ended, make_explorer, rows_of
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.evaluation import check_spaces
from fidec.train.loop import Carry
from fidec.types import Spec


class Lane(TypedDict):
    episode: int
    step: int


class LanesPosition(TypedDict):
    next_episode: int
    lanes: list[Lane]
    failures: int


class Position(TypedDict):
    """What a checkpoint stores of the online phase."""

    lanes: LanesPosition
    pending_actions: list[list[float]] | None
    returns: list[float]
    recent: list[list[float | None]]
    episodes: int
    segments: list[dict[str, Any]]  # the index of the rows (`fidec.store.replay`)
    chunks: NotRequired[list[Any]]  # that the environments play


class Online:
    """Everything of the online phase that is not in the carry."""

    def __init__(
        self,
        config: OnlineConfig,
        algorithm: Algorithm,
        spec: Spec,
        offline: Source,
        *,
        seed: int,
        first_step: int,
        steps: int,
        batch_size: int,
        sampling: Sampling,
        discount: float | None,
        make_lanes: Callable[[], Lanes],
        store: ReplayStore,
        log: Callable[[list[dict[str, Any]]], None],
        message: Callable[[str], None],
    ):
        self.config, self.spec = config, spec
        self.first_step, self.steps = first_step, steps
        self.offline, self.discount, self.store = offline, discount, store
        self._algorithm, self._log = algorithm, log
        self.size = len(offline.rows.rewards)
        self.balanced = config.sampling == "balanced"
        self.capacity = check_buffer(config, self.size, batch_size)
        sampling = dataclasses.replace(sampling, fraction=config.fraction, capacity=self.capacity)
        self.buffer = Buffer(offline, sampling, steps + config.envs - 1)  # the last round may be larger than needed
        self.collector = Collector(config, seed, lambda: first_step + self.collected, make_lanes, message)
        self.recent: list[list[float | None]] = []  # return, length, success of episodes since the last log row
        self.episodes = 0
        # Actions of a round whose updates were made before its transitions came. None once these are stored.
        self.pending_actions: list[list[float]] | None = None
        self._looped = not loop.step_by_step(spec)
        self._jitted = loop.make_online_steps(
            algorithm,
            batch_size,
            sampling,
            balanced=self.balanced,
            updates=config.updates,
            looped=self._looped,
        )
        self._keys, self._pace = loop.keys_of(seed), dispatch.Pace()
        self._update: Callable | None = None  # compiled when first needed
        self._explore = make_explorer(algorithm, seed, spec.action_dim)
        self._playing = ChunkExecutor(spec, config.envs) if spec.chunk > 1 else None

    @property
    def collected(self) -> int:
        """Transitions so far."""
        return self.buffer.count

    @property
    def has_begun(self) -> bool:
        """Whether a checkpoint has to store anything of this phase."""
        return self.collected > 0 or self.collector.has_failures

    @property
    def failure(self) -> EnvError | None:
        """The error of an environment that ended the last `run_to`."""
        return self.collector.failure

    def start(self) -> None:
        """Start the environments."""
        _ = self.collector.lanes

    def close(self) -> None:
        self.collector.close()

    # --- checkpoints and metrics ---------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        """What a checkpoint stores. The rows so far are on the disk when this returns."""
        return {
            "lanes": self.collector.position(),
            "pending_actions": self.pending_actions,
            "returns": self.collector.returns,
            "recent": self.recent,
            "episodes": self.episodes,
            "segments": self.store.flush(),
        } | ({"chunks": self._playing.position()} if self._playing is not None else {})

    def restore(self, position: dict[str, Any] | None) -> None:
        """Continue at a checkpoint's position; None if it was made before the first online step."""
        if position is None:
            self.store.restore(None)  # removes segments that no checkpoint lists
            return
        self.episodes, self.recent, self.collector.returns = (
            position[name] for name in ("episodes", "recent", "returns")
        )
        self.pending_actions = position["pending_actions"]
        if self._playing is not None:
            self._playing.restore(position["chunks"])
        rows = self.store.restore(position["segments"])
        if rows is not None:
            self.buffer.fill(rows)
        self.collector.restore(position["lanes"], rows)

    def metrics(self) -> dict[str, Any]:
        """For a row of the training log."""
        stored = min(self.buffer.added, self.capacity)
        offline = self.size if self.balanced else min(self.size, self.capacity - stored)
        share = 1.0 - self.config.fraction if self.balanced else offline / (offline + stored)
        metrics: dict[str, Any] = {
            "online/steps": self.collected,
            "online/buffer": stored if self.balanced else offline + stored,
            "online/offline_share": share,
            "exploration/episodes": self.episodes,
        }
        for name, values in zip(("return", "length", "success"), zip(*self.recent, strict=True), strict=False):
            if known := reported(values):
                metrics[f"exploration/{name}"] = float(np.mean(known))
        return metrics

    def take_waiting_time(self) -> float:
        """Seconds that the run waited for its environments since the last call."""
        seconds, self.collector.waiting_time = self.collector.waiting_time, 0.0
        return seconds

    # --- the loop ------------------------------------------------------------------------------------------------

    def compile(self, carry: Carry) -> float:
        """Compile the updates if that was not done; returns the seconds that it took."""
        before = time.perf_counter()
        if self._update is None:
            data = self.offline, self.buffer.replay, np.int32(0), np.int32(1)
            update = self._jitted.lower(self._keys, carry, *data).compile()
            self._update = partial(update if self._looped else loop.one_by_one(update), self._keys)
        return time.perf_counter() - before

    def run_to(
        self,
        carry: Carry,
        first: int,
        last: int,
        signals: loop.Signals,
        on_step: Callable[[int], None],
    ) -> tuple[Carry, int]:
        """Collect and update until step `last`, a signal, or a `failure`; returns the carry and the step reached."""
        step, checked, self.collector.failure = first, time.perf_counter(), None
        if self.pending_actions is not None:  # an environment failed in this round; the policy has changed since
            self.collector.lanes.send(np.asarray(self.pending_actions, np.float32))
            self._receive_pending()
        while signals.received is None and self.failure is None:
            ahead = self.collected - (step - self.first_step)
            if step == last and ahead >= 0:
                break
            if ahead > 0 and self.buffer.added > 0:
                carry, step = self._run_updates(carry, step, step + self._pace.next(min(last - step, ahead)))
            elif ahead == 0 and self.config.overlap and self.buffer.added > 0:
                # The environments step while the network learns from the earlier rows.
                actions = self._actions(carry)
                self.collector.lanes.send(actions)
                self.pending_actions = actions.tolist()
                carry, step = self._run_updates(carry, step, min(last, step + self.config.envs))
                self._receive_pending()
            else:  # the updates are ahead only if an episode was lost while they were made
                self._insert(self._collect(carry, signals))
            if time.perf_counter() - checked > dispatch.DISPATCH_SECONDS:
                loop.check_finite(carry)
                on_step(step)
                checked = time.perf_counter()
        loop.check_finite(carry)
        on_step(step)
        return carry, step

    def _run_updates(self, carry: Carry, first: int, last: int) -> tuple[Carry, int]:
        assert self._update is not None
        before = time.perf_counter()
        carry = self._update(carry, self.offline, self.buffer.replay, np.int32(first), np.int32(last))
        if last - first > self.config.envs:  # the updates of an episode: in several dispatches, for a signal may come
            jax.block_until_ready(carry.since)
            self._pace.record(last - first, time.perf_counter() - before)
        return carry, last

    def _actions(self, carry: Carry, ahead: int = 0) -> np.ndarray:
        lanes = self.collector.lanes
        policy = self._algorithm.policy(carry.state)
        random = self.collected + ahead + np.arange(self.config.envs) < self.config.random_steps

        def choose() -> Any:
            return self._explore(policy, lanes.observations, lanes.episodes, lanes.steps, random)

        if self._playing is None:
            actions = np.asarray(choose())
        else:
            actions = self._playing(choose, *map(np.asarray, (lanes.observations, lanes.episodes, lanes.steps)))
        if not np.isfinite(actions).all():
            loop.check_finite(carry)  # names the first loss that is not finite; if all are, the lanes raise
        return actions

    def _collect(self, carry: Carry, signals: loop.Signals) -> list[Transition]:
        """One transition of each environment, or a whole episode; nothing if a signal or a failure comes first."""
        collected: list[Transition] = []
        start, returns = self.collector.lanes.position, list(self.collector.returns)
        while True:
            self.collector.lanes.send(self._actions(carry, len(collected)))
            collected += self.collector.receive()
            if self.config.collect == "step":
                return collected
            if self.failure is not None or signals.received is not None:
                self.collector.abandon_episode(start, returns)
                return []
            if collected and (has_ended(collected[-1]) or self.collected + len(collected) == self.steps):
                return collected

    def _receive_pending(self) -> None:
        self._insert(self.collector.receive())
        if self.failure is None:
            self.pending_actions = None

    def _insert(self, transitions: list[Transition]) -> None:
        """Add transitions to the buffer and to the store, and log the episodes that ended."""
        ended, self.collector.failed_episodes = self.collector.failed_episodes, []
        if not transitions:
            self._log(ended)
            return
        rows = rows_of(transitions, self.spec, self.config)
        if self.config.collect == "episode":
            batch = rows.batch._replace(next_actions=next_actions(rows))
            if self.discount is not None:
                # An episode that failed, and the one that the run's last step falls into, also end here.
                ends = rows.terminals | np.append(np.diff(rows.episodes) != 0, True)
                batch = batch._replace(returns=returns_of(batch.rewards, batch.masks, ends, self.discount))
            rows = rows._replace(batch=batch)
            self.buffer.extend(rows)
        else:
            self.buffer.follow(rows)
        self.store.append(rows)
        first = self.first_step + self.collected + 1 - len(transitions)
        for step, each in enumerate(transitions, start=first):
            if has_ended(each):
                length = each.step + 1
                ended.append(self.collector.episode_row(each.lane, each.episode, length, each.success, "ok", step))
                self.recent.append([self.collector.returns[each.lane], length, each.success])
                self.episodes += 1
        self._log(ended)


def make_online(
    config: RunConfig,
    env: EnvFactory,
    spec: Spec,
    algorithm: Algorithm,
    feed: Feed,
    sampling: Sampling,
    store: ReplayStore,
    log: Callable[[list[dict[str, Any]]], None],
    message: Callable[[str], None],
) -> Online:
    """The online phase of a run on the data of its feed, without proposals of a frozen flow, which new rows lack.

    `log` writes the rows of exploration.jsonl.
    """
    method = algos.get(config.algo)
    if not isinstance(feed, DeviceFeed):
        raise ConfigError(
            "the data is larger than the memory limit, and online training needs it on the device: raise "
            "--memory-limit, or train on fewer rows"
        )
    assert isinstance(feed.data, Source)

    def make_lanes() -> Lanes:
        make_env = env.function(spec)
        lanes = Lanes(make_env, config.online.envs, name=env.name, step_timeout=config.eval_timeout)
        try:
            check_spaces(env.name, lanes, spec)
        except EnvError:
            lanes.close()
            raise
        return lanes

    return Online(
        config.online,
        algorithm,
        spec,
        feed.data._replace(rows=feed.data.rows._replace(proposals=None)),
        seed=config.seed,
        first_step=config.steps,
        steps=config.online_steps,
        batch_size=config.batch_size,
        sampling=sampling,
        discount=config.options.discount if method.needs_returns else None,
        make_lanes=make_lanes,
        store=store,
        log=log,
        message=message,
    )
