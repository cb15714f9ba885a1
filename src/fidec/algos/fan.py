"""FAN: a one-step policy, anchored to a behaviour flow without solving it, and a critic that takes noise as input.

    B(s, z, a) = (a - z - v_beta(s, x_t, t))^2,   x_t = (1 - t) z + t a,   t ~ U[0, 1]      by dimension

    critic   E (Q(s, a, z') - r - gamma m (Z(s', a') - alpha_2 sum B(s', z', a')))^2,   a' = mu_omega(s', z')
    upper    E |kappa - 1(u < 0)| u^2,   u = mean Qbar(s, a, z) - Z(s, a)
    flow     flow matching on the data's actions
    policy   alpha_1 E mean B(s, z, mu_omega(s, z)) - E [Q(s, a, n) + Z(s, a)],   a = mu_omega(s, z)

Flow anchoring, B, asks that the flow moves along the straight line from the noise to the action. It needs one pass
through the flow, where FQL's distillation needs one for each Euler step. The input z' of Q is the noise of the next
action, so Q(s, a, .) is the distribution of the return over these actions. Z is its upper expectile, an estimate of
its maximum, and the value that is bootstrapped from. Online it explores by its noise z.

As in FAN's code, the actor's B is a mean over dimensions and taken before clipping, the critic's is a sum and taken
after it. So alpha_2 acts more strongly in more dimensions, and alpha_1 does not.
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
from fidec.errors import ConfigError
from fidec.ops import flow, values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class FANConfig(options.FlowConfig):
    """FAN's options."""

    actor_penalty: float = 10.0
    """alpha_1: weight of the anchoring in the policy's loss; from 3 to 30,000 over the published tasks."""
    critic_penalty: float = 0.1
    """alpha_2: weight of the anchoring in the critic's target; from 0 to 10 over the published tasks."""
    expectile: float = 0.9
    """kappa: 0.5 makes Z the mean of Q over noise, towards 1 it is the maximum."""
    normalize_q: bool = False
    """Divide Q and Z by their mean magnitudes in the policy's objective."""
    train_flow: bool = True
    """Train the behaviour flow. False keeps it and its optimiser state as they are: a flow frozen online."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "actor_penalty", "critic_penalty")
        if not 0 < self.expectile < 1:
            raise ConfigError(f"expectile must lie strictly between 0 and 1, not {self.expectile}")


def make(config: FANConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)  # Q(s, a, z)
    upper: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)  # Z(s, a)
    # mu_omega(s, z), not clipped: the residual map's network, with noise as input instead of an action.
    student: Any = nn.ResidualMap(config.hidden, spec.action_dim, encoder=encoder)
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKey) -> State:
        networks = {
            "critic": (critic, "saa"),  # the noise has the shape of an action
            "upper": (upper, "sa"),
            "flow": (behaviour.network, "sat"),
            "policy": (student, "sa"),
        }
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def anchoring(params, observations, noise, actions, key):
        """B(s, z, a), at one time for each row."""
        t = jax.random.uniform(key, (len(noise), 1))
        return flow.path_residual(behaviour.velocity(params["flow"], observations), noise, actions, t) ** 2

    def losses_of(state: State, batch: Batch, key: PRNGKey) -> dict[str, Any]:
        """The losses of everything but the flow."""
        next_key, upper_key, policy_key = jax.random.split(key, 3)

        def critic_loss(own, params):
            noise_key, time_key = jax.random.split(next_key)
            noise = jax.random.normal(noise_key, batch.actions.shape)
            actions = jnp.clip(student.apply(params["policy"], batch.next_observations, noise), -1.0, 1.0)
            penalty = anchoring(params, batch.next_observations, noise, actions, time_key).sum(axis=-1)
            next_z = upper.apply(params["upper"], batch.next_observations, actions)
            next_v = config.aggregate(next_z, next_key) - config.critic_penalty * penalty
            goal = values.td_target(batch.rewards, batch.masks, next_v, config.discount)
            q = critic.apply(own, batch.observations, batch.actions, noise)
            logs = {"q_data": q.mean(), "td_target": goal.mean(), "next_anchoring": penalty.mean()}
            return values.td_loss(q, goal, batch.value_weights), logs

        def upper_loss(own, params):
            noise = jax.random.normal(upper_key, batch.actions.shape)
            q = critic.apply(state.target["critic"], batch.observations, batch.actions, noise).mean(axis=0)
            z = upper.apply(own, batch.observations, batch.actions)
            return values.expectile_loss(q - z, config.expectile, batch.value_weights), {"upper": z.mean()}

        def policy_loss(own, params):
            noise_key, time_key, critic_key = jax.random.split(policy_key, 3)
            noise = jax.random.normal(noise_key, batch.actions.shape)
            actions = student.apply(own, batch.observations, noise)
            anchor = anchoring(params, batch.observations, noise, actions, time_key).mean()
            actions = jnp.clip(actions, -1.0, 1.0)
            other = jax.random.normal(critic_key, batch.actions.shape)
            q = critic.apply(params["critic"], batch.observations, actions, other).mean(axis=0)
            z = upper.apply(params["upper"], batch.observations, actions).mean(axis=0)
            scales = [values.value_scale(each) if config.normalize_q else 1.0 for each in (q, z)]
            loss = config.actor_penalty * anchor - scales[0] * q.mean() - scales[1] * z.mean()
            return loss, {"anchoring": anchor, "q_policy": q.mean(), "upper_policy": z.mean()}

        return {"critic": critic_loss, "upper": upper_loss, "policy": policy_loss}

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        flow_key, other_key = jax.random.split(key)

        def flow_loss(own, params):
            return behaviour.loss(own, batch, flow_key), {}

        losses = losses_of(state, batch, other_key)
        if batch.proposals is None:  # empty ones: anchoring evaluates a frozen flow at the policy's actions
            losses |= {"flow": flow_loss}
        return backbone.descend(state, losses, adam, config.target_rate, frozen=backbone.frozen_modules(config))

    def value(params, observations, actions):
        return upper.apply(params["upper"], observations, actions).mean(axis=0)

    act_with_base = backbone.student_act(student, behaviour, spec, value)
    policy = lambda state: backbone.keep_params(state, "flow", "policy", "upper")  # noqa: E731
    return with_base(init, update, act_with_base, policy, propose=base_actions.nothing)


METHOD = Method(
    name="fan",
    summary="one-step policy, anchored to a behaviour flow by one pass; a critic over noise and its upper expectile",
    config=FANConfig,
    make=make,
    parity="recommended",
    critics=("critic", "upper"),
    logs={
        "anchoring": "mean of B at the policy's actions, a mean over dimensions",
        "next_anchoring": "mean of B at the next actions, a sum over dimensions: what alpha_2 multiplies",
        "upper": "mean of Z at the data's actions",
        "q_policy": "mean of Q at the policy's actions",
        "upper_policy": "mean of Z at the policy's actions",
    },
)
