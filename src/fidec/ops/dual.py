"""The multiplier of a constraint E[penalty] <= budget: `violation` is E[penalty] - budget."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


def projected_step(multiplier: Scalar, violation: Scalar, step_size: float) -> Scalar:
    """lambda <- ReLU(lambda + eta (E[penalty] - budget)): the paper's dual ascent. It can reach zero."""
    return jax.nn.relu(multiplier + step_size * violation)


def log_gradient(violation: Scalar) -> Scalar:
    """The gradient with respect to log lambda of the dual loss -log lambda * (E[penalty] - budget).

    A descent step raises lambda while the constraint is violated. Lambda stays positive. With Adam its relative
    change per step is at most about the learning rate.
    """
    return -violation
