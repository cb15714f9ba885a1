"""Value learning: targets, ensembles, and the scale of Q in a policy's objective."""

from __future__ import annotations

import zlib
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.types import PRNGKey

_PAIR = zlib.crc32(b"pair")  # a key's other draws are not touched
Aggregate = Literal["mean", "min", "random_pair"]
QScale = Literal["magnitude", "spread", "none"]


def aggregate(
    values: Float[Array, "ensemble *batch"],
    how: Aggregate,
    pessimism: float = 0.0,
    key: PRNGKey | None = None,
) -> Float[Array, "*batch"]:
    """One value from an ensemble's.

    `mean` subtracts `pessimism` standard deviations of the ensemble, `min` is clipped double Q-learning, and
    `random_pair` the lower of two heads that are drawn for the whole batch, as in REDQ.
    """
    if how == "min":
        return values.min(axis=0)
    if how == "random_pair":
        assert key is not None
        pair = jax.random.choice(jax.random.fold_in(key, _PAIR), len(values), (2,), replace=False)
        return values[pair].min(axis=0)
    mean = values.mean(axis=0)
    return mean - pessimism * values.std(axis=0) if pessimism else mean


def td_target(
    rewards: Float[Array, " b"], masks: Float[Array, " b"], next_values: Float[Array, "*heads b"], discount: float
) -> Float[Array, "*heads b"]:
    """r + gamma m V(s'), without a gradient. The mask stops bootstrapping, not the end of a trajectory."""
    return jax.lax.stop_gradient(rewards + discount * masks * next_values)


def weigh(x: Array, weights: Array | None) -> Array:
    """w x; x if there are no weights. A loss with weights 0 and 1 leaves out rows, or components of actions."""
    return x if weights is None else weights * x


def td_loss(
    values: Float[Array, "ensemble b"], target: Float[Array, "... b"], weights: Float[Array, "... b"] | None = None
) -> Float[Array, ""]:
    """The mean over heads and batch of w (Q - target)^2. Each head may have targets and weights of its own."""
    return jnp.mean(weigh((values - target) ** 2, weights))


def value_scale(values: Float[Array, " b"], by: QScale = "magnitude") -> Float[Array, ""]:
    """1 / mean|Q|, 1 / std Q or 1, without a gradient. So a policy's objective does not depend on the reward's scale.

    The standard deviation also does not change if a constant is added to all rewards.
    """
    if by == "none":
        return jnp.ones(())
    size = jnp.abs(values).mean() if by == "magnitude" else values.std()
    return jax.lax.stop_gradient(1.0 / jnp.maximum(size, 1e-6))


def expectile_loss(
    difference: Float[Array, "*batch"], expectile: float, weights: Float[Array, " b"] | None = None
) -> Float[Array, ""]:
    """The mean of w |tau - 1(u < 0)| u^2. Its minimiser is the tau-expectile; for 0.5 that is the mean."""
    asymmetry = jnp.where(difference >= 0, expectile, 1.0 - expectile)
    return jnp.mean(weigh(asymmetry * difference**2, weights))


def conservative_gap(
    values: Float[Array, "ensemble n b"], log_densities: Float[Array, "n b"], data_values: Float[Array, "ensemble b"]
) -> Float[Array, "ensemble b"]:
    """log sum_i exp(Q(s, a_i) - log p(a_i)) - Q(s, a), for actions a_i that were drawn with density p.

    Up to sampling, the first term is log n + log of the integral of exp Q: CQL's soft maximum of Q over the box. As
    published, log n is not subtracted. It has no gradient, but a threshold on the gap must include it.
    """
    return jax.nn.logsumexp(values - log_densities, axis=1) - data_values


def calibrate(
    values: Float[Array, "ensemble n b"], returns: Float[Array, " b"] | float
) -> Float[Array, "ensemble n b"]:
    """max(Q, G): where Q is below the data's return G, the conservative term does not lower it further."""
    return jnp.maximum(values, returns)
