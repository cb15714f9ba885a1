"""QAM: a behaviour flow, and a flow of its samples tilted by Q, learnt by adjoint matching.

    pi(a | s)  proportional to  beta(a | s) exp(tau Q(s, a))          tau is the inverse temperature

    critic   E (Q_i(s, a) - r - gamma m [mean Qbar - rho std Qbar](s', a'))^2,   a' ~ pi(s'),   i = 1, ..., 10
    flow     flow matching on the data's actions: v_beta
    policy   E sum over steps of |2 (v - v_beta) / sigma + sigma lambda|^2
             on paths of v's memoryless SDE from noise to an action x_1, with the lean adjoint lambda of v_beta:
             lambda(1) = -tau grad Qbar(s, clip x_1),   d lambda / dt = -J^T lambda,   J = d (2 v_beta - x / t) / dx

No gradient goes through the steps of v: the adjoint needs v_beta alone, and v is regressed on it at every step. Here
v_beta is a moving average of the flow, and Qbar the mean of the target critics. `fidec.ops.adjoint` has the equations
in discrete steps. Two variants put a second policy on top of v's flow mu:

    edit      a = clip(mu(s, z) + c tanh u),  u Gaussian given s and mu(s, z);  soft actor-critic on u
    one_step  a = clip(mu_omega(s, z)),  alpha E |mu_omega(s, z) - mu(s, z)|^2 / d - E Q(s, a), as in FQL

Online it explores with the same policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fidec import nn, optim
from fidec.algos.common import backbone, base_actions, options
from fidec.algos.common.base import Algorithm, Method, State, with_base
from fidec.errors import ConfigError
from fidec.ops import adjoint, policies
from fidec.types import Batch, Metrics, Params, PRNGKey, Spec


@dataclass(frozen=True)
class QAMConfig(options.FlowConfig):
    """QAM's options. The defaults are those of the released code, but for the temperature."""

    variant: Literal["plain", "edit", "one_step"] = "plain"
    """The policy: the flow itself (QAM), an edit of its actions (QAM-E), or a network of one pass that is
    distilled from it while it maximises Q (QAM-F)."""
    inverse_temperature: float = 1.0
    """tau: the policy is the behaviour times exp(tau Q). From 0.1 to 30 over the published tasks; 0 is the
    behaviour."""
    edit_scale: float = 0.1
    """c: the largest change of each action component by the variant edit."""
    target_entropy_scale: float = 0.5
    """The target entropy of the variant edit is minus this, times the number of action dimensions."""
    alpha: float = 30.0
    """Weight of the distillation in the variant one_step; from 3 to 300 over the published tasks."""
    critics: int = 10
    """Number of critics, with independent weights."""
    pessimism: float = 0.5
    """rho: the TD target takes mean - rho std of the target critics."""
    grad_clip: float | None = 1.0
    """Largest norm of all gradients together; None does not clip."""
    train_flow: bool = True
    """Train the behaviour flow. False keeps it and its optimiser state as they are: a flow frozen online."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "inverse_temperature", "edit_scale", "alpha")
        if not (self.grad_clip is None or self.grad_clip > 0):
            raise ConfigError(f"grad_clip must be positive, or None for no clipping, not {self.grad_clip}")


def make(config: QAMConfig, spec: Spec) -> Algorithm:
    encoder = backbone.encoder(spec)
    critic: Any = nn.Critic(config.hidden, ensemble=config.critics, encoder=encoder)
    field = backbone.FlowPolicy(config.hidden, spec, config.flow_steps)  # of the behaviour and of the policy
    editor: Any = nn.EditActor(config.hidden, spec.action_dim, encoder)
    student: Any = nn.ResidualMap(config.hidden, spec.action_dim, encoder)
    adam = optax.adam(config.learning_rate)
    target_entropy = -config.target_entropy_scale * spec.action_dim
    on_top = {"plain": {}, "edit": {"edit": (editor, "sa")}, "one_step": {"student": (student, "sa")}}[config.variant]

    def init(key: PRNGKey) -> State:
        networks = {"critic": (critic, "sa"), "flow": (field.network, "sat"), "policy": (field.network, "sat")}
        params = backbone.init_modules(key, networks | on_top, spec)
        if config.variant == "edit":
            params["temperature"] = jnp.zeros(())  # the logarithm of SAC's temperature
        return backbone.start(params, adam, targets=("critic", "flow"))

    def clip(actions):
        return jnp.clip(actions, -1.0, 1.0)

    def draw(params, observations, start, key, noise: Any = 1.0):
        """The policy's actions for the noise `start`. `noise` multiplies what is drawn from the key."""
        if config.variant == "one_step":
            return clip(student.apply(params["student"], observations, start))
        actions = field.sample(params["policy"], observations, start)
        if config.variant == "edit":
            mean, log_std = editor.apply(params["edit"], observations, actions)
            shock = noise * jnp.exp(log_std) * jax.random.normal(key, mean.shape)
            actions = clip(actions + config.edit_scale * jnp.tanh(mean + shock))
        return actions

    def critic_loss_of(state: State, batch: Batch, key: PRNGKey):
        start_key, edit_key = jax.random.split(key)

        def critic_loss(own, params):
            start = jax.random.normal(start_key, batch.actions.shape)
            next_actions = draw(params, batch.next_observations, start, edit_key)
            return backbone.policy_critic_loss(
                critic, own, state.target["critic"], batch, next_actions, config, start_key
            )

        return critic_loss

    def policy_loss_of(state: State, base: Params, observations, start, key: PRNGKey):
        """Adjoint matching with the behaviour flow `base`, on paths from the noise `start`."""

        def total_q(actions):
            q = critic.apply(state.target["critic"], observations, clip(actions)).mean(axis=0)
            return q.sum(), q.mean()

        def policy_loss(own, params):
            beta = field.velocity(base, observations)
            path = adjoint.sample_path(
                field.velocity(params["policy"], observations), beta, start, key, config.flow_steps
            )
            slope, q = jax.grad(total_q, has_aux=True)(path.end)
            adjoints = adjoint.lean_adjoint(beta, path, -config.inverse_temperature * slope)
            loss, kl = adjoint.matching_loss(field.velocity(own, observations), beta, path, adjoints)
            steepness = jnp.sqrt(jnp.mean(jnp.sum(slope**2, axis=-1)))
            return loss, {"path_kl": kl, "q_flow": q, "q_slope": steepness}

        return policy_loss

    def edit_losses(observations, start, key: PRNGKey) -> dict[str, Any]:
        def edit(own, params):
            actions = field.sample(params["policy"], observations, start)
            return actions, *policies.tanh_normal_sample(key, *editor.apply(own, observations, actions))

        def edit_loss(own, params):
            actions, change, log_probs = edit(own, params)
            edited = clip(actions + config.edit_scale * change)
            q = critic.apply(params["critic"], observations, edited).mean(axis=0)
            loss = policies.soft_policy_loss(q, log_probs, jnp.exp(params["temperature"]))
            return loss, {"q_policy": q.mean(), "entropy": -log_probs.mean()}

        def temperature_loss(own, params):
            *_, log_probs = edit(params["edit"], params)
            return policies.temperature_loss(jnp.exp(own), log_probs, target_entropy), {"temperature": jnp.exp(own)}

        return {"edit": edit_loss, "temperature": temperature_loss}

    def student_loss_of(observations, start):
        def student_loss(own, params):
            actions = student.apply(own, observations, start)
            distillation = jnp.mean((actions - field.sample(params["policy"], observations, start)) ** 2)
            q = critic.apply(params["critic"], observations, clip(actions)).mean(axis=0)
            return config.alpha * distillation - q.mean(), {"distillation": distillation, "q_policy": q.mean()}

        return student_loss

    def losses_of(state: State, base: Params, batch: Batch, key: PRNGKey) -> dict[str, Any]:
        """The losses of all modules but the behaviour flow."""
        next_key, start_key, path_key, top_key = jax.random.split(key, 4)
        starts = jax.random.normal(start_key, (2, *batch.actions.shape))  # of the paths, and of the policy on top
        losses = {
            "critic": critic_loss_of(state, batch, next_key),
            "policy": policy_loss_of(state, base, batch.observations, starts[0], path_key),
        }
        if config.variant == "edit":
            losses |= edit_losses(batch.observations, starts[1], top_key)
        if config.variant == "one_step":
            losses["student"] = student_loss_of(batch.observations, starts[1])
        return losses

    def descend(state: State, losses: dict[str, Any]) -> tuple[State, Metrics]:
        limit = lambda grads, metrics: optim.clip_gradients(grads, config.grad_clip, "global")  # noqa: E731
        after, metrics = backbone.gradient_step(state, losses, adam, backbone.frozen_modules(config), limit)
        return backbone.advance(state, after, config.target_rate), metrics

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        if batch.proposals is not None:  # a frozen flow needs no moving average
            return descend(state, losses_of(state, state.params["flow"], batch, key))
        flow_key, key = jax.random.split(key)

        def flow_loss(own, params):
            return field.loss(own, batch, flow_key), {}

        return descend(state, {"flow": flow_loss} | losses_of(state, state.target["flow"], batch, key))

    def act_with_base(state: State, observations, key, candidates: int = 1, noise=1.0):
        start_key, edit_key = jax.random.split(key)
        start = noise * backbone.noise_for(start_key, observations, spec, candidates)
        actions = draw(state.params, observations, start, edit_key, noise)
        base = field.sample(state.params["flow"], observations, start)
        if candidates == 1:
            return actions[0], base[0]
        q = critic.apply(state.params["critic"], observations, actions).mean(axis=0)
        return policies.best_of(actions, q), policies.best_of(base, q)

    policy = lambda state: backbone.keep_params(state, "critic", "flow", "policy", *on_top)  # noqa: E731
    return with_base(init, update, act_with_base, policy, propose=base_actions.nothing)


METHOD = Method(
    name="qam",
    summary="flow policy that is the behaviour flow tilted by exp Q, by adjoint matching",
    config=QAMConfig,
    make=make,
    presets={"edit": {"variant": "edit"}, "one_step": {"variant": "one_step"}},
    logs={
        "path_kl": "KL of the policy's flow from the behaviour's over whole paths of their SDEs, in nats",
        "q_flow": "mean of the target critics' Q at the ends of the policy's paths",
        "q_slope": "root mean square of |grad Q| there, before the factor tau",
        "q_policy": "mean of Q at the edited actions, or at those of the one-step policy",
        "entropy": "edit: entropy of the edit, estimated by its log-density at drawn edits",
        "temperature": "edit: the weight of the entropy",
        "distillation": "one_step: mean squared distance to the flow's actions, a mean over dimensions",
    },
)
