"""SRPO: a deterministic policy that maximises Q, regularised by the score of a diffusion model of the behaviour.

    value, critic, denoiser   as in IDQL
    policy   E [w_k sg(eps(s, a_k, k)) . a - beta sg(grad_a Qbar(s, a)) . a],   a = tanh mu(s),   w_k = 1 - abar_k
             a_k = sqrt(abar_k) a + sqrt(1 - abar_k) z,   k ~ U{0, ..., T - 1},   Qbar the mean of the target critics

Acting is one pass through a network; nothing is sampled. The loss is a surrogate: its gradient has a meaning, its
value has none. The benchmark's SRPO was not released. Chosen here: IDQL's T levels with equal probability, the weight
w_k, a policy of four layers, the moving average of the denoiser as the behaviour. The original trains critic,
behaviour and policy in stages. Here all are trained at the same time, in one update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fidec import nn
from fidec.algos import idql
from fidec.algos.common import backbone, options
from fidec.algos.common.base import Algorithm, Method, State
from fidec.algos.iql import value_losses
from fidec.errors import ConfigError
from fidec.ops import diffusion
from fidec.types import Batch, Metrics, PRNGKey, Spec


@dataclass(frozen=True)
class SRPOConfig(idql.DiffusionConfig):
    """SRPO's options."""

    beta: float = 0.1
    """Weight of Q against the behaviour: larger is greedier; from 0.01 to 0.3 over the benchmark's tasks."""
    policy_hidden: tuple[int, ...] = (256, 256, 256, 256)
    """Widths of the policy's hidden layers."""
    normalize_value_gradient: bool = False
    """Divide each action's gradient of Q by its root mean square over the dimensions, as the original does in mazes.
    Its published beta for D4RL's AntMaze belongs to this gradient."""
    subtract_noise: bool = False
    """Subtract the added noise from the predicted one in the policy's gradient: the same mean, another variance."""

    def __post_init__(self):
        super().__post_init__()
        options.not_negative(self, "beta")
        if not self.policy_hidden or min(self.policy_hidden) < 1:
            raise ConfigError(f"every width of policy_hidden must be at least 1, not {self.policy_hidden}")


def divide_by_rms(gradient: jax.Array) -> jax.Array:
    """Each row divided by the root mean square of its components; a row of zeros stays."""
    rms = jnp.sqrt(jnp.mean(gradient**2, axis=-1, keepdims=True))
    return gradient / jnp.maximum(rms, 1e-12)


def make(config: SRPOConfig, spec: Spec) -> Algorithm:
    options.require_flat(spec, "srpo")
    critic, value = idql.value_networks(config)
    behaviour = idql.DiffusionPolicy(config, spec)
    actor: Any = nn.Actor(config.policy_hidden, spec.action_dim, activation=jax.nn.relu)
    adams, rates = idql.optimisers(config), {"critic": config.target_rate, "denoiser": config.ema_rate}

    def init(key: PRNGKey) -> State:
        networks = {"value": (value, "s"), "critic": (critic, "sa"), "denoiser": (behaviour.network, "sat")}
        params = backbone.init_modules(key, networks | {"policy": (actor, "s")}, spec)
        return backbone.start(params, adams, targets=tuple(rates))

    def update(state: State, batch: Batch, key: PRNGKey) -> tuple[State, Metrics]:
        denoiser_key, policy_key = jax.random.split(key)

        def total_q(actions):
            q = critic.apply(state.target["critic"], batch.observations, actions).mean(axis=0)
            return q.sum(), q  # the rows are independent, so the gradient of the sum is that of each row

        def policy_loss(own, params):
            actions = jnp.tanh(actor.apply(own, batch.observations))
            fixed = jax.lax.stop_gradient(actions)
            value_gradient, q = jax.grad(total_q, has_aux=True)(fixed)
            if config.normalize_value_gradient:
                value_gradient = divide_by_rms(value_gradient)
            predictor = behaviour.predictor(state.target["denoiser"], batch.observations)
            behaviour_gradient = diffusion.regularisation_gradient(
                behaviour.schedule, predictor, fixed, policy_key, config.subtract_noise
            )
            metrics = {
                "q_policy": q.mean(),
                "value_push": config.beta * jnp.linalg.norm(value_gradient, axis=-1).mean(),
                "behaviour_push": jnp.linalg.norm(behaviour_gradient, axis=-1).mean(),
            }
            gradient = behaviour_gradient - config.beta * value_gradient
            return jnp.mean(jnp.sum(gradient * actions, axis=-1)), metrics

        losses = value_losses(config, critic, value, state.target["critic"], batch, key)
        losses |= {"denoiser": behaviour.loss(batch, denoiser_key), "policy": policy_loss}
        return backbone.descend(state, losses, adams, rates)

    def act(state: State, observations, key, noise=1.0):
        return jnp.tanh(actor.apply(state.params["policy"], observations))

    return Algorithm(init, update, act, lambda state: backbone.keep_params(state, "policy"))


METHOD = Method(
    name="srpo",
    summary="deterministic policy, value against the score of a diffusion model of the behaviour",
    config=SRPOConfig,
    make=make,
    offline_only="its policy is deterministic, and it was published for fixed data only, without exploration",
    logs={
        "v": "mean of V",
        "q_policy": "mean of the target Q at the policy's actions",
        "value_push": "mean norm of beta grad Q as it is used, one part of the policy's gradient by the action",
        "behaviour_push": "mean norm of w eps, the other part",
    },
)
