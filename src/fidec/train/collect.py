"""Collection of transitions online: exploratory actions, environments that may fail, and the rows they become."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.algos import Algorithm
from fidec.envs.exploration import Failure, Lanes, Transition, exploration_seed
from fidec.errors import EnvError
from fidec.store.replay import Rows
from fidec.train.config import OnlineConfig
from fidec.types import Batch, Spec


def make_explorer(algorithm: Algorithm, seed: int, action_dim: int) -> Any:
    """explore(policy, observations, episodes, steps, random) -> actions, one for each environment.

    `random` says which environments get a uniformly random action. The key of an action depends only on its episode
    and its step. So an episode gets the same random numbers with any number of environments, and when it is replayed.
    """
    explore = algorithm.explore or algorithm.act

    @jax.jit
    def actions(key, policy, observations, episodes, steps, random):
        def one(observation, episode, step, random):
            own = rng.at(key, episode, step)
            uniform = jax.random.uniform(own, (action_dim,), minval=-1.0, maxval=1.0)
            return jnp.where(random, uniform, explore(policy, observation, own))

        return jax.vmap(one)(observations, episodes, steps, random)

    return partial(actions, rng.stream(seed, "explore"))


def rows_of(transitions: list[Transition], spec: Spec, config: OnlineConfig) -> Rows:
    """Transitions as the buffer stores them, with rewards as in training.

    Of stacked observations the next one is the newest alone.
    """
    rewards = np.array([each.reward + (config.reward_shift or 0.0) for each in transitions], np.float32)
    if config.reward_done is not None:
        rewards = np.where(rewards >= config.reward_done, 0, -1).astype(np.float32)
    newest = spec.newest(spec.inputs[0])
    actions = np.stack([each.action for each in transitions]).astype(np.float32)
    following = np.stack([each.next_observation for each in transitions])
    batch = Batch(
        observations=np.stack([each.observation for each in transitions]),
        actions=actions,
        rewards=rewards,
        masks=np.array([not each.terminated for each in transitions], np.float32),
        next_observations=following[..., -newest:],
        next_actions=actions,
    )
    return Rows(
        batch=batch,
        episodes=np.array([each.episode for each in transitions], np.int32),
        steps=np.array([each.step for each in transitions], np.int32),
        lanes=np.array([each.lane for each in transitions], np.int32),
        terminals=np.array([has_ended(each) for each in transitions]),
    )


def has_ended(transition: Transition) -> bool:
    return transition.terminated or transition.truncated


class Collector:
    """The environments of the online phase. They are started when first needed.

    `current_step()` is the training step, for the rows of the log. `failure` is the error of an environment that
    ended the last collection; None if there was none, or as many as `max_failures` allows.
    """

    def __init__(
        self,
        config: OnlineConfig,
        seed: int,
        current_step: Callable[[], int],
        make_lanes: Callable[[], Lanes],
        message: Callable[[str], None],
    ):
        self.config, self.seed = config, seed
        self.failure: EnvError | None = None
        self.waiting_time = 0.0  # seconds that `receive` took since this was last reset
        self.returns = [0.0] * config.envs  # of the running episodes
        self.failed_episodes: list[dict[str, Any]] = []  # log rows of this round
        self._current_step, self._make_lanes, self._message = current_step, make_lanes, message
        self._lanes: Lanes | None = None
        self._restored: tuple[dict[str, Any], Rows | None] | None = None  # where the environments will continue
        self._abandoned: dict[str, Any] | None = None  # where an episode began that was not finished

    @property
    def lanes(self) -> Lanes:
        """The environments, where the run left them."""
        if self._lanes is None:
            self._lanes = self._make_lanes()
            try:
                self._place(self._lanes)
            except Failure as failure:
                self._recover(failure)
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
            lambda episode: _episode(rows, episode).actions,
            lambda episode: _episode(rows, episode).next_observations,
        )
        if lost:
            self._message(
                "the environment is not deterministic: replaying its episode did not lead to the same state. The run "
                f"continues with the next episode, in {len(lost)} of {self.config.envs} environments"
            )

    @property
    def has_failures(self) -> bool:
        return self._lanes is not None and self._lanes.failures > 0

    def position(self) -> dict[str, Any]:
        """Where the environments are, for a checkpoint."""
        waiting = self._restored[0] if self._restored is not None and self._lanes is None else None
        return self._abandoned or waiting or self.lanes.position

    def restore(self, position: dict[str, Any], rows: Rows | None) -> None:
        """Continue at a stored position, once the environments are started. `rows` are all that were collected."""
        self._restored = position, rows

    def abandon_episode(self, start: dict[str, Any], returns: list[float]) -> None:
        """Forget the running episode. It will be collected again, by the same policy, from its `start`."""
        self._abandoned, self.returns, self.failed_episodes = start, returns, []

    def receive(self) -> list[Transition]:
        """The transitions of the round whose actions were sent; none if there is a `failure`."""
        before = time.perf_counter()
        try:
            received = self.lanes.receive()
        except Failure as failure:
            received = self._recover(failure)
        self.waiting_time += time.perf_counter() - before
        for each in received:
            self.returns[each.lane] = each.reward + (self.returns[each.lane] if each.step else 0.0)
        return received

    def _recover(self, failure: Failure) -> list[Transition]:
        """The transitions of a round in which an environment failed; none, and `failure`, if too many did."""
        assert self._lanes is not None
        while self._lanes.failures < self.config.max_failures:
            self._message(f"{failure}. The run continues with the next episode")
            row = self.episode_row(failure.lane, failure.episode, failure.step, None, failure.kind)
            self.failed_episodes.append(row)
            try:
                return self._lanes.recover()
            except Failure as another:
                failure = another
            except EnvError as error:  # a process that cannot be started again
                self.failure, self.failed_episodes = error, []
                return []
        self.failure, self.failed_episodes = failure, []  # the whole round will be collected again
        return []

    def episode_row(
        self, lane: int, episode: int, length: int, success: float | None, status: str, step: int | None = None
    ) -> dict[str, Any]:
        """A row of exploration.jsonl, at this training step or the current one."""
        return {
            "step": self._current_step() if step is None else step,
            "episode": episode,
            "seed": exploration_seed(self.seed, episode),
            "lane": lane,
            "return": self.returns[lane] if length else 0.0,
            "length": length,
            "success": success,
            "status": status,
        }

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


def _episode(rows: Rows | None, episode: int) -> Batch:
    if rows is None:
        return Batch(*[np.zeros((0, 1), np.float32)] * 6)
    own = np.flatnonzero(rows.episodes == episode)
    own = own[np.argsort(rows.steps[own])]
    return jax.tree.map(lambda column: column[own], rows.batch)
