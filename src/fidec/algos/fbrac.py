"""FBRAC: a flow policy that maximises Q by gradients through its own ODE; flow matching keeps it near the data.

    critic  E (Q(s, a) - r - gamma m Qbar(s', mu_theta(s', z)))^2
    flow    alpha E |v_theta(s, x_t, t) - (a - z)|^2 / d - E Q(s, mu_theta(s, z))

The gradient of Q goes through all Euler steps and the final clip. It is zero where the clip is active.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.ops import values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class FBRACConfig(options.FlowConfig):
    """FBRAC's options."""

    alpha: float = 100.0
    """Weight of flow matching; from 1 to 30,000 over the benchmark's tasks."""
    normalize_q: bool = False
    """Divide Q by its mean magnitude in the policy's objective."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "alpha")


def make(config: FBRACConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    policy = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (policy.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        next_key, flow_key, noise_key = jax.random.split(key, 3)

        def critic_loss(own, params):
            noise = jax.random.normal(next_key, batch.actions.shape)
            next_actions = policy.sample(params["flow"], batch.next_observations, noise)
            return backbone.policy_critic_loss(
                critic, own, state.target["critic"], batch, next_actions, config, next_key
            )

        def flow_loss(own, params):
            matching = policy.loss(own, batch, flow_key)
            actions = policy.sample(own, batch.observations, jax.random.normal(noise_key, batch.actions.shape))
            q = critic.apply(params["critic"], batch.observations, actions).mean(axis=0)
            scale = values.value_scale(q) if config.normalize_q else 1.0
            loss = config.alpha * matching - scale * q.mean()
            return loss, {"matching": matching, "q_policy": q.mean()}

        losses = {"critic": critic_loss, "flow": flow_loss}
        return backbone.descend(state, losses, adam, config.target_rate)

    act, choose = backbone.flow_act(critic, policy, spec)
    return Algorithm(init, update, act, lambda state: backbone.keep_params(state, "critic", "flow"), choose=choose)


METHOD = Method(
    name="fbrac",
    summary="flow policy that maximises Q through its ODE; flow matching keeps it near the data",
    config=FBRACConfig,
    make=make,
    logs={
        "matching": "the flow-matching loss, without its weight",
        "q_policy": "mean of Q at the policy's actions",
    },
)
