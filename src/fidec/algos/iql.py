"""IQL: a value by expectile regression on the data's actions, and a policy by advantage-weighted regression.

    value   E |tau - 1(u < 0)| u^2,   u = min Qbar(s, a) - V(s)
    critic  E (Q_i(s, a) - r - gamma m V(s'))^2, summed over the two critics
    actor   -E min(exp(alpha A), 100) log N(a; mu(s), I),   A = min Q(s, a) - V(s)

The action is the mean. Online it explores with a sample of that Gaussian. IFQL, IDQL and SRPO also use
`value_losses`.
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
from fidec.errors import ConfigError
from fidec.ops import policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class ExpectileConfig(options.ValueConfig):
    """Options of expectile value learning."""

    q_aggregate: values.Aggregate = "min"
    """How the critics are combined in the target of V, and for IQL in its weights: the lowest (min), the mean, or
    the lower of two that are drawn at random (random_pair)."""
    expectile: float = 0.9
    """tau: 0.5 is the mean of the data's values, towards 1 their maximum."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile must lie strictly between 0 and 1, not {self.expectile}")


@dataclass(frozen=True)
class IQLConfig(ExpectileConfig):
    """IQL's options."""

    alpha: float = 10.0
    """Inverse temperature of the advantage weights."""
    exploration_noise: float = 1.0
    """Standard deviation of the noise added to the mean for exploration online; 1 is the policy's own."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "alpha", "exploration_noise")


def value_losses(
    config: ExpectileConfig, critic: Any, value: Any, target: Any, batch: Batch, key: PRNGKey
) -> dict[str, Any]:
    """The losses of V and Q: V regresses on the target critic at the data's actions, Q on V at the next states."""

    def value_loss(own, params):
        q = config.aggregate(critic.apply(target, batch.observations, batch.actions), key)
        v = value.apply(own, batch.observations)
        return values.expectile_loss(q - v, config.expectile, batch.value_weights), {"v": v.mean()}

    def critic_loss(own, params):
        next_v = value.apply(params["value"], batch.next_observations)
        loss, metrics = backbone.critic_loss(critic, own, batch, next_v, config.discount)
        return critic.ensemble * loss, metrics

    return {"value": value_loss, "critic": critic_loss}


def make(config: IQLConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    actor: Any = nn.Actor(config.hidden, spec.action_dim, encoder=encoder)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    value: Any = nn.Value(config.hidden, encoder=encoder)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"value": (value, "s"), "critic": (critic, "sa"), "actor": (actor, "s")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        def actor_loss(own, params):
            q = config.aggregate(critic.apply(params["critic"], batch.observations, batch.actions), key)
            advantage = q - value.apply(params["value"], batch.observations)
            weight = values.weigh(policies.advantage_weights(advantage, config.alpha), batch.value_weights)
            mean = actor.apply(own, batch.observations)
            likelihood = policies.normal_log_prob(batch.actions, mean, jnp.zeros_like(mean), batch.action_weights)
            return -jnp.mean(weight * likelihood), {"advantage": advantage.mean(), "weight": weight.mean()}

        losses = value_losses(config, critic, value, state.target["critic"], batch, key) | {"actor": actor_loss}
        return backbone.descend(state, losses, adam, config.target_rate)

    def act(state: State, observations, key, noise=1.0):
        return jnp.clip(actor.apply(state.params["actor"], observations), -1.0, 1.0)

    def explore(state: State, observations, key):
        mean = actor.apply(state.params["actor"], observations)
        noise = config.exploration_noise * jax.random.normal(key, mean.shape)
        return jnp.clip(mean + noise, -1.0, 1.0)

    return Algorithm(init, update, act, lambda state: backbone.keep_params(state, "actor"), explore=explore)


METHOD = Method(
    name="iql",
    summary="expectile values, Gaussian policy by advantage-weighted regression",
    config=IQLConfig,
    make=make,
    parity="recommended",
    logs={
        "v": "mean of V",
        "advantage": "mean of A",
        "weight": "mean weight of a row in the actor's loss",
    },
)
