"""FiDec: a behaviour flow, and a residual map that moves its actions towards value inside a trust region.

    a_0 = mu_beta(s, z)                                   the behaviour flow, `flow_steps` Euler steps
    a   = a_0 + delta(s, a_0)                             the residual map
    max_delta  E[Q(s, a)]   subject to   E[D(delta; s, a_0)] <= budget
    D(delta; s, a_0) = c delta^T F delta,    F = (1/K) sum_k s_k s_k^T + rho I

with scores s_k computed from the flow's velocity field at time t_eps. One update (Algorithm 1 of the paper):

    critic      (Q(s, a) - r - gamma m Qbar(s', a_0' + delta(s', a_0')))^2
    flow        flow matching on the data's actions
    residual    lambda D(delta) - Q(s, a_0 + delta) / mean|Q|
    multiplier  lambda rises while E[D] exceeds the budget

The paper takes one score at the clean action, s = (t v - a_0) / (1 - t), which constrains a single direction. The
default here, `renoised`, averages over noised copies of the same action. `fidec.algos.constraints` has all
constraints. The presets `paper` and `released` fix each choice in which the paper and its released code disagree.
The preset `nats` has another constraint, multiplier and scale of Q, and the same equations otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fidec import nn, optim
from fidec.algos.common import backbone, frozen, refined
from fidec.algos.common.base import Algorithm, Frozen, Method, State, Transport, with_base
from fidec.algos.constraints import CONSTRAINTS, KL, Constraint, Model, Move
from fidec.errors import ConfigError
from fidec.ops import dual, fisher, values
from fidec.types import Batch, Metrics, PRNGKey, Spec

START_TIME = 0.8  # t_eps until the first calibration


@dataclass(frozen=True)
class ResidualConfig(refined.RefinedConfig):
    """Options that FiDec and DeFlow share. The defaults are the benchmark's common values."""

    multiplier_init: float = 10.0
    """lambda at the start."""
    dual: Literal["log", "projected", "controlled"] = "log"
    """The multiplier: Adam on log lambda (the released code), ReLU(lambda + eta violation) (the paper), or a
    controller of log lambda by log(penalty / budget), which finds lambda's scale by itself."""
    dual_step_size: float = 1.0
    """eta of the projected step; the paper does not give it."""
    dual_rate: float = 0.01
    """The largest relative change of lambda in an update by the controller."""
    opening: int = 0
    """Updates in which the budget rises from zero to its size, so that values are learnt before they are climbed."""
    state_limit: float | None = None
    """A state that spends more than this many budgets pays more: D^2 / (limit budget) instead of D. Otherwise only
    the mean over states is constrained, and one state may spend what others save."""
    order: Literal["joint", "alternating"] = "joint"
    """One simultaneous step on all modules (the released code), or critic, flow, residual, multiplier in turn, each
    with the modules before it updated (the paper's Algorithm 1). In both orders the base actions are those of the
    update's start, which saves a flow solve."""
    residual_at: Literal["observations", "next_observations"] = "observations"
    """The states at which the residual map is trained. The critic needs base actions at the next observations anyway,
    so training there saves the second of two flow solves."""
    normalize_q: bool = True
    """Divide Q by its size in the residual's objective."""
    q_scale: values.QScale = "magnitude"
    """The size of Q: its mean magnitude, or its standard deviation over the batch (spread), which a constant added to
    all rewards does not change."""
    residual_start: Literal["random", "zero"] = "random"
    """The residual map at the start: a random one, as published, or exactly zero, so that the policy starts as the
    behaviour flow."""
    clip_scope: optim.ClipScope = "module"
    """grad_clip limits one norm over all modules together (global, the released code) or one for each module."""

    def __post_init__(self):
        super().__post_init__()
        backbone.positive(self, "multiplier_init", "dual_step_size", "dual_rate")
        backbone.not_negative(self, "opening")
        if self.state_limit is not None and not self.state_limit >= 1:
            raise ConfigError(f"state_limit must be at least 1, or None for no limit, not {self.state_limit}")
        if self.order == "alternating" and self.clip_scope == "global" and self.grad_clip is not None:
            raise ConfigError(
                "clip_scope 'global' needs all gradients at once, order 'alternating' takes them in turn; "
                "choose clip_scope 'module' or order 'joint'"
            )


