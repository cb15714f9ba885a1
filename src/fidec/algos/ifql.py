"""IFQL: IQL's values and a behaviour flow; the policy is the best of N flow samples.

flow    flow matching on the data's actions
act     argmax over a_1, ..., a_N ~ mu_beta(s, z) of min Q(s, a_i)

Online it explores with the same policy: the samples are random, so the best of them is too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optax

from fidec import nn
from fidec.algos.common import backbone, base_actions, options
from fidec.algos.common.base import Algorithm, Method, State, with_base
from fidec.algos.iql import ExpectileConfig, value_losses
from fidec.ops import policies
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class IFQLConfig(ExpectileConfig):
    """IFQL's options."""

    flow_steps: int = 10
    """Euler steps from noise to an action."""
    samples: int = 32
    """N: flow samples of which the critic picks the best."""
    train_flow: bool = True
    """Train the behaviour flow. False keeps it and its optimiser state as they are: a flow frozen online."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "samples", "flow_steps")


def make(config: IFQLConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    value: Any = nn.Value(config.hidden, encoder=encoder)
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"value": (value, "s"), "critic": (critic, "sa"), "flow": (behaviour.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        def flow_loss(own, params):
            return behaviour.loss(own, batch, key), {}

        losses = value_losses(config, critic, value, state.target["critic"], batch, key)
        if batch.proposals is None:
            losses |= {"flow": flow_loss}
        return backbone.descend(state, losses, adam, config.target_rate, frozen=backbone.frozen_modules(config))

    def act_with_base(state: State, observations, key, candidates: int = config.samples, noise=1.0):
        start = noise * backbone.noise_for(key, observations, spec, candidates)
        drawn = behaviour.sample(state.params["flow"], observations, start)
        q = critic.apply(state.params["critic"], observations, drawn).min(axis=0)
        return policies.best_of(drawn, q), drawn[0]  # the first one is a sample of the behaviour

    policy = lambda state: backbone.keep_params(state, "critic", "flow")  # noqa: E731
    return with_base(init, update, act_with_base, policy, propose=base_actions.nothing)


METHOD = Method(
    name="ifql",
    summary="expectile values, best of N samples of a behaviour flow",
    config=IFQLConfig,
    make=make,
    parity="recommended",
    logs={"v": "mean of V"},
)
