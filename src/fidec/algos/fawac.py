"""FAWAC: a flow policy trained by advantage-weighted flow matching.

    critic  E (Q(s, a) - r - gamma m Qbar(s', mu_theta(s', z)))^2
    value   E (V(s) - mean Qbar(s, a))^2
    flow    E w |v_theta(s, x_t, t) - (a - z)|^2 / d,   w = min(exp(alpha (mean Q(s, a) - V(s))), 100)

The benchmark's paper gives neither the definition of V nor the limit of the weights. Here V is a network regressed
on the target critics at the data's actions. The limit is 100, as in a later flow AWAC by the same group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.ops import flow, policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class FAWACConfig(options.FlowConfig):
    """FAWAC's options."""

    alpha: float = 1.0
    """Inverse temperature of the advantage weights."""
    weight_limit: float = 100.0
    """Largest weight."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "alpha", "weight_limit")


def make(config: FAWACConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    value: Any = nn.Value(config.hidden, encoder=encoder)
    policy = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "value": (value, "s"), "flow": (policy.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        next_key, flow_key = jax.random.split(key)

        def critic_loss(own, params):
            noise = jax.random.normal(next_key, batch.actions.shape)
            next_actions = policy.sample(params["flow"], batch.next_observations, noise)
            return backbone.policy_critic_loss(
                critic, own, state.target["critic"], batch, next_actions, config, next_key
            )

        def value_loss(own, params):
            q = critic.apply(state.target["critic"], batch.observations, batch.actions).mean(axis=0)
            v = value.apply(own, batch.observations)
            return jnp.mean(values.weigh((v - q) ** 2, batch.value_weights)), {"v": v.mean()}

        def flow_loss(own, params):
            q = critic.apply(params["critic"], batch.observations, batch.actions).mean(axis=0)
            advantage = q - value.apply(params["value"], batch.observations)
            weight = policies.advantage_weights(advantage, config.alpha, config.weight_limit)
            weight = values.weigh(weight, batch.value_weights)
            velocity = policy.velocity(own, batch.observations)
            errors = flow.matching_errors(velocity, batch.actions, flow_key, batch.action_weights)
            return jnp.mean(weight * errors), {"advantage": advantage.mean(), "weight": weight.mean()}

        losses = {"critic": critic_loss, "value": value_loss, "flow": flow_loss}
        return backbone.descend(state, losses, adam, config.target_rate)

    act, choose = backbone.flow_act(critic, policy, spec)
    return Algorithm(init, update, act, lambda state: backbone.keep_params(state, "critic", "flow"), choose=choose)


METHOD = Method(
    name="fawac",
    summary="flow policy by advantage-weighted flow matching",
    config=FAWACConfig,
    make=make,
    logs={
        "v": "mean of V",
        "advantage": "mean of Q - V at the data's actions",
        "weight": "mean weight of a row in the flow's loss",
    },
)
