"""FiDec in closed form: each action takes a natural gradient step in its own trust region, without a network.

    delta* = (1/lambda) F^-1 grad_a Q(s, a_0),    lambda such that D(delta*; s, a_0) = budget

With n steps, each step starts where the last one ended and is 1/n as long, so its penalty may be budget / n^2.
Critic and flow are learned as in FiDec. Acting needs the critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone, base_actions, options, refined
from fidec.algos.common.base import Algorithm, Method, State, Transport, with_base
from fidec.algos.constraints import CONSTRAINTS, Model, Quadratic
from fidec.algos.constraints.isotropic import Isotropic
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class ClosedFormConfig(refined.RefinedConfig):
    """The closed form's options."""

    constraint: str = "renoised"
    """The quadratic constraint on displacements: isotropic, local, renoised, averaged or velocity."""
    refine_steps: int = 1
    """Number of steps, each 1 / refine_steps as long."""

    def __post_init__(self):
        super().__post_init__()
        options.at_least_one(self, "refine_steps")
        constraint = self.build_constraint()
        if not isinstance(constraint, Quadratic):
            raise ConfigError(f"the closed form needs a quadratic constraint, not {self.constraint}; choose renoised")
        if constraint.t_eps == "auto":
            raise ConfigError("the closed form cannot choose t_eps; give it a number between 0 and 1")
        if constraint.damping == 0 and not isinstance(constraint, Isotropic):
            raise ConfigError("the closed form inverts F, so damping must be positive")


def walk(value_gradient, scores_of, base, key: PRNGKey, budget, constraint: Quadratic, steps: int):
    """delta*(a_0), the sum of the steps, for grad Q(a) and the constraint's scores(a, key)."""

    def step(actions, step_key):
        scores = scores_of(actions, step_key)
        direction = fisher.natural_direction(value_gradient(actions), scores, damping=constraint.damping)
        # Normalised first, because the squares below would underflow where the gradient of the critic is small.
        direction /= jnp.maximum(jnp.linalg.norm(direction, axis=-1, keepdims=True), 1e-12)
        length = jnp.sqrt(budget / jnp.maximum(constraint.form(direction, scores), 1e-12))
        return actions + direction * length[..., None] / steps, None

    return jax.lax.scan(step, base, jax.random.split(key, steps))[0] - base


def make(config: ClosedFormConfig, spec: Spec) -> Algorithm:
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=backbone.encoder(spec))
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    constraint: Quadratic = config.build_constraint()
    chunk_factor = constraint.chunk_factor(spec.chunk)
    limit = config.trust_region()[0]
    budget = limit / chunk_factor  # of `Quadratic.form`
    clipping = () if config.grad_clip is None else (optax.clip_by_global_norm(config.grad_clip),)
    adam = optax.chain(*clipping, optax.adam(config.learning_rate))

    def scores_of(params, observations, actions, key):
        return constraint.scores(actions, Model.at(behaviour, params["flow"], observations, anchors=actions), key)

    def displace(params, observations, base, key):
        total_q = lambda a: critic.apply(params["critic"], observations, a).mean(axis=0).sum()  # noqa: E731
        scores = partial(scores_of, params, observations)
        return walk(jax.grad(total_q), scores, base, key, budget, constraint, config.refine_steps)

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (behaviour.network, "sat")}
        return backbone.start(backbone.init_modules(key, networks, spec), adam, targets=("critic",))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        base_key, flow_key, score_key = jax.random.split(key, 3)
        flow, stored = state.params["flow"], batch.proposals is not None
        score_key = flow_key if stored else score_key  # stored proposals have no loss of the flow
        base = base_actions.base_actions(behaviour, flow, batch, (base_key, base_key), at=("next_observations",))
        displacement = displace(state.params, batch.next_observations, base.actions, score_key)
        next_actions = jax.lax.stop_gradient(jnp.clip(base.actions + displacement, -1.0, 1.0))
        target = state.target["critic"]

        def critic_loss(own, params):
            return backbone.policy_critic_loss(critic, own, target, batch, next_actions, config, score_key)

        def flow_loss(own, params):
            return behaviour.loss(own, batch, flow_key), {}

        losses = {"critic": critic_loss} if stored else {"critic": critic_loss, "flow": flow_loss}
        kept = backbone.frozen_modules(config)
        state, metrics = backbone.descend(state, losses, adam, config.target_rate, kept)
        return state, metrics | refined.displacement_metrics(base.actions, displacement)

    def propose(state: State, observations, key):
        return base_actions.propose(behaviour, state.params["flow"], observations, key, config.proposals)

    def displacement(params, observations, base, key):
        def repeat(part, values):
            return jnp.broadcast_to(values, (len(base), *values.shape)).reshape(-1, *part.shape)

        rows = spec.map(repeat, observations)
        flat = base.reshape(-1, spec.action_dim)
        return displace(params, rows, flat, jax.random.fold_in(key, 1)).reshape(base.shape)

    def transport(state: State, observations) -> Transport:
        # One key for all calls, so that the displacement is a function of the action.
        field = lambda a: displace(state.params, observations, a, jax.random.key(0))  # noqa: E731

        def cost(actions, key):
            scores = scores_of(state.params, observations, actions, key)
            return chunk_factor * constraint.form(field(actions), scores)

        velocity = behaviour.velocity(state.params["flow"], observations)
        sample = partial(behaviour.sample, state.params["flow"], observations)
        value = refined.value_of(critic, state, observations)
        return Transport(velocity, sample, field, cost, limit, constraint.unit, value)

    act_with_base = refined.act_by(critic, behaviour, spec, displacement)
    policy = lambda state: backbone.keep_params(state, "critic", "flow")  # noqa: E731
    return with_base(init, update, act_with_base, policy, transport, propose)


METHOD = Method(
    name="fidec_closed_form",
    summary="flow policy whose actions take a natural gradient step, without a residual network",
    config=ClosedFormConfig,
    make=make,
    logs={
        "displacement": "root mean square of |delta| at the next states, before clipping",
        "clipped": "share of action components that the displacement moves outside [-1, 1]",
    },
    parts={"constraint": CONSTRAINTS},
)
