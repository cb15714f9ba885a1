"""The multiplier lambda of a constraint E[penalty] <= budget: `violation` is E[penalty] - budget."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
SMALLEST, LARGEST = 1e-6, 1e6  # multipliers of the controller: neither zero nor infinity could be left again


def projected_step(multiplier: Scalar, violation: Scalar, step_size: float) -> Scalar:
    """lambda <- ReLU(lambda + eta (E[penalty] - budget)): the paper's dual ascent. It can reach zero."""
    return jax.nn.relu(multiplier + step_size * violation)


def log_gradient(violation: Scalar) -> Scalar:
    """The gradient with respect to log lambda of the dual loss -log lambda * (E[penalty] - budget).

    A descent step raises lambda while the constraint is violated. Lambda stays positive. With Adam its relative
    change per step is at most about the learning rate.
    """
    return -violation


def log_ratio(penalty: Scalar, budget: Scalar | float) -> Scalar:
    """log(E[penalty] / budget), without a gradient, limited to [-1, 1]: the error that `controlled` acts on."""
    ratio = jnp.log(jnp.maximum(jax.lax.stop_gradient(penalty), 1e-12) / budget)
    return jnp.clip(ratio, -1.0, 1.0)


def controlled(multiplier: Scalar, error: Scalar, rate: float) -> tuple[Scalar, Scalar]:
    """(lambda of this update, lambda to keep), by a proportional-integral controller of log lambda.

    The kept one changes by at most a factor of e^rate per update, so it finds its scale from any start, whatever the
    units of value and penalty. The proportional part, a factor of e^error, answers at once. It damps the oscillation
    that the integral alone would cause, because the penalty follows lambda only after many updates.
    """
    kept = jnp.clip(multiplier * jnp.exp(rate * error), SMALLEST, LARGEST)
    return multiplier * jnp.exp(error), kept


def limited(costs: Float[Array, " b"], limit: Scalar | float) -> Float[Array, " b"]:
    """D^2 / limit where D exceeds the limit, else D: a state that spends too much cannot be paid for by others."""
    return jnp.where(costs > limit, costs**2 / limit, costs)
