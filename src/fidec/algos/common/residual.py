"""A behaviour flow, and a residual map that moves its actions towards value inside a trust region.

    a_0 = mu_beta(s, z)                                   the behaviour flow, `flow_steps` Euler steps
    a   = a_0 + delta(s, a_0)                             the local transport map
    max_delta  E[Q(s, a)]   subject to   E[D(delta; s, a_0)] <= budget

DeFlow and FiDec are this algorithm; they differ in D alone, which `make` takes as an argument. One update:

    critic      (Q(s, a) - r - gamma m Qbar(s', a_0' + delta(s', a_0')))^2
    flow        flow matching on the data's actions
    residual    lambda D(delta) - Q(s, a_0 + delta) / mean|Q|
    multiplier  lambda rises while E[D] exceeds the budget

Online it explores by its own noise z, as it acts; `train_flow` may hold the behaviour flow where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fidec import nn
from fidec.algos.common import backbone
from fidec.algos.common.base import Algorithm, State, Transport, with_base
from fidec.errors import ConfigError
from fidec.ops import dual, policies, values
from fidec.optim import ClipScope, clip_gradients, polyak, step
from fidec.types import Batch, Metrics, Params, PRNGKey, Spec

MODULES = ("critic", "flow", "residual", "multiplier")
START_TIME = 0.8  # where the score is read until the first calibration
LOGS = {
    "q_policy": "mean of Q at the refined actions",
    "penalty": "E[D], to be compared with the budget (in nats for FiDec's `stein`, `path` and `denoising`)",
    "multiplier": "lambda at the start of the update",
    "displacement": "root mean square of |delta|, before clipping",
    "clipped": "share of action components that the displacement carries outside [-1, 1]",
}

# penalty(field, displacement, base, key, anchors=, velocity=, sample=, t_eps=) -> (b,): what displacements cost. That
# of a base action is field(base). A KL needs the field's Jacobian as well, and actions that have the density whose
# score it reads: the anchors. `velocity` and `sample` are the state's behaviour flow, `t_eps` is a calibrated time,
# if there is one.
Penalty = Callable[..., jax.Array]
# anchor(velocity, data, key) -> the anchors, given the logged actions.
Anchor = Callable[..., jax.Array]
# calibrate(velocity, actions, key) -> the time at which to read the score, from actions of the data.
Calibrate = Callable[..., jax.Array]


@dataclass(frozen=True)
class ResidualConfig(backbone.FlowConfig):
    """What DeFlow and FiDec share. The defaults are the benchmark's common settings."""

    budget: float = 0.001
    """epsilon: the trust region's size, in units of the penalty (isotropic: mean squared displacement)."""
    multiplier_init: float = 10.0
    """lambda at the start."""
    dual: Literal["log", "projected"] = "log"
    """The multiplier: Adam on log lambda (the released code) or ReLU(lambda + eta violation) (the paper)."""
    dual_step_size: float = 1.0
    """eta of the projected step; the paper does not give it."""
    order: Literal["joint", "alternating"] = "joint"
    """One simultaneous step on all modules (the released code), or critic, flow, residual, multiplier in
    turn, each seeing the modules before it updated (the paper's Algorithm 1). Base actions, and the penalty
    that the multiplier answers, are those of the update's start in either order, which saves a flow solve."""
    normalize_q: bool = True
    """Divide Q by its mean magnitude in the residual's objective."""
    grad_clip: float | None = None
    """Largest gradient norm; None does not clip."""
    clip_scope: ClipScope = "module"
    """One norm over all modules together (the released code), or one for each module."""
    clip_actions: bool = True
    """Clip base and refined actions to [-1, 1]; the paper does not mention it, its code does."""
    train_flow: bool = True
    """Train the behaviour flow. False leaves it and its Adam as they are: a flow frozen online."""

    def __post_init__(self):
        super().__post_init__()
        if self.order == "alternating" and self.clip_scope == "global" and self.grad_clip is not None:
            raise ConfigError(
                "clip_scope 'global' needs all gradients at once, order 'alternating' takes them in turn; "
                "choose clip_scope 'module' or order 'joint'"
            )
        for name in ("budget", "multiplier_init", "dual_step_size"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        if not (self.grad_clip is None or self.grad_clip > 0):
            raise ConfigError(f"grad_clip must be positive, or None for no clipping, not {self.grad_clip}")


def make(
    config: ResidualConfig,
    spec: Spec,
    penalty: Penalty,
    *,
    budget: float | None = None,
    unit: str = "of the penalty",
    anchor: Anchor | None = None,
    calibrate: Calibrate | None = None,
    calibrate_every: int = 1000,
) -> Algorithm:
    """init, update and act for the given penalty on displacements; `budget` and its `unit` if not the configured one.

    `params["multiplier"]` is log lambda, or lambda itself if the dual is projected. With `calibrate` there is a
    `params["t_eps"]`, chosen anew every `calibrate_every` updates.
    """
    budget = config.budget if budget is None else budget
    encoder = backbone.encoder(spec)
    d = spec.action_dim
    critic: Any = nn.Critic(config.hidden, encoder=encoder)
    residual: Any = nn.ResidualMap(config.hidden, d, encoder)
    behaviour = backbone.FlowPolicy(config.hidden, spec, config.flow_steps, clip=config.clip_actions)
    adam = optax.adam(config.learning_rate)
    learned = MODULES if config.dual == "log" else MODULES[:-1]
    frozen = backbone.frozen_modules(config)

    def clip(actions):
        return jnp.clip(actions, -1.0, 1.0) if config.clip_actions else actions

    def refine(params: Params, observations, base):
        """(delta, a_0 + delta)."""
        displacement = residual.apply(params, observations, base)
        return displacement, clip(base + displacement)

    def multiplier_of(params):
        return jnp.exp(params["multiplier"]) if config.dual == "log" else params["multiplier"]

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (behaviour.network, "sat"), "residual": (residual, "sa")}
        params = backbone.init_modules(key, networks, spec)
        # A Python float would be weakly typed: the second call of a jitted update would compile once more.
        start = jnp.asarray(config.multiplier_init, jnp.float32)
        params["multiplier"] = jnp.log(start) if config.dual == "log" else start
        if calibrate is not None:
            params["t_eps"] = jnp.asarray(START_TIME, jnp.float32)
        return State(
            params=params,
            target=jax.tree.map(jnp.copy, params["critic"]),
            optimiser={name: adam.init(params[name]) for name in learned},
            step=jnp.zeros((), jnp.int32),
        )

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        noise_key, flow_key, metric_key = jax.random.split(key, 3)
        calibrate_key, anchor_key = jax.random.fold_in(metric_key, 1), jax.random.fold_in(metric_key, 2)
        rows = batch.actions.shape[0]
        # One solve serves s and s': twice the rows, half the launches.
        encode = partial(behaviour.encode, state.params["flow"])
        both = jnp.concatenate([encode(batch.observations), encode(batch.next_observations)])
        noise = jax.random.normal(noise_key, (2 * rows, d))
        base = behaviour.sample(state.params["flow"], both, noise, encoded=True)
        base, next_base = jax.lax.stop_gradient((base[:rows], base[rows:]))
        t_eps, anchors = None, base
        velocity = behaviour.velocity(state.params["flow"], both[:rows], encoded=True)
        if anchor is not None:
            anchors = jax.lax.stop_gradient(anchor(velocity, batch.actions, anchor_key))
        if calibrate is not None:
            due = (state.step > 0) & (state.step % calibrate_every == 0)
            choose = partial(calibrate, velocity, batch.actions, calibrate_key)
            t_eps = jax.lax.cond(due, choose, lambda: state.params["t_eps"])

        def critic_loss(critic_params, params):
            _, next_actions = refine(params["residual"], batch.next_observations, next_base)
            loss, info = backbone.policy_critic_loss(critic, critic_params, state.target, batch, next_actions, config)
            return loss, {"critic_loss": loss, **info}

        def flow_loss(flow_params, params):
            loss = behaviour.loss(flow_params, batch.observations, batch.actions, flow_key)
            return loss, {"flow_loss": loss}

        def residual_loss(residual_params, params):
            displacement, actions = refine(residual_params, batch.observations, base)
            q = critic.apply(params["critic"], batch.observations, actions).mean(axis=0)
            scale = values.value_scale(q) if config.normalize_q else 1.0
            cost = penalty(
                partial(residual.apply, residual_params, batch.observations),
                displacement,
                base,
                metric_key,
                anchors=anchors,
                velocity=behaviour.velocity(params["flow"], batch.observations),
                sample=partial(behaviour.sample, params["flow"], batch.observations),
                t_eps=t_eps,
            ).mean()
            multiplier = jax.lax.stop_gradient(multiplier_of(params))
            loss = multiplier * cost - scale * q.mean()
            return loss, {
                "residual_loss": loss,
                "q_policy": q.mean(),
                "penalty": cost,
                "multiplier": multiplier,
                "displacement": jnp.sqrt(jnp.mean(jnp.sum(displacement**2, axis=-1))),
                "clipped": jnp.mean(jnp.abs(base + displacement) > 1.0),
            }

        losses = backbone.held({"critic": critic_loss, "flow": flow_loss, "residual": residual_loss}, frozen)
        metrics: Metrics = {}

        def gradient(name, params):
            """The gradient of one module's loss; every other module is held fixed."""
            if name == "multiplier":  # comes after the residual, whose penalty it answers
                return dual.log_gradient(metrics["penalty"] - budget)
            grads, info = jax.grad(losses[name], has_aux=True)(params[name], params)
            metrics.update(info)
            return grads

        def descend(names, params, optimiser):
            """Simultaneous steps on `names`, all gradients taken at `params`."""
            grads = {name: gradient(name, params) for name in names}
            for name in names:
                metrics[f"grad_norm/{name}"] = optax.tree.norm(grads[name])
            # A frozen module takes no step, nor does it count in the norm that clips the others.
            grads = {name: grad for name, grad in grads.items() if name not in frozen}
            grads = clip_gradients(grads, config.grad_clip, config.clip_scope)
            return step(adam, grads, params, optimiser)

        params, optimiser = state.params, state.optimiser
        for names in [learned] if config.order == "joint" else [(name,) for name in learned]:
            params, optimiser = descend(names, params, optimiser)
        if config.dual == "projected":
            violation = metrics["penalty"] - budget
            stepped = dual.projected_step(params["multiplier"], violation, config.dual_step_size)
            params = {**params, "multiplier": stepped}
        if t_eps is not None:
            params = {**params, "t_eps": t_eps}
            metrics["t_eps"] = t_eps

        metrics["loss"] = metrics["critic_loss"] + metrics["flow_loss"] + metrics["residual_loss"]
        # The target follows the critic as it was before this step, as in the FQL backbone.
        target = polyak(state.params["critic"], state.target, config.target_rate)
        return State(params, target, optimiser, state.step + 1), metrics

    def act_with_base(state: State, observations, key, candidates: int = 1):
        noise = backbone.noise_for(key, observations, spec, candidates)
        base = behaviour.sample(state.params["flow"], observations, noise)
        _, actions = refine(state.params["residual"], observations, base)
        if candidates > 1:
            q = critic.apply(state.params["critic"], observations, actions).mean(axis=0)
            actions, base = policies.best_of(actions, q), policies.best_of(base, q)
        else:
            actions, base = actions[0], base[0]
        # A policy acts inside the box, whatever it was trained with.
        actions, base = jnp.clip(actions, -1.0, 1.0), jnp.clip(base, -1.0, 1.0)
        return actions, base

    def policy(state: State) -> State:
        return state._replace(target=None, optimiser=None)

    def transport(state: State, observations) -> Transport:
        field = partial(residual.apply, state.params["residual"], observations)
        velocity = behaviour.velocity(state.params["flow"], observations)
        sample = partial(behaviour.sample, state.params["flow"], observations)
        model = {"velocity": velocity, "sample": sample, "t_eps": state.params.get("t_eps")}
        cost = lambda base, key: penalty(field, field(base), base, key, anchors=base, **model)  # noqa: E731
        return Transport(velocity, sample, field, cost, budget, unit)

    return with_base(init, update, act_with_base, policy, transport)
