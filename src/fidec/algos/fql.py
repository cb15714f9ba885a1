"""FQL: a one-step policy, distilled from a behaviour flow and trained to maximise Q.

    critic   E (Q(s, a) - r - gamma m Qbar(s', mu_omega(s', z)))^2
    flow     flow matching on the data's actions
    policy   alpha E |mu_omega(s, z) - mu_beta(s, z)|^2 / d - E Q(s, mu_omega(s, z))

The student mu_omega is one pass through a network, so acting needs no flow solve. Distillation compares the
student before clipping with the teacher mu_beta after clipping, as in FQL's code. Online it explores by its noise z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, base_actions, options
from fidec.algos.common.base import Algorithm, Method, State, with_base
from fidec.ops import values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class FQLConfig(options.BehaviourConfig):
    """FQL's options."""

    alpha: float = 10.0
    """Weight of the distillation; from 3 to 30,000 over the benchmark's tasks."""
    normalize_q: bool = False
    """Divide Q by its mean magnitude in the policy's objective."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "alpha")


def make(config: FQLConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    # mu_omega(s, z), not clipped: the residual map's network, with noise as input instead of an action.
    student: Any = nn.ResidualMap(config.hidden, spec.action_dim, encoder=encoder)
    teacher = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (teacher.network, "sat"), "policy": (student, "sa")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        next_key, flow_key, noise_key = jax.random.split(key, 3)
        taught = base_actions.base_actions(
            teacher, state.params["flow"], batch, (noise_key, flow_key), at=("observations",)
        )

        def flow_loss(own, params):
            return teacher.loss(own, batch, flow_key), {}

        losses = {"critic": critic_loss_of(state, batch, next_key)}
        if batch.proposals is None:
            losses["flow"] = flow_loss
        losses["policy"] = policy_loss_of(taught)
        return backbone.descend(state, losses, adam, config.target_rate, frozen=backbone.frozen_modules(config))

    def critic_loss_of(state: State, batch: Batch, key: PRNGKey):
        def critic_loss(own, params):
            noise = jax.random.normal(key, batch.actions.shape)
            next_actions = jnp.clip(student.apply(params["policy"], batch.next_observations, noise), -1.0, 1.0)
            return backbone.policy_critic_loss(critic, own, state.target["critic"], batch, next_actions, config, key)

        return critic_loss

    def policy_loss_of(taught: base_actions.BaseActions):
        """The loss of the student, for the teacher's actions and their noise."""

        def policy_loss(own, params):
            actions = student.apply(own, taught.observations, taught.kept["noise"])
            distillation = jnp.mean((actions - taught.actions) ** 2)
            q = critic.apply(params["critic"], taught.observations, jnp.clip(actions, -1.0, 1.0)).mean(axis=0)
            scale = values.value_scale(q) if config.normalize_q else 1.0
            loss = config.alpha * distillation - scale * q.mean()
            return loss, {"distillation": distillation, "q_policy": q.mean()}

        return policy_loss

    def propose(state: State, observations, key):
        """The teacher's actions, with their noise."""
        with_noise = lambda observations, noise, actions: {"noise": noise}  # noqa: E731
        return base_actions.propose(teacher, state.params["flow"], observations, key, config.proposals, with_noise)

    def value(params, observations, actions):
        return critic.apply(params["critic"], observations, actions).mean(axis=0)

    act_with_base = backbone.student_act(student, teacher, spec, value)
    policy = lambda state: backbone.keep_params(state, "critic", "flow", "policy")  # noqa: E731
    return with_base(init, update, act_with_base, policy, propose=propose)


METHOD = Method(
    name="fql",
    summary="one-step policy, distilled from a behaviour flow while it maximises Q",
    config=FQLConfig,
    make=make,
    parity="recommended",
    logs={
        "distillation": "mean squared distance between student and teacher, a mean over dimensions",
        "q_policy": "mean of Q at the student's actions",
    },
)
