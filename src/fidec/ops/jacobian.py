"""Derivatives of a displacement field with respect to the action: Jacobian, divergence, log-determinant.

A field is a row-wise map (b, d) -> (b, d): row i of the result depends on row i of the argument alone. So one forward
derivative of the whole batch gives one column of every row's Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.types import PRNGKey

Field = Callable[[Array], Array]
Points = Float[Array, "b d"]
KEEP = 0.5  # the probability that a series has one more term, after its first terms


class Volume(NamedTuple):
    """The change of volume by a + delta(a) at each point."""

    displacement: Points
    divergence: Float[Array, " b"]
    log_determinant: Float[Array, " b"]


def value_and_jacobian(field: Field, x: Points) -> tuple[Points, Float[Array, "b d d"]]:
    """field(x), and the exact J[b, i, j] = d field_i / d x_j, by d forward derivatives."""
    basis = jnp.eye(x.shape[-1], dtype=x.dtype)
    column = lambda direction: jax.jvp(field, (x,), (jnp.broadcast_to(direction, x.shape),))  # noqa: E731
    # The value does not depend on the direction: out_axes None keeps one copy.
    return jax.vmap(column, out_axes=(None, -1))(basis)


def log_determinant(jacobian: Float[Array, "b d d"]) -> Float[Array, " b"]:
    """log|det(I + J)|."""
    return jnp.linalg.slogdet(jnp.eye(jacobian.shape[-1], dtype=jacobian.dtype) + jacobian)[1]


def probe(key: PRNGKey, x: Points) -> Points:
    """Random signs, the probes with the smallest variance for traces."""
    return jax.random.rademacher(key, x.shape, x.dtype)


def divergence(field: Field, x: Points, key: PRNGKey) -> Float[Array, " b"]:
    """One unbiased estimate of tr J with Hutchinson's probe, v^T J v."""
    v = probe(key, x)
    return jnp.sum(v * jax.jvp(field, (x,), (v,))[1], axis=-1)


def series_volume(field: Field, x: Points, key: PRNGKey, terms: int = 4) -> Volume:
    """Estimates of tr J and of log det(I + J) = sum_k (-1)^(k+1) tr(J^k) / k, with one probe.

    The series is cut at a random length. Its later terms are divided by the probability of reaching them (Russian
    roulette), so that the mean is the whole sum. The first `terms` terms are always computed. The gradient is that of
    w^T J v with w = (I + J)^-T v from the same series. Its memory does not grow with the length, and it is also
    unbiased (residual flows, Chen et al. 2019). All this holds if the spectral norm of J is at most KEEP.

    For any other J the results are finite, but biased. Rows whose weighted length would grow are shortened. Where
    one of the first powers of J makes a row longer, the series may diverge, and tr J - |J|^2 / 2 replaces it, with
    the Frobenius norm. For a symmetric J it agrees to second order. It falls as J grows, so a map that maximises it
    returns to where the series converges.
    """
    probe_key, length_key = jax.random.split(key)
    v = probe(probe_key, x)
    value, vjp = jax.vjp(field, x)
    vjp = jax.lax.stop_gradient(vjp)  # a loop of random length has no reverse derivative, and needs none
    extra = jax.random.geometric(length_key, 1.0 - KEEP) - 1  # terms beyond the first `terms`

    def add(carry):
        k, row, total, inverse, sign, converges = carry  # row = v^T J^(k-1)
        weight = KEEP ** -jnp.maximum(k - terms, 0).astype(x.dtype)  # 1 / P(length >= k)
        inverse = inverse + sign * weight * row  # sum over k of (-1)^(k-1) v^T J^(k-1)
        before, row = jnp.linalg.norm(row, axis=-1), vjp(row)[0]
        length = jnp.linalg.norm(row, axis=-1)
        converges &= (k > terms) | (length <= before)
        shorten = jnp.where(k > terms, jnp.minimum(1.0, KEEP * before / jnp.maximum(length, 1e-30)), 1.0)
        row = row * shorten[:, None]
        total = total + sign * weight / k * jnp.sum(row * v, axis=-1)
        return k + 1, row, total, inverse, -sign, converges

    zero = jnp.zeros(x.shape[0], x.dtype)
    start = (jnp.asarray(1, jnp.int32), v, zero, jnp.zeros_like(x), jnp.ones((), x.dtype), zero == 0.0)
    result = jax.lax.while_loop(lambda carry: carry[0] <= terms + extra, add, start)
    _, _, total, inverse, _, converges = jax.lax.stop_gradient(result)
    inverse = jnp.where(converges[:, None], inverse, 0.0)  # it may be infinite there
    image = jax.jvp(field, (x,), (v,))[1]
    along = jnp.sum(v * image, axis=-1)
    surrogate = jnp.sum(inverse * image, axis=-1)  # only its gradient is used
    series = total + surrogate - jax.lax.stop_gradient(surrogate)
    return Volume(value, along, jnp.where(converges, series, along - 0.5 * jnp.sum(image**2, axis=-1)))


def volume(field: Field, x: Points, key: PRNGKey, *, exact_up_to: int = 8, probes: int = 1) -> Volume:
    """Exact up to `exact_up_to` dimensions; above, the mean of `probes` estimates by the series."""
    if x.shape[-1] <= exact_up_to:
        value, jacobian = value_and_jacobian(field, x)
        return Volume(value, jnp.trace(jacobian, axis1=-2, axis2=-1), log_determinant(jacobian))
    estimates = jax.vmap(lambda k: series_volume(field, x, k))(jax.random.split(key, probes))
    return jax.tree.map(lambda leaf: leaf.mean(axis=0), estimates)