@dataclass(frozen=True)
class FiDecConfig(ResidualConfig, refined.ConstraintConfig):
    """FiDec's options; the defaults are the preset `recommended`."""

    calibrate_every: int = 1000
    """Updates between two choices of t_eps, if it is auto; until the first it is 0.8."""

    def __post_init__(self):
        super().__post_init__()
        backbone.at_least_one(self, "calibrate_every")
        if self.state_limit is not None and isinstance(self.build_constraint(), KL):
            raise ConfigError(
                f"state_limit needs a penalty that cannot be negative: single estimates of {self.constraint} can. "
                "Choose the constraint precision, or leave state_limit out"
            )


PRESETS = {
    # Algorithm 1: one score at the clean action, 1/2 delta^T I delta, projected multiplier, modules in turn. The
    # paper's table scales I by its trace and clips gradients at 5. It gives damping for the closed form only. It does
    # not give eta and the scope of the clip, which are chosen here. The step of lambda uses the penalty that the
    # residual step has just computed.
    "paper": {
        "constraint": "local",
        "t_eps": 0.8,
        "samples": 1,
        "damping": 0.0,
        "scale": "half_trace",
        "dual": "projected",
        "order": "alternating",
        "normalize_q": True,
        "grad_clip": 5.0,
        "clip_scope": "module",
    },
    # The authors' agent with the values of their launch scripts.
    "released": {
        "constraint": "velocity",
        "t_eps": 0.9,
        "t_width": 0.05,
        "samples": 8,
        "damping": 1e-3,
        "scale": "mean",
        "dual": "log",
        "order": "joint",
        "normalize_q": False,
        "grad_clip": 5.0,
        "clip_scope": "global",
    },
    # One budget in nats by the behaviour's own width, for all tasks. docs/trust.md says what was measured.
    "nats": {
        "constraint": "precision",
        "budget_nats": 0.2,
        "proposals": 16,
        "dual": "controlled",
        "opening": 3000,
        "residual_start": "zero",
        "q_scale": "spread",
        "discount": 0.99,
    },
}
# The flow first, by its held-out loss; values in the data's own scale, by 5-step returns.
RUNS = {
    "nats": {
        "flow_updates": 20_000,
        "n_step": 5,
        "normalize_observations": True,
        "value_start": "data",
        "reward_scale": "data",
    },
}


