"""RLPD: soft actor-critic with layer normalisation in the critic, for half offline and half fresh data.

    critic       E (Q_i(s, a) - r - gamma m agg Qbar(s', a'))^2,   a' ~ pi(s')
    actor        E [alpha log pi(a | s) - mean_i Q_i(s, a)],   a ~ pi(s),   pi = tanh of a Gaussian
    temperature  alpha (H - H*),   H = -E log pi(a | s),   H* = -0.5 d

Nothing keeps the policy near the data: on offline data alone it is SAC and may exploit errors of the critic. This is
FQL's variant of RLPD: two critics, one update a step. Its paper takes the mean of the target critics except on
Adroit tasks; its code takes the minimum by default. The default here is the mean. The action is the tanh of the
policy's mean; exploration is a sample. Cal-QL also uses `soft_losses` and `explore_by_sample`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Explore, Method, State
from fidec.errors import ConfigError
from fidec.ops import policies, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class RLPDConfig(options.ValueConfig):
    """RLPD's options."""

    target_entropy_scale: float = 0.5
    """The target entropy is minus this, times the number of action dimensions."""
    backup_entropy: bool = False
    """Add the entropy of the next action to the TD target, as SAC does."""
    initial_temperature: float = 1.0
    """The temperature alpha before the first step. A small one helps if rewards are small."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.initial_temperature < math.inf:
            raise ConfigError(f"initial_temperature must be positive and finite, not {self.initial_temperature}")


def soft_losses(
    actor: Any,
    critic: Any,
    observations: Any,
    key: PRNGKey,
    *,
    aggregate: values.Aggregate,
    target_entropy: float,
    weight: Callable[[jax.Array], jax.Array],
) -> dict[str, Any]:
    """The losses of a policy and of its temperature, on the same draw of actions.

    `params["temperature"]` is log alpha; `weight(log alpha)` is the factor of H - H* in the temperature's loss.
    """

    def draw(params):
        return policies.tanh_normal_sample(key, *actor.apply(params, observations))

    def actor_loss(own, params):
        actions, log_probs = draw(own)
        q = values.aggregate(critic.apply(params["critic"], observations, actions), aggregate)
        loss = policies.soft_policy_loss(q, log_probs, jnp.exp(params["temperature"]))
        return loss, {"q_policy": q.mean(), "entropy": -log_probs.mean()}

    def temperature_loss(own, params):
        _, log_probs = draw(params["actor"])
        loss = policies.temperature_loss(weight(own), log_probs, target_entropy)
        return loss, {"temperature": jnp.exp(own)}

    return {"actor": actor_loss, "temperature": temperature_loss}


def explore_by_sample(actor: Any) -> Explore:
    """Explore with a sample of the tanh-Gaussian policy."""

    def explore(state: State, observations, key):
        return policies.tanh_normal_sample(key, *actor.apply(state.params["actor"], observations))[0]

    return explore


def make(config: RLPDConfig, spec: Spec) -> Algorithm:
    options.require_flat(spec, "rlpd")
    actor: Any = nn.GaussianActor(config.hidden, spec.action_dim)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics)
    adam = optax.adam(config.learning_rate)
    target_entropy = -config.target_entropy_scale * spec.action_dim

    def init(key: PRNGKey) -> State:
        params = backbone.init_modules(key, {"critic": (critic, "sa"), "actor": (actor, "s")}, spec)
        return backbone.start(
            params | {"temperature": jnp.log(jnp.float32(config.initial_temperature))}, adam, targets=("critic",)
        )

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        next_key, actor_key = jax.random.split(key)

        def critic_loss(own, params):
            next_actions, log_probs = policies.tanh_normal_sample(
                next_key, *actor.apply(params["actor"], batch.next_observations)
            )
            next_q = critic.apply(state.target["critic"], batch.next_observations, next_actions)
            next_v = config.aggregate(next_q, next_key)
            if config.backup_entropy:
                next_v -= jnp.exp(params["temperature"]) * log_probs
            return backbone.critic_loss(critic, own, batch, next_v, config.discount)

        losses = {"critic": critic_loss} | soft_losses(
            actor,
            critic,
            batch.observations,
            actor_key,
            aggregate="mean",
            target_entropy=target_entropy,
            weight=jnp.exp,
        )
        return backbone.descend(state, losses, adam, config.target_rate)

    def act(state: State, observations, key, noise=1.0):
        return jnp.tanh(actor.apply(state.params["actor"], observations)[0])

    return Algorithm(
        init, update, act, lambda state: backbone.keep_params(state, "actor"), explore=explore_by_sample(actor)
    )


METHOD = Method(
    name="rlpd",
    summary="soft actor-critic with a normalised critic, for a mix of offline and fresh data",
    config=RLPDConfig,
    make=make,
    parity="recommended",
    online={"sampling": "balanced"},
    logs={
        "q_policy": "mean of Q at the policy's actions",
        "entropy": "entropy of the policy, estimated by its log-density at drawn actions",
        "temperature": "alpha, the weight of the entropy",
    },
)
