"""FiDec without a residual network: each action takes the natural gradient step of its own trust region.

    delta* = (1/lambda) F^-1 grad_a Q(s, a_0),    lambda such that D(delta*; s, a_0) = budget

With n steps the action walks: each step is taken from where the last one ended and is an n-th as long, so it may
spend budget / n^2 of a form that is quadratic. What remains to learn are the critic and the flow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone
from fidec.algos.common.base import Algorithm, State, Transport, with_base
from fidec.ops import fisher, policies
from fidec.types import Batch, Metrics, PRNGKey, Spec

if TYPE_CHECKING:
    from fidec.algos.fidec import FiDecConfig


def walk(value_gradient, scores_of, base, key: PRNGKey, budget, config: FiDecConfig):
    """delta*(a_0), the sum of the steps, for grad Q(a) and the metric's scores(a, key) as functions of the action."""

    def step(actions, step_key):
        scores = scores_of(actions, step_key)
        direction = fisher.natural_direction(value_gradient(actions), scores, damping=config.damping)
        # Unit length first: the squares below would underflow where the critic is flat.
        direction /= jnp.maximum(jnp.linalg.norm(direction, axis=-1, keepdims=True), 1e-12)
        length = jnp.sqrt(budget / jnp.maximum(cost(direction, scores, config), 1e-12))
        return actions + direction * length[..., None] / config.refine_steps, None

    return jax.lax.scan(step, base, jax.random.split(key, config.refine_steps))[0] - base


def cost(displacement, scores, config: FiDecConfig):
    """The quadratic form, scaled as configured."""
    return fisher.penalty(
        displacement,
        scores,
        damping=config.damping,
        trace_scale=config.trace_scale,
        half=config.half,
        per_dimension=config.per_dimension,
    )


def make(config: FiDecConfig, spec: Spec) -> Algorithm:
    critic: Any = nn.Critic(config.hidden, encoder=backbone.encoder(spec))
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps, clip=config.clip_actions)
    clipping = () if config.grad_clip is None else (optax.clip_by_global_norm(config.grad_clip),)
    adam = optax.chain(*clipping, optax.adam(config.learning_rate))

    def scores_of(params, observations, actions, key):
        return fisher.metric_scores(
            cast(fisher.Quadratic, config.metric),
            actions,
            key,
            velocity=behaviour.velocity(params["flow"], observations),
            sample=partial(behaviour.sample, params["flow"], observations),
            samples=config.samples,
            t_eps=cast(float, config.t_eps),
            width=config.t_width,
        )

    def displace(params, observations, base, key):
        total_q = lambda a: critic.apply(params["critic"], observations, a).mean(axis=0).sum()  # noqa: E731
        scores = partial(scores_of, params, observations)
        return walk(jax.grad(total_q), scores, base, key, config.budget, config)

    def clip(actions):
        return jnp.clip(actions, -1.0, 1.0) if config.clip_actions else actions

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (behaviour.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        noise_key, flow_key, metric_key = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, batch.actions.shape)
        next_base = behaviour.sample(state.params["flow"], batch.next_observations, noise)
        displacement = displace(state.params, batch.next_observations, next_base, metric_key)
        next_actions = jax.lax.stop_gradient(clip(next_base + displacement))

        def critic_loss(own, params):
            loss, info = backbone.policy_critic_loss(critic, own, state.target["critic"], batch, next_actions, config)
            return loss, {"critic_loss": loss, **info}

        def flow_loss(own, params):
            loss = behaviour.loss(own, batch.observations, batch.actions, flow_key)
            return loss, {"flow_loss": loss}

        losses = {"critic": critic_loss, "flow": flow_loss}
        state, metrics = backbone.descend(
            state, losses, adam, config.target_rate, frozen=backbone.frozen_modules(config)
        )
        metrics["displacement"] = jnp.sqrt(jnp.mean(jnp.sum(displacement**2, axis=-1)))
        metrics["clipped"] = jnp.mean(jnp.abs(next_base + displacement) > 1.0)
        return state, metrics

    def act_with_base(state: State, observations, key, candidates: int = 1):
        noise = backbone.noise_for(key, observations, spec, candidates)
        base = behaviour.sample(state.params["flow"], observations, noise)
        flat = base.reshape(-1, spec.action_dim)
        lead = observations.shape[: observations.ndim - len(spec.observation_shape)]
        rows = jnp.broadcast_to(observations, (candidates, *observations.shape)).reshape(-1, *spec.observation_shape)
        moved = flat + displace(state.params, rows, flat, jax.random.fold_in(key, 1))
        actions = moved.reshape(candidates, *lead, spec.action_dim)
        if candidates > 1:
            q = critic.apply(state.params["critic"], observations, actions).mean(axis=0)
            actions, base = policies.best_of(actions, q), policies.best_of(base, q)
        else:
            actions, base = actions[0], base[0]
        actions, base = jnp.clip(actions, -1.0, 1.0), jnp.clip(base, -1.0, 1.0)
        return actions, base

    def policy(state: State) -> State:
        return backbone.keep_params(state, "critic", "flow")

    def transport(state: State, observations) -> Transport:
        # One noise for all calls: the displacement is a function of the action.
        field = lambda a: displace(state.params, observations, a, jax.random.key(0))  # noqa: E731
        penalty = lambda a, key: cost(field(a), scores_of(state.params, observations, a, key), config)  # noqa: E731
        velocity = behaviour.velocity(state.params["flow"], observations)
        sample = partial(behaviour.sample, state.params["flow"], observations)
        return Transport(velocity, sample, field, penalty, config.budget, "of the penalty")

    return with_base(init, update, act_with_base, policy, transport)
