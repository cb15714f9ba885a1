"""Exploration: which actions the environments are given, and the rows that their transitions become."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.algos import Algorithm
from fidec.envs.lanes import Transition
from fidec.store.replay import Rows
from fidec.types import Batch, Spec


def make_explorer(algorithm: Algorithm, seed: int, action_dim: int) -> Any:
    """explore(policy, observations, episodes, steps, random) -> actions; a lane's key is that of its episode's step.

    `random` tells which lanes are to act at random.

    So an episode meets the same random numbers whatever runs beside it, and again when it is played again.
    """
    key = rng.stream(seed, "explore")
    explore = algorithm.explore or algorithm.act

    @jax.jit
    def actions(policy, observations, episodes, steps, random):
        def one(observation, episode, step, random):
            own = rng.at(key, episode, step)
            blind = jax.random.uniform(own, (action_dim,), minval=-1.0, maxval=1.0)
            return jnp.where(random, blind, explore(policy, observation, own))

        return jax.vmap(one)(observations, episodes, steps, random)

    return actions


def rows_of(transitions: list[Transition], spec: Spec, reward_shift: float) -> Rows:
    """Transitions as the buffer holds them: of stacked images the next observation is the newest frame alone."""
    channels = spec.observation_shape[-1] // spec.frame_stack if spec.images else None
    actions = np.stack([each.action for each in transitions]).astype(np.float32)
    following = np.stack([each.next_observation for each in transitions])
    batch = Batch(
        observations=np.stack([each.observation for each in transitions]),
        actions=actions,
        rewards=np.array([each.reward + reward_shift for each in transitions], np.float32),
        masks=np.array([not each.terminated for each in transitions], np.float32),
        next_observations=following if channels is None else following[..., -channels:],
        next_actions=actions,
    )
    return Rows(
        batch=batch,
        episodes=np.array([each.episode for each in transitions], np.int32),
        steps=np.array([each.step for each in transitions], np.int32),
        lanes=np.array([each.lane for each in transitions], np.int32),
        terminals=np.array([has_ended(each) for each in transitions]),
    )


def next_actions(rows: Rows) -> np.ndarray:
    """For each row the action of its episode's next one; where there is none, its own."""
    found = np.array(rows.batch.actions)
    order = np.lexsort((rows.steps, rows.episodes))
    here, there = order[:-1], order[1:]
    follows = (rows.episodes[here] == rows.episodes[there]) & (rows.steps[here] + 1 == rows.steps[there])
    found[here[follows]] = rows.batch.actions[there[follows]]
    return found


def has_ended(transition: Transition) -> bool:
    return transition.terminated or transition.truncated


def of_episode(rows: Rows | None, episode: int) -> Batch:
    if rows is None:
        return Batch(*[np.zeros((0, 1), np.float32)] * 6)
    found = np.flatnonzero(rows.episodes == episode)
    found = found[np.argsort(rows.steps[found])]
    return jax.tree.map(lambda column: column[found], rows.batch)
