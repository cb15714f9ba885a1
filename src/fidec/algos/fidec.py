"""FiDec: a behaviour flow, and a residual map that moves its actions towards value inside a trust region.

    a_0 = mu_beta(s, z)                                   the behaviour flow, `flow_steps` Euler steps
    a   = a_0 + delta(s, a_0)                             the residual map
    max_delta  E[Q(s, a)]   subject to   E[D(delta; s, a_0)] <= budget
    D(delta; s, a_0) = c delta^T F delta,    F = (1/K) sum_k s_k s_k^T + rho I

with scores s_k computed from the flow's velocity field at time t_eps. One update (Algorithm 1 of the paper):

    critic      (Q(s, a) - r - gamma m Qbar(s', a_0' + delta(s', a_0')))^2         `critic_loss`
    flow        flow matching on the data's actions                                `flow_loss`
    residual    lambda D(delta) - Q(s, a_0 + delta) / mean|Q|                      `residual_loss`
    multiplier  lambda rises while E[D] exceeds the budget                         `common.multiplier`

The paper takes one score at the clean action, s = (t v - a_0) / (1 - t), which constrains a single direction. The
default here, `renoised`, averages over noised copies of the same action. `fidec.algos.constraints` has all
constraints, `fidec.algos.common.presets` what each preset chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fidec import nn, optim
from fidec.algos import constraints
from fidec.algos.common import backbone, options, presets, refined
from fidec.algos.common.base import Algorithm, Method, State, Transport, with_base
from fidec.algos.common.base_actions import BOTH, BaseActions, States, base_actions, propose
from fidec.algos.common.multiplier import MULTIPLIERS, Kind
from fidec.algos.constraints import CONSTRAINTS, Constraint, Model, Move
from fidec.ops import values
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class ResidualConfig(presets.StepConfig):
    """Options that FiDec and DeFlow share. The defaults are the benchmark's common values."""

    multiplier: Kind = "log"
    """Adam on log lambda (the released code), ReLU(lambda + violation) (projected, the paper), or a controller of
    log lambda by log(penalty / budget), which finds lambda's scale by itself (controlled)."""
    multiplier_init: float = 10.0
    """lambda at the start."""
    warmup: int = 0
    """Updates over which the budget grows from 0 to its full value, so that Q is learned first."""
    q_scale: values.QScale = "magnitude"
    """What Q is divided by in the residual's objective: its mean magnitude, its standard deviation over the batch
    (spread), which a constant added to all rewards does not change, or nothing (none)."""
    target_candidates: int = 1
    """N: with a frozen flow, the TD target takes the best of so many moved proposals."""
    zero_init: bool = False
    """Start the residual map at exactly zero, so that the policy starts as the behaviour flow."""

    def __post_init__(self):
        super().__post_init__()
        options.positive(self, "multiplier_init")
        options.not_negative(self, "warmup")


@dataclass(frozen=True)
class FiDecConfig(ResidualConfig):
    """FiDec's options; the defaults are the preset `recommended`."""

    constraint: str = "renoised"
    """The constraint on displacements. Quadratic, with the budget as in the paper: isotropic (DeFlow), local (the
    paper), renoised, averaged, velocity (the authors' code). In nats: precision (by the behaviour's own width),
    information (by its scores), stein, path, denoising. Or one that another package adds."""


class Nets(NamedTuple):
    """The static parts of the method."""

    config: ResidualConfig
    critic: Any
    behaviour: backbone.FlowPolicy
    residual: Any
    constraint: Constraint
    budget: float
    chunk_factor: float  # of the penalty, so that the budget is that of a whole chunk


def make_nets(config: ResidualConfig, spec: Spec) -> Nets:
    encoder, constraint = backbone.encoder(spec), config.build_constraint()
    return Nets(
        config,
        critic=nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder),
        behaviour=backbone.FlowPolicy(config.hidden, spec, config.flow_steps),
        residual=nn.ResidualMap(config.hidden, spec.action_dim, encoder, config.zero_init),
        constraint=constraint,
        budget=config.trust_region()[0],
        chunk_factor=constraint.chunk_factor(spec.chunk),
    )


