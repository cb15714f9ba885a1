"""Policy distributions, and the extraction of a policy from values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.ops.values import weigh
from fidec.types import PRNGKey

Vector = Float[Array, "*batch d"]
Scalar = Float[Array, "*batch"]


def normal_log_prob(x: Vector, mean: Vector, log_std: Vector, weights: Vector | None = None) -> Scalar:
    """log N(x; mean, diag(std^2)), summed over dimensions, each with its weight."""
    z = (x - mean) * jnp.exp(-log_std)
    return jnp.sum(weigh(-0.5 * z**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi), weights), axis=-1)


def tanh_normal_sample(key: PRNGKey, mean: Vector, log_std: Vector) -> tuple[Vector, Scalar]:
    """a = tanh(u), u ~ N(mean, std^2), and its log-density.

    log pi(a) = log N(u) - sum log(1 - tanh(u)^2). The form log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)) has no
    cancellation for large |u|.
    """
    u = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    return jnp.tanh(u), normal_log_prob(u, mean, log_std) - log_det_tanh(u)


def log_det_tanh(u: Vector) -> Scalar:
    """sum log(1 - tanh(u)^2)."""
    return jnp.sum(2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u)), axis=-1)


def advantage_weights(advantages: Scalar, temperature: float, limit: float = 100.0) -> Scalar:
    """min(exp(alpha A), limit), without a gradient: the weights of advantage-weighted regression."""
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(temperature * advantages), limit))


def best_of(candidates: Float[Array, "n *batch d"], values: Float[Array, "n *batch"]) -> Vector:
    """For each observation, the candidate with the highest value."""
    best = jnp.argmax(values, axis=0)[None, ..., None]
    return jnp.take_along_axis(candidates, best, axis=0)[0]


def soft_policy_loss(values: Scalar, log_probs: Scalar, temperature: Float[Array, ""] | float) -> Float[Array, ""]:
    """E [alpha log pi(a) - Q(a)]: SAC's policy loss."""
    return jnp.mean(jax.lax.stop_gradient(temperature) * log_probs - values)


def temperature_loss(weight: Float[Array, ""], log_probs: Scalar, target_entropy: float) -> Float[Array, ""]:
    """weight * (H - H*), H the sampled entropy: descent raises the weight while the entropy is below its target.

    `weight` is the temperature or its logarithm. With respect to the logarithm, the two gradients differ by a
    positive factor.
    """
    return weight * jax.lax.stop_gradient(jnp.mean(-log_probs) - target_entropy)
