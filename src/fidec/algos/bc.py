"""BC: behaviour cloning with a Gaussian of unit variance.

    L = -E log N(a; mu(s), I) = E 1/2 |a - mu(s)|^2 + const

The action is the mean. Source: the benchmark's description; no code was published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.ops import policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class BCConfig(options.NetworkConfig):
    """BC's options."""


def make(config: BCConfig, spec: Spec) -> Algorithm:
    actor: Any = nn.Actor(config.hidden, spec.action_dim, encoder=backbone.encoder(spec))
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        return backbone.start(backbone.init_modules(key, {"actor": (actor, "s")}, spec), adam)

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        return backbone.descend(state, {"actor": lambda own, params: actor_loss(own, batch)}, adam)

    def actor_loss(own, batch: Batch):
        mean = actor.apply(own, batch.observations)
        likelihood = policies.normal_log_prob(batch.actions, mean, jnp.zeros_like(mean), batch.action_weights)
        return -likelihood.mean(), {"mse": jnp.mean(values.weigh((batch.actions - mean) ** 2, batch.action_weights))}

    def validate(state: State, batch: Batch, key: PRNGKey) -> Metrics:
        loss, metrics = actor_loss(state.params["actor"], batch)
        return {"actor_loss": loss, **metrics}

    def act(state: State, observations, key, noise=1.0):
        return jnp.clip(actor.apply(state.params["actor"], observations), -1.0, 1.0)

    policy = lambda state: backbone.keep_params(state, "actor")  # noqa: E731
    return Algorithm(init, update, act, policy, validate=validate)


METHOD = Method(
    name="bc",
    summary="behaviour cloning with a Gaussian",
    config=BCConfig,
    make=make,
    needs_rewards=False,
    offline_only="it imitates its data, so it would imitate its own actions and not improve",
    logs={"mse": "mean squared error of the mean action"},
)