def _rows_first(known: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Scores (K, rows, d) as (rows, K, d), and back; they are stored with the rows first."""
    return {name: jnp.swapaxes(each, 0, 1) if name == "scores" else each for name, each in known.items()}


class Constrained(NamedTuple):
    """Where the residual map learns: states, base actions, and what the constraint reads of the flow."""

    observations: Any
    base: jax.Array
    known: dict[str, jax.Array]  # fields of `Model`
    t_eps: jax.Array | None
    key: PRNGKey


def make(config: FiDecConfig, spec: Spec) -> Algorithm:
    return make_constrained(config, spec, config.build_constraint(), config.calibrate_every)


def make_constrained(
    config: ResidualConfig, spec: Spec, constraint: Constraint, calibrate_every: int = 1
) -> Algorithm:
    """The algorithm for one constraint. DeFlow is this with the isotropic one."""
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    residual: Any = nn.ResidualMap(config.hidden, spec.action_dim, encoder, config.residual_start == "zero")
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)
    adam = optax.adam(config.learning_rate)
    budget, chunk_factor = constraint.limit(config.budget), constraint.chunk_factor(spec.chunk)
    log_dual, calibrated = config.dual == "log", constraint.t_eps == "auto"

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (behaviour.network, "sat"), "residual": (residual, "sa")}
        params, constants = backbone.init_modules(key, networks, spec), {}
        # A Python float would be weakly typed, and the second call of a jitted update would compile again.
        multiplier = jnp.asarray(config.multiplier_init, jnp.float32)
        if log_dual:
            params["multiplier"] = jnp.log(multiplier)
        else:
            constants["multiplier"] = multiplier
        if calibrated:
            constants["t_eps"] = jnp.asarray(START_TIME, jnp.float32)
        return backbone.start(params, adam, targets=("critic",), constants=constants)

    def calibrate(state: State, velocity, actions, key) -> jax.Array:
        """t_eps by score matching on the data's actions, every `calibrate_every` updates."""
        due = (state.step > 0) & (state.step % calibrate_every == 0)
        choose = lambda: fisher.choose_time(velocity, actions, key)[0]  # noqa: E731
        return jax.lax.cond(due, choose, lambda: state.params["t_eps"])

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        noise_key, flow_key, penalty_key = jax.random.split(key, 3)
        calibrate_key, anchor_key = jax.random.fold_in(penalty_key, 1), jax.random.fold_in(penalty_key, 2)
        (rows, d), following = batch.actions.shape, config.residual_at == "next_observations"
        encode = partial(behaviour.encode, state.params["flow"])
        # Base actions at s', or by one solve at s and s': twice the rows, half the launches.
        features = encode(batch.next_observations)
        features = features if following else jnp.concatenate([encode(batch.observations), features])
        noise = jax.random.normal(noise_key, (len(features), d))
        base = jax.lax.stop_gradient(behaviour.sample(state.params["flow"], features, noise, encoded=True))
        base, next_base = base[:rows], base[-rows:]
        velocity = behaviour.velocity(state.params["flow"], features[:rows], encoded=True)
        anchors = jax.lax.stop_gradient(constraint.anchors(velocity, base, anchor_key, config.flow_steps))
        data = batch.next_actions if following else batch.actions
        t_eps = calibrate(state, velocity, data, calibrate_key) if calibrated else None

        def flow_loss(own, params):
            return behaviour.loss(own, batch, flow_key), {}

        observations = batch.next_observations if following else batch.observations
        constrained = Constrained(observations, base, {"anchors": anchors}, t_eps, penalty_key)
        return descend(state, batch, next_base, constrained, {"flow": flow_loss})

    def update_frozen(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        """The residual map learns at the next states, whose base actions are known."""
        pick_key, calibrate_key, penalty_key = jax.random.split(key, 3)
        known = _rows_first(frozen.pick(batch.proposals, pick_key))
        base, t_eps = known.pop("actions"), None
        if calibrated:
            velocity = behaviour.velocity(state.params["flow"], batch.next_observations)
            t_eps = calibrate(state, velocity, batch.next_actions, calibrate_key)
        known = {"anchors": base, **known}
        return descend(state, batch, base, Constrained(batch.next_observations, base, known, t_eps, penalty_key), {})

    def propose(state: State, observations, key):
        """Base actions, and what the constraint can compute from them before the displacement is known."""

        def prepared(observations, noise, base):
            model = behaviour_at(state.params, observations, {"anchors": base}, None)
            known = constraint.prepare(model, base, jax.random.fold_in(key, 1), config.flow_steps)
            return _rows_first(known)

        flow, states = state.params["flow"], constraint.prepare_states
        return frozen.propose(behaviour, flow, observations, key, config.proposals, prepared, states)

    def descend(state: State, batch: Batch, next_base, at: Constrained, others) -> tuple[State, Metrics]:
        """One update of critic, residual map and multiplier, and of the modules whose losses are in `others`."""
        limit = budget * jnp.minimum(1.0, (state.step + 1) / config.opening) if config.opening else budget

        def critic_loss(own, params):
            next_displacement = residual.apply(params["residual"], batch.next_observations, next_base)
            next_actions = jnp.clip(next_base + next_displacement, -1.0, 1.0)
            return backbone.policy_critic_loss(
                critic, own, state.target["critic"], batch, next_actions, config, at.key
            )

        def residual_loss(own, params):
            field = partial(residual.apply, own, at.observations)
            displacement = field(at.base)
            actions = jnp.clip(at.base + displacement, -1.0, 1.0)
            q = critic.apply(params["critic"], at.observations, actions).mean(axis=0)
            q_scale = values.value_scale(q, config.q_scale) if config.normalize_q else 1.0
            model = behaviour_at(params, at.observations, at.known, at.t_eps)
            costs = constraint.penalty(Move(field, at.base, displacement), model, at.key)
            penalty = constrained = chunk_factor * constraint.mean(costs)
            if config.state_limit is not None:
                constrained = dual.limited(chunk_factor * costs, config.state_limit * limit).mean()
            multiplier = jnp.exp(params["multiplier"]) if log_dual else params["multiplier"]
            if config.dual == "controlled":
                multiplier, _ = dual.controlled(multiplier, dual.log_ratio(constrained, limit), config.dual_rate)
            multiplier = jax.lax.stop_gradient(multiplier)
            metrics = {"q_policy": q.mean(), "penalty": penalty, "multiplier": multiplier, "constrained": constrained}
            metrics |= refined.displacement_metrics(at.base, displacement)
            return multiplier * constrained - q_scale * q.mean(), metrics

        def transform(grads, metrics):
            """Add the multiplier's gradient after the residual's, and clip."""
            if log_dual and "penalty" in metrics:
                grads = {**grads, "multiplier": dual.log_gradient(metrics["constrained"] - limit)}
                metrics["grad_norm/multiplier"] = optax.tree.norm(grads["multiplier"])
            return optim.clip_gradients(grads, config.grad_clip, config.clip_scope)

        losses = {"critic": critic_loss, **others, "residual": residual_loss}
        turns = [losses] if config.order == "joint" else [{name: loss} for name, loss in losses.items()]
        after, metrics = state, {}
        for turn in turns:
            after, logged = backbone.gradient_step(after, turn, adam, backbone.frozen_modules(config), transform)
            metrics |= logged
        constants = {}
        multiplier, constrained = state.params["multiplier"], metrics.pop("constrained")
        if config.dual == "projected":
            constants["multiplier"] = dual.projected_step(multiplier, constrained - limit, config.dual_step_size)
        elif config.dual == "controlled":
            error = dual.log_ratio(constrained, limit)
            _, constants["multiplier"] = dual.controlled(multiplier, error, config.dual_rate)
        if calibrated:
            constants["t_eps"] = metrics["t_eps"] = at.t_eps
        metrics["loss"] = sum((metrics[f"{name}_loss"] for name in losses), jnp.zeros(()))
        after = after._replace(params={**after.params, **constants})
        return backbone.advance(state, after, config.target_rate), metrics

    def behaviour_at(params, observations, known, t_eps) -> Model:
        velocity = behaviour.velocity(params["flow"], observations)
        return Model(velocity, partial(behaviour.sample, params["flow"], observations), t_eps=t_eps, **known)

    def displacement(params, observations, base, key):
        return residual.apply(params["residual"], observations, base)

    def transport(state: State, observations) -> Transport:
        field = partial(residual.apply, state.params["residual"], observations)
        model = partial(behaviour_at, state.params, observations, t_eps=state.params.get("t_eps"))
        at = lambda base: model({"anchors": base})  # noqa: E731

        def cost(base, key):
            return chunk_factor * constraint.penalty(Move(field, base, field(base)), at(base), key)

        return Transport(at(None).velocity, at(None).sample, field, cost, budget, constraint.unit)

    act_with_base = refined.act_by(critic, behaviour, spec, displacement)
    policy = lambda state: state._replace(target=None, optimiser=None)  # noqa: E731
    return with_base(init, update, act_with_base, policy, transport, Frozen(update_frozen, propose))


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
    presets=PRESETS,
    runs=RUNS,
    logs={**LOGS, "t_eps": "the time at which the score is evaluated, if it is calibrated"},
    parts={"constraint": CONSTRAINTS},
)