def known_of_flow(nets: Nets, state: State, batch: Batch, base: BaseActions, flow_key, key) -> dict[str, Any]:
    """What the constraint reads of the flow at the base actions: the stored fields of `Model`, or computed ones."""
    velocity = nets.behaviour.velocity(state.params["flow"], base.observations)
    if batch.proposals is None:
        time_key, anchor_key = jax.random.fold_in(key, 1), jax.random.fold_in(key, 2)
        anchors = nets.constraint.anchors(velocity, base.actions, anchor_key, nets.config.flow_steps)
        known = {"anchors": jax.lax.stop_gradient(anchors)}
    else:
        known, time_key = {"anchors": base.actions, **base.kept}, flow_key  # a frozen flow has no loss
    if nets.constraint.t_eps == "auto":
        known["t_eps"] = constraints.calibrate(state.params["t_eps"], state.step, velocity, base.data, time_key)
    return known


def critic_loss(nets: Nets, target, batch: Batch, next_base, key: PRNGKey, own, params):
    displacement = nets.residual.apply(params["residual"], batch.next_observations, next_base)
    next_actions = jnp.clip(next_base + displacement, -1.0, 1.0)
    return backbone.policy_critic_loss(nets.critic, own, target, batch, next_actions, nets.config, key)


def flow_loss(nets: Nets, batch: Batch, key: PRNGKey, own, params):
    return nets.behaviour.loss(own, batch, key), {}


def residual_loss(nets: Nets, base: BaseActions, known: dict[str, Any], budget, key: PRNGKey, own, params):
    field = partial(nets.residual.apply, own, base.observations)
    displacement = field(base.actions)
    actions = jnp.clip(base.actions + displacement, -1.0, 1.0)
    q = nets.critic.apply(params["critic"], base.observations, actions).mean(axis=0)
    q_scale = values.value_scale(q, nets.config.q_scale)
    model = Model.at(nets.behaviour, params["flow"], base.observations, **known)
    costs = nets.constraint.penalty(Move(field, base.actions, displacement), model, key)
    penalty = nets.chunk_factor * nets.constraint.mean(costs)
    weight = jax.lax.stop_gradient(MULTIPLIERS[nets.config.multiplier].weight(params["multiplier"], penalty, budget))
    metrics = {"q_policy": q.mean(), "penalty": penalty, "multiplier": weight}
    return weight * penalty - q_scale * q.mean(), metrics | refined.displacement_metrics(base.actions, displacement)


