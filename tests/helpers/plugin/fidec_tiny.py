"""A method that costs next to nothing, as another package would add it.

The method regresses on the data's actions with a linear map, jittered by its random key, so that a wrong key
at any step shows in the parameters. A reward of 1e6 or more makes its `term` infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fidec.algos import Method, with_base


@dataclass(frozen=True)
class TinyConfig:
    """Options of the tiny method."""

    learning_rate: float = 0.05
    """Step size."""
    jitter: float = 0.01
    """Standard deviation of the noise on the parameters."""


def make(config, spec):
    def init(key):
        shape = (*spec.observation_shape, spec.action_dim)
        # The counter starts as a Python number: a run has to cope with the weak type.
        return {"weight": 0.1 * jax.random.normal(key, shape), "count": jnp.asarray(0), "slow": None}

    def update(state, batch, key):
        def loss(weight):
            return jnp.mean((jnp.tanh(batch.observations @ weight) - batch.actions) ** 2)

        value, gradient = jax.value_and_grad(loss)(state["weight"])
        noise = config.jitter * jax.random.normal(key, gradient.shape)
        weight = state["weight"] - config.learning_rate * gradient + config.learning_rate * noise
        metrics = {
            "loss": value,
            "reward": batch.rewards.mean(),
            "term": jnp.sum(1.0 / jnp.where(batch.rewards >= 1e6, 0.0, 1.0)),
        }
        return {**state, "weight": weight, "count": state["count"] + 1}, metrics

    def act_with_base(state, observations, key, candidates=1, noise=1.0, strength=1.0):
        base = jnp.tanh(observations @ state["weight"])
        return jnp.clip(base + strength * noise * 0.1 * jax.random.normal(key, base.shape), -1.0, 1.0), base

    return with_base(init, update, act_with_base, lambda state: {**state, "count": None})


METHOD = Method("tiny", "a linear map, for tests", TinyConfig, make)
