"""The online phase of a run: environment steps, a buffer on the device, and updates on both kinds of data.

One step is one transition, added to the buffer, and `updates` gradient steps on batches drawn from offline and online
rows together. With `collect` episode a whole episode comes first and its updates after it. What was collected is
never more than one round ahead of the updates, and both counts are all that a checkpoint needs: random numbers are
functions of the seed and the step, the rows are on the disk (`fidec.store.replay`), and the running episode is
played again from its seed and its recorded actions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fidec import algos
from fidec.algos import Algorithm
from fidec.data.dataset import returns_of
from fidec.data.feed import DeviceFeed, Feed
from fidec.data.sampling import Sampling, Source
from fidec.envs.factory import EnvFactory
from fidec.envs.lanes import Failure, Lanes, Transition, exploration_seed
from fidec.errors import ConfigError, EnvError
from fidec.store.replay import ReplayStore, Rows
from fidec.train import loop
from fidec.train.buffer import Buffer, check_buffer
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.evaluate import check_spaces
from fidec.train.explore import has_ended, make_explorer, next_actions, of_episode, rows_of
from fidec.train.loop import Carry
from fidec.types import Spec


class Online:
    """Everything of the online phase that is not in the carry."""

    def __init__(
        self,
        settings: OnlineConfig,
        algorithm: Algorithm,
        spec: Spec,
        offline: Source,
        *,
        seed: int,
        handover: int,
        steps: int,
        batch_size: int,
        sampling: Sampling,
        discount: float | None,
        make_lanes: Callable[[], Lanes],
        store: ReplayStore,
        log: Callable[[list[dict[str, Any]]], None],
        message: Callable[[str], None],
    ):
        self.settings, self.spec, self.seed = settings, spec, seed
        self.handover, self.steps = handover, steps  # the first online step, and how many there are
        self.offline, self.discount, self.store = offline, discount, store
        self._algorithm, self._log, self._message = algorithm, log, message
        self.size = len(offline.rows.rewards)
        self.balanced = settings.sampling == "balanced"
        self.capacity = check_buffer(settings, self.size, batch_size)
        sampling = dataclasses.replace(sampling, fraction=settings.fraction, capacity=self.capacity)
        most = steps + settings.envs - 1  # the last round may be larger than needed
        self.buffer = Buffer(offline, sampling, most)
        self.failure: EnvError | None = None  # of an environment, which ended the last `run_to`
        self.waited = 0.0  # seconds for the environments, since it was last taken
        self.returns = [0.0] * settings.envs  # of the running episodes
        self.recent: list[list[float | None]] = []  # return, length, success of episodes since the last log row
        self.episodes = 0
        self.owed: list[list[float]] | None = None  # actions of a round whose updates came first, until it is there
        looped = not loop.step_by_step(spec)
        updates = loop.make_online_steps(
            algorithm,
            seed,
            batch_size,
            sampling,
            balanced=self.balanced,
            updates=settings.updates,
            looped=looped,
        )
        self._jitted, self._looped, self._pace = updates, looped, loop.Pace()
        self._update: Callable | None = None  # compiled when first needed
        self._explore = make_explorer(algorithm, seed, spec.action_dim)
        self._make_lanes = make_lanes
        self._lanes: Lanes | None = None
        self._restored: tuple[dict[str, Any], Rows | None] | None = None  # where the environments will go on
        self._given_up: dict[str, Any] | None = None  # where an episode began that was not finished
        self._lost: list[dict[str, Any]] = []  # rows of episodes that failed in a round that is not over yet

    @property
    def collected(self) -> int:
        """Transitions so far."""
        return self.buffer.count

    @property
    def begun(self) -> bool:
        """Whether there is anything that a checkpoint has to remember."""
        return self.collected > 0 or (self._lanes is not None and self._lanes.failures > 0)

    # --- position ----------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> Lanes:
        """The environments, started when first needed, where the run left them."""
        if self._lanes is None:
            self._lanes = self._make_lanes()
            try:
                self._place(self._lanes)
            except Failure as failure:
                self._recovered(failure)
                if self.failure is not None:
                    raise self.failure from failure
        return self._lanes

    def _place(self, lanes: Lanes) -> None:
        if self._restored is None:
            lanes.begin(self.seed)
            return
        position, rows = self._restored
        lost = lanes.restore(
            self.seed,
            position,
            lambda episode: of_episode(rows, episode).actions,
            lambda episode: of_episode(rows, episode).next_observations,
        )
        if lost:
            self._message(
                "the environment is not deterministic: playing its episode again did not bring it back to where it "
                f"was. The run goes on with the next episode, in {len(lost)} of {self.settings.envs} environments"
            )

    def position(self) -> dict[str, Any]:
        """What a checkpoint remembers, with the rows so far safe on the disk."""
        waiting = self._restored[0] if self._restored is not None and self._lanes is None else None
        return {
            "lanes": self._given_up or waiting or self.lanes.position,
            "owed": self.owed,
            "returns": self.returns,
            "recent": self.recent,
            "episodes": self.episodes,
            "segments": self.store.flush(),
        }

    def restore(self, position: dict[str, Any] | None) -> None:
        """Back to where a checkpoint was taken; None if that was before the first online step."""
        if position is None:
            self.store.restore(None)  # a segment that never got its checkpoint would be in the way
            return
        self.episodes, self.recent, self.returns = position["episodes"], position["recent"], position["returns"]
        self.owed = position["owed"]
        rows = self.store.restore(position["segments"])
        if rows is not None:
            self.buffer.fill(rows)
        self._restored = position["lanes"], rows

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    # --- metrics -----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """For a row of the training log."""
        held = min(self.collected, self.capacity)
        left = self.size if self.balanced else min(self.size, self.capacity - held)
        share = 1.0 - self.settings.fraction if self.balanced else left / (left + held)
        found: dict[str, Any] = {
            "online/steps": self.collected,
            "online/buffer": held if self.balanced else left + held,
            "online/offline_share": share,
            "exploration/episodes": self.episodes,
        }
        for name, values in zip(("return", "length", "success"), zip(*self.recent, strict=True), strict=False):
            known = [value for value in values if value is not None]
            if known:
                found[f"exploration/{name}"] = float(np.mean(known))
        return found

    # --- the loop ----------------------------------------------------------------------------------------------

    def compile(self, carry: Carry) -> float:
        """Compile the updates, if that has not been done; returns the seconds that it took."""
        before = time.perf_counter()
        if self._update is None:
            compiled = self._jitted.lower(carry, self.offline, self.buffer.replay, np.int32(0), np.int32(1)).compile()
            self._update = compiled if self._looped else loop.one_by_one(compiled)
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
        step, asked, self.failure = first, time.perf_counter(), None
        if self.owed is not None:  # an environment failed in it, and the policy that chose its actions is gone
            self.lanes.send(np.asarray(self.owed, np.float32))
            self._settle()
        while signals.received is None and self.failure is None:
            ahead = self.collected - (step - self.handover)
            if step == last and ahead >= 0:
                break
            if ahead > 0:
                carry, step = self._updated(carry, step, step + self._pace.next(min(last - step, ahead)))
            elif ahead == 0 and self.settings.overlap and self.collected > 0:
                # The environments step while the network learns from what was there before.
                actions = self._actions(carry)
                self.lanes.send(actions)
                self.owed = actions.tolist()
                carry, step = self._updated(carry, step, min(last, step + self.settings.envs))
                self._settle()
            else:  # behind only if an episode was lost while its updates were made
                self._insert(self._collect(carry, signals))
            if time.perf_counter() - asked > loop.DISPATCH_SECONDS:
                loop.check_finite(carry)
                on_step(step)
                asked = time.perf_counter()
        loop.check_finite(carry)
        on_step(step)
        return carry, step

    def _updated(self, carry: Carry, first: int, last: int) -> tuple[Carry, int]:
        assert self._update is not None
        before = time.perf_counter()
        carry = self._update(carry, self.offline, self.buffer.replay, np.int32(first), np.int32(last))
        if last - first > self.settings.envs:  # the updates of an episode: not all at once, for a signal may come
            jax.block_until_ready(carry.since)
            self._pace.record(last - first, time.perf_counter() - before)
        return carry, last

    def _actions(self, carry: Carry, ahead: int = 0) -> np.ndarray:
        lanes = self.lanes
        policy = self._algorithm.policy(carry.state)
        random = self.collected + ahead + np.arange(self.settings.envs) < self.settings.random_steps
        actions = np.asarray(self._explore(policy, lanes.observations, lanes.episodes, lanes.steps, random))
        if not np.isfinite(actions).all():
            loop.check_finite(carry)  # names the loss that was the first to go; if none did, the lanes say it
        return actions

    def _collect(self, carry: Carry, signals: loop.Signals) -> list[Transition]:
        """One transition of each environment, or a whole episode; nothing if a signal or a failure comes first."""
        collected: list[Transition] = []
        start, returns = self.lanes.position, list(self.returns)
        while True:
            self.lanes.send(self._actions(carry, len(collected)))
            collected += self._received()
            if self.settings.collect == "step":
                return collected
            if self.failure is not None or signals.received is not None:
                # The episode will be made again, by the same policy.
                self._given_up, self.returns, self._lost = start, returns, []
                return []
            if collected and (has_ended(collected[-1]) or self.collected + len(collected) == self.steps):
                return collected

    def _received(self) -> list[Transition]:
        before = time.perf_counter()
        try:
            received = self.lanes.receive()
        except Failure as failure:
            received = self._recovered(failure)
        self.waited += time.perf_counter() - before
        for each in received:
            self.returns[each.lane] = each.reward + (self.returns[each.lane] if each.step else 0.0)
        return received

    def _settle(self) -> None:
        self._insert(self._received())
        if self.failure is None:
            self.owed = None

    def _recovered(self, failure: Failure) -> list[Transition]:
        """What a round gave in which an environment failed; nothing, and `failure`, if there were too many."""
        assert self._lanes is not None
        while self._lanes.failures < self.settings.max_failures:
            self._message(f"{failure}. The run goes on with the next episode")
            self._lost.append(self._row(failure.lane, failure.episode, failure.step, None, failure.kind))
            try:
                return self._lanes.recover()
            except Failure as another:
                failure = another
            except EnvError as error:  # a process that cannot be started again
                self.failure, self._lost = error, []
                return []
        self.failure, self._lost = failure, []  # the whole round will be made again
        return []

    def _insert(self, transitions: list[Transition]) -> None:
        """Into the buffer, the store and the log."""
        ended, self._lost = self._lost, []
        if not transitions:
            self._log(ended)
            return
        rows = rows_of(transitions, self.spec, self.settings.reward_shift or 0.0)
        if self.settings.collect == "episode":
            batch = rows.batch._replace(next_actions=next_actions(rows))
            if self.discount is not None:
                # Cut off are also an episode that failed and the one that the run's last step falls into.
                ends = rows.terminals | np.append(np.diff(rows.episodes) != 0, True)
                batch = batch._replace(returns=returns_of(batch.rewards, batch.masks, ends, self.discount))
            rows = rows._replace(batch=batch)
            self.buffer.extend(rows)
        else:
            self.buffer.follow(rows)
        self.store.append(rows)
        for number, each in enumerate(transitions, start=self.collected + 1 - len(transitions)):
            if has_ended(each):
                ended.append(self._row(each.lane, each.episode, each.step + 1, each.success, "ok", number))
                self.recent.append([self.returns[each.lane], each.step + 1, each.success])
                self.episodes += 1
        self._log(ended)

    def _row(
        self, lane: int, episode: int, length: int, success: float | None, status: str, collected: int | None = None
    ) -> dict[str, Any]:
        return {
            "step": self.handover + (self.collected if collected is None else collected),
            "episode": episode,
            "seed": exploration_seed(self.seed, episode),
            "lane": lane,
            "return": self.returns[lane] if length else 0.0,
            "length": length,
            "success": success,
            "status": status,
        }


def make_online(
    config: RunConfig,
    env: EnvFactory,
    spec: Spec,
    feed: Feed,
    sampling: Sampling,
    store: ReplayStore,
    **voices: Callable,
) -> Online:
    """The online phase of a run on the data of its feed; `voices` are where it logs and speaks."""
    method = algos.get(config.algo)
    if not isinstance(feed, DeviceFeed):
        raise ConfigError(
            "the data is larger than the memory limit, and online training needs it on the device: raise "
            "--memory-limit, or train on fewer rows"
        )
    assert isinstance(feed.data, Source)

    def make_lanes() -> Lanes:
        lanes = Lanes(env.function(spec.frame_stack), config.online.envs, step_timeout=config.eval_timeout)
        try:
            check_spaces(env.name, lanes, spec)
        except EnvError:
            lanes.close()
            raise
        return lanes

    frozen = {"train_flow": False} if config.online.freeze_flow else {}
    return Online(
        config.online,
        method.make(dataclasses.replace(config.options, **frozen), spec),
        spec,
        feed.data,
        seed=config.seed,
        handover=config.steps,
        steps=config.online_steps,
        batch_size=config.batch_size,
        sampling=sampling,
        discount=config.options.discount if method.needs_returns else None,
        make_lanes=make_lanes,
        store=store,
        **voices,
    )
