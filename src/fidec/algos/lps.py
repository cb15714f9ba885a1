"""LPS: latent policy steering. A policy chooses the noise from which a one-step behaviour flow makes the action.

    critic   E (Q(s, a) - r - gamma m Qbar(s', mu_beta(s', pi(s'))))^2
    flow     mean flow matching on the data's actions, from noise on the sphere |z| = sqrt(d)
    policy   -E Q(s, mu_beta(s, pi(s))) / mean|Q|,    |pi(s)| = sqrt(d)

mu_beta(s, z) is one pass through a network, which the gradient of Q goes through. There is no weight of the data:
every latent on the sphere is one that the flow was trained on, so actions are as near to the data as the flow's own.

DSRL's latent critic, `steering` distilled, needs no gradient through the flow:

    latent critic   E (Q_z(s, z) - Q(s, mu_beta(s, z)))^2,    z uniform on the sphere
    policy          -E Q_z(s, pi(s)) / mean|Q_z|

The policy has one action for a state. Online it explores by noise on its latent, `exploration_noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.errors import ConfigError
from fidec.ops import flow, meanflow, values
from fidec.types import Batch, Metrics, Params, PRNGKey, Spec


@dataclass(frozen=True)
class LPSConfig(options.FlowConfig):
    """LPS's options."""

    q_aggregate: values.Aggregate = "min"
    """How the critics are combined into one TD target: the lowest as published (min), the mean, or the lower of two
    that are drawn at random (random_pair)."""
    flow_steps: int = 1
    """Steps of the mean flow from noise to an action."""
    steering: Literal["direct", "distilled"] = "direct"
    """What the policy climbs: Q through the flow (direct, LPS), or a critic of latents that is distilled from Q
    (distilled, DSRL)."""
    interval_share: float = 0.25
    """Share of a batch's rows that train the mean velocity over an interval; the others are plain flow matching."""
    exploration_noise: float = 0.2
    """Standard deviation of the noise that is added to the latent online, before it is put back on the sphere."""
    train_flow: bool = True
    """Train the behaviour flow. False keeps it and its optimiser state as they are: a flow frozen online."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "exploration_noise")
        if not 0 < self.interval_share <= 1:
            raise ConfigError(f"interval_share must lie in (0, 1], not {self.interval_share}")


class MeanFlowPolicy(backbone.FlowPolicy):
    """A mean flow on the sphere, conditioned on observations. It is sampled in few steps, usually one."""

    def __init__(self, hidden: Sequence[int], spec: Spec, steps: int, interval_share: float):
        super().__init__(hidden, spec, steps)
        self.network = nn.MeanFlow(hidden, spec.action_dim, backbone.encoder(spec))
        self.interval_share = interval_share

    def mean_flow(self, params: Params, observations: jax.Array, encoded: bool = False) -> meanflow.MeanFlow:
        """g(x, t, r) of these states, which are encoded once."""
        features = observations if encoded else self.encode(params, observations)
        return lambda x, t, r: self.network.apply(params, features, x, t, r, encoded=True)

    def velocity(self, params: Params, observations: jax.Array, encoded: bool = False) -> flow.Velocity:
        """The mean velocity over one sampling step that begins at t."""
        g = self.mean_flow(params, observations, encoded)
        return lambda x, t: g(x, t, t + 1.0 / self.steps) - x

    def loss(self, params: Params, batch: Batch, key: PRNGKey) -> jax.Array:
        """Mean flow matching on the data's actions."""
        actions = batch.actions
        noise_key, time_key = jax.random.split(key)
        noise = meanflow.on_sphere(jax.random.normal(noise_key, actions.shape))
        t, r = meanflow.draw_times(time_key, len(actions), self.interval_share)
        x, velocity = flow.interpolate(noise, actions, t), flow.target_velocity(noise, actions)
        g, target = meanflow.value_and_target(self.mean_flow(params, batch.observations), x, velocity, t, r)
        return meanflow.adaptive_loss(jnp.mean(values.weigh((g - target) ** 2, batch.action_weights), axis=-1))


def make(config: LPSConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    # Of the usual scale: the projection's gradient grows as the output shrinks.
    actor: Any = nn.Actor(config.hidden, spec.action_dim, encoder=encoder, output_scale=1.0)
    behaviour = MeanFlowPolicy(config.hidden, spec, config.flow_steps, config.interval_share)
    adam = optax.adam(config.learning_rate)
    distilled = config.steering == "distilled"

    def latent(params, observations):
        """pi(s), on the sphere."""
        return meanflow.on_sphere(actor.apply(params, observations))

    def steered(params, observations):
        """mu_beta(s, pi(s))."""
        return behaviour.sample(params["flow"], observations, latent(params["policy"], observations))

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (behaviour.network, "satt"), "policy": (actor, "s")}
        networks |= {"latent_critic": (critic, "sa")} if distilled else {}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        flow_key, latent_key = jax.random.split(key)

        def critic_loss(own, params):
            next_actions = steered(params, batch.next_observations)
            return backbone.policy_critic_loss(critic, own, state.target["critic"], batch, next_actions, config, key)

        def flow_loss(own, params):
            return behaviour.loss(own, batch, flow_key), {}

        def value(params, latents):
            """Q(s, mu_beta(s, z)), the mean of the critics."""
            actions = behaviour.sample(params["flow"], batch.observations, latents)
            return critic.apply(params["critic"], batch.observations, actions).mean(axis=0)

        def latent_value(params, latents):
            return critic.apply(params["latent_critic"], batch.observations, latents).mean(axis=0)

        def latent_critic_loss(own, params):
            latents = meanflow.on_sphere(jax.random.normal(latent_key, batch.actions.shape))
            q = critic.apply(own, batch.observations, latents)
            return values.td_loss(q, value(params, latents)), {}

        def policy_loss(own, params):
            climbed = latent_value if distilled else value
            q = climbed(params, latent(own, batch.observations))
            return -values.value_scale(q) * q.mean(), {"q_policy": q.mean()}

        losses = {"critic": critic_loss, "flow": flow_loss, "policy": policy_loss}
        losses |= {"latent_critic": latent_critic_loss} if distilled else {}
        return backbone.descend(state, losses, adam, config.target_rate, frozen=backbone.frozen_modules(config))

    def act(state: State, observations, key, noise=1.0):
        return steered(state.params, observations)

    def act_with_base(state: State, observations, key, candidates: int = 1, noise=1.0):  # one action: no choice
        start = noise * meanflow.on_sphere(backbone.noise_for(key, observations, spec, 1)[0])
        return act(state, observations, key), behaviour.sample(state.params["flow"], observations, start)

    def explore(state: State, observations, key):
        noise = config.exploration_noise * backbone.noise_for(key, observations, spec, 1)[0]
        latents = meanflow.on_sphere(latent(state.params["policy"], observations) + noise)
        return behaviour.sample(state.params["flow"], observations, latents)

    policy = lambda state: backbone.keep_params(state, "flow", "policy")  # noqa: E731
    return Algorithm(init, update, act, policy, explore=explore, act_with_base=act_with_base)


METHOD = Method(
    name="lps",
    summary="policy over the noise of a one-step behaviour flow; maximises Q through the flow",
    config=LPSConfig,
    make=make,
    critics=("critic", "latent_critic"),
    logs={"q_policy": "mean of Q at the policy's actions; of the latent critic at its latents if that is climbed"},
)