def make(config: Any, spec: Spec, *, residual_loss=residual_loss, solve_at: tuple[States, ...] = BOTH) -> Algorithm:
    """The algorithm. DeFlow is this with the isotropic constraint. Variations may have another `residual_loss`, which
    logs `penalty`, or learn at the next states alone, by `solve_at` ("next_observations",): one flow solve less."""
    nets, adam = make_nets(config, spec), optax.adam(config.learning_rate)
    multiplier, calibrated = MULTIPLIERS[nets.config.multiplier], nets.constraint.t_eps == "auto"

    def init(key: PRNGKey) -> State:
        networks = {"critic": (nets.critic, "sa"), "flow": (nets.behaviour.network, "sat")}
        params = backbone.init_modules(key, networks | {"residual": (nets.residual, "sa")}, spec)
        constants = {"t_eps": jnp.asarray(constraints.START_TIME, jnp.float32)} if calibrated else {}
        # A Python float would be weakly typed, and the second call of a jitted update would compile again.
        stored = multiplier.store(jnp.asarray(config.multiplier_init, jnp.float32))
        (params if multiplier.descends else constants)["multiplier"] = stored
        return backbone.start(params, adam, targets=("critic",), constants=constants)

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        base_key, flow_key, penalty_key = jax.random.split(key, 3)
        keys, count = (base_key, base_key), config.target_candidates
        base = base_actions(nets.behaviour, state.params["flow"], batch, keys, solve_at, count)
        known = known_of_flow(nets, state, batch, base, flow_key, penalty_key)
        budget = nets.budget * (jnp.minimum(1.0, (state.step + 1) / config.warmup) if config.warmup else 1.0)
        losses = {
            "critic": partial(critic_loss, nets, state.target["critic"], batch, base.next_actions, penalty_key),
            "flow": partial(flow_loss, nets, batch, flow_key),
            "residual": partial(residual_loss, nets, base, known, budget, penalty_key),
        }
        if batch.proposals is not None:  # of a frozen flow
            del losses["flow"]

        def transform(grads, metrics):
            """Add the multiplier's gradient after the residual's, and clip."""
            if multiplier.descends and "penalty" in metrics:
                grads["multiplier"] = multiplier.move(state.params["multiplier"], metrics["penalty"], budget)
                metrics["grad_norm/multiplier"] = optax.tree.norm(grads["multiplier"])
            return optim.clip_gradients(grads, config.grad_clip, config.clip_scope)

        after, metrics = state, {}
        for turn in config.turns(losses):
            after, logged = backbone.gradient_step(after, turn, adam, backbone.frozen_modules(config), transform)
            metrics |= logged
        constants = {"t_eps": known["t_eps"]} if calibrated else {}
        metrics |= constants
        if not multiplier.descends:
            constants["multiplier"] = multiplier.move(state.params["multiplier"], metrics["penalty"], budget)
        metrics["loss"] = sum((metrics[f"{name}_loss"] for name in losses), jnp.zeros(()))
        after = after._replace(params={**after.params, **constants})
        return backbone.advance(state, after, config.target_rate), metrics

    def draw(state: State, observations, key: PRNGKey) -> dict[str, Any]:
        """Proposals of the flow, and what the constraint can compute from them before the displacement is known."""
        flow = state.params["flow"]

        def prepared(observations, noise, base):
            model = Model.at(nets.behaviour, flow, observations, anchors=base)
            return nets.constraint.prepare(model, base, jax.random.fold_in(key, 1), config.flow_steps)

        of_states = nets.constraint.prepare_states
        return propose(nets.behaviour, flow, observations, key, config.proposals, prepared, of_states)

    def transport(state: State, observations) -> Transport:
        flow, field = state.params["flow"], partial(nets.residual.apply, state.params["residual"], observations)
        known = {"t_eps": state.params["t_eps"]} if calibrated else {}

        def penalty(base, key):
            model = Model.at(nets.behaviour, flow, observations, anchors=base, **known)
            return nets.chunk_factor * nets.constraint.penalty(Move(field, base, field(base)), model, key)

        model = Model.at(nets.behaviour, flow, observations, anchors=None)
        return Transport(model.velocity, model.sample, field, penalty, nets.budget, nets.constraint.unit)

    displacement = lambda params, states, base, key: nets.residual.apply(params["residual"], states, base)  # noqa: E731
    act_with_base = refined.act_by(nets.critic, nets.behaviour, spec, displacement)
    policy = lambda state: state._replace(target=None, optimiser=None)  # noqa: E731
    return with_base(init, update, act_with_base, policy, transport, draw)


LOGS = {
    "q_policy": "mean of Q at the refined actions",
    "penalty": "E[D], to be compared with the budget; its magnitude for `stein`, `path` and `denoising`",
    "multiplier": "lambda in the residual map's loss",
    "displacement": "root mean square of |delta|, before clipping",
    "clipped": "share of action components that the displacement moves outside [-1, 1]",
}
METHOD = Method(
    name="fidec",
    summary="flow policy refined by a residual map inside a Fisher trust region",
    config=FiDecConfig,
    make=make,
    presets={"paper": presets.PAPER, "released": presets.RELEASED, "nats": presets.NATS},
    runs={"nats": presets.NATS_RUN},
    logs={**LOGS, "t_eps": "the time at which the score is evaluated, if it is calibrated"},
    parts={"constraint": CONSTRAINTS},
)
