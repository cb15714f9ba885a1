"""The multiplier lambda of a constraint E[D] <= budget: three ways to store it, to use it and to move it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
Kind = Literal["log", "projected", "controlled"]
STEP_SIZE = 1.0  # eta of the projected step; the paper does not give it
RATE = 0.01  # the largest relative change of lambda in an update by the controller
SMALLEST, LARGEST = 1e-6, 1e6  # of the controller: neither zero nor infinity could be left again


class Multiplier(NamedTuple):
    """A kind of multiplier. `penalty` is E[D] of the batch, `budget` may change with the step."""

    store: Callable[[Scalar], Scalar]
    """lambda at the start, as it is stored."""
    weight: Callable[[Scalar, Scalar, Scalar | float], Scalar]
    """(stored, penalty, budget) to lambda in the residual map's loss."""
    move: Callable[[Scalar, Scalar, Scalar | float], Scalar]
    """(stored, penalty, budget) to the next stored value, or to its gradient if it `descends`."""
    descends: bool = False
    """Whether the optimiser moves the stored value, as a module of its own."""


def log_gradient(log_multiplier: Scalar, penalty: Scalar, budget: Scalar | float) -> Scalar:
    """The gradient by log lambda of the dual loss -log lambda (E[D] - budget): the authors' code.

    A descent step raises lambda while the constraint is violated. Lambda stays positive. With Adam its relative
    change in a step is at most about the learning rate.
    """
    return -(penalty - budget)


def projected_step(multiplier: Scalar, penalty: Scalar, budget: Scalar | float) -> Scalar:
    """lambda <- ReLU(lambda + eta (E[D] - budget)): the paper's dual ascent. It can reach zero."""
    return jax.nn.relu(multiplier + STEP_SIZE * (penalty - budget))


def log_ratio(penalty: Scalar, budget: Scalar | float) -> Scalar:
    """log(E[D] / budget), without a gradient, limited to [-1, 1]: the error that the controller acts on."""
    ratio = jnp.log(jnp.maximum(jax.lax.stop_gradient(penalty), 1e-12) / budget)
    return jnp.clip(ratio, -1.0, 1.0)


def controlled_weight(multiplier: Scalar, penalty: Scalar, budget: Scalar | float) -> Scalar:
    """The proportional part of a controller of log lambda, a factor of e^error, answers at once.

    It damps the oscillation that the integral alone would cause, because the penalty follows lambda only after many
    updates.
    """
    return multiplier * jnp.exp(log_ratio(penalty, budget))


def controlled_step(multiplier: Scalar, penalty: Scalar, budget: Scalar | float) -> Scalar:
    """The integral part changes lambda by at most a factor of e^rate, so it finds its scale from any start."""
    return jnp.clip(multiplier * jnp.exp(RATE * log_ratio(penalty, budget)), SMALLEST, LARGEST)


MULTIPLIERS: dict[Kind, Multiplier] = {
    "log": Multiplier(jnp.log, lambda stored, penalty, budget: jnp.exp(stored), log_gradient, descends=True),
    "projected": Multiplier(lambda start: start, lambda stored, penalty, budget: stored, projected_step),
    "controlled": Multiplier(lambda start: start, controlled_weight, controlled_step),
}
