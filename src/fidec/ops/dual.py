"""The multiplier of a constraint E[penalty] <= budget: `violation` is E[penalty] - budget."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

Scalar = Float[Array, ""]


def projected_step(multiplier: Scalar, violation: Scalar, step_size: float) -> Scalar:
    """lambda <- ReLU(lambda + eta (E[penalty] - budget)): the paper's dual ascent. Can reach zero."""
    return jax.nn.relu(multiplier + step_size * violation)


def log_gradient(violation: Scalar) -> Scalar:
    """The gradient by log lambda of the dual loss -log lambda * (E[penalty] - budget).

    A descent step on it raises lambda while the constraint is violated. Lambda stays positive, and under Adam
    changes by at most about the learning rate, in proportion, each step.
    """
    return -violation
