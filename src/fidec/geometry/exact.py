"""Gaussian mixtures with exact density, score and velocity at every time of the linear path.

With x_t = (1 - t) z + t a and a ~ sum_k w_k N(m_k, S_k), the point x_t has the density

    p_t(x) = sum_k w_k N(x; t m_k, C_k(t)),    C_k(t) = t^2 S_k + (1 - t)^2 I,

and within a component E[a | x] = m_k + t S_k C_k^-1 (x - t m_k), E[z | x] = (1 - t) C_k^-1 (x - t m_k).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Points = Float[Array, "*batch d"]
Time = Float[Array, "*batch #d"] | float


@dataclass(frozen=True, eq=False)  # compared by identity, so that jit can take one as a static argument
class Mixture:
    """sum_k w_k N(m_k, S_k)."""

    means: np.ndarray  # (k, d)
    covariances: np.ndarray  # (k, d, d)
    weights: np.ndarray  # (k,)

    @partial(jax.jit, static_argnums=0)
    def log_density(self, x: Points, t: Time = 1.0) -> Float[Array, "*batch"]:
        """log p_t(x); at t = 1 the data's own density."""
        return jax.nn.logsumexp(self._log_parts(*self._coordinates(x, t)), axis=-1)

    @partial(jax.jit, static_argnums=0)
    def score(self, x: Points, t: Time = 1.0) -> Points:
        """grad log p_t(x) = -sum_k r_k C_k^-1 (x - t m_k), without the cancellation of (t v - x) / (1 - t)."""
        coordinates, variance = self._coordinates(x, t)
        return -self._mean(self._posterior(coordinates, variance), coordinates / variance)

    @partial(jax.jit, static_argnums=0)
    def velocity(self, x: Points, t: Time) -> Points:
        """v(x, t) = E[a - z | x_t = x], for every t in [0, 1]."""
        x = jnp.asarray(x)
        t = self._column(x, t)
        coordinates, variance = self._coordinates(x, t)
        values, _ = self._axes(x.dtype)
        within = (t[..., None] * values - (1.0 - t[..., None])) / variance * coordinates
        posterior = self._posterior(coordinates, variance)
        return posterior @ jnp.asarray(self.means, x.dtype) + self._mean(posterior, within)

    @partial(jax.jit, static_argnums=(0, 2))
    def sample(self, key: Array, n: int) -> Float[Array, "n d"]:
        """n independent draws."""
        which, noise = jax.random.split(key)
        z = jax.random.normal(noise, (n, self.means.shape[-1]))  # sets the precision of the result
        k = jax.random.categorical(which, jnp.asarray(np.log(self.weights), z.dtype), shape=(n,))
        spread = jnp.asarray(np.linalg.cholesky(self.covariances), z.dtype)
        return jnp.asarray(self.means, z.dtype)[k] + jnp.einsum("nij,nj->ni", spread[k], z)

    def _axes(self, dtype) -> tuple[Array, Array]:
        """S_k = U diag(values) U^T: values (k, d) and U (k, d, d)."""
        values, vectors = np.linalg.eigh(self.covariances)
        return jnp.asarray(values, dtype), jnp.asarray(vectors, dtype)

    def _column(self, x: Array, t: Time) -> Array:
        return jnp.zeros_like(x[..., :1]) + t

    def _coordinates(self, x: Points, t: Time) -> tuple[Array, Array]:
        """U_k^T (x - t m_k) and the eigenvalues of C_k(t), both (..., k, d)."""
        x = jnp.asarray(x)
        t = self._column(x, t)[..., None]
        values, vectors = self._axes(x.dtype)
        centred = x[..., None, :] - t * jnp.asarray(self.means, x.dtype)
        return jnp.einsum("kji,...kj->...ki", vectors, centred), t**2 * values + (1.0 - t) ** 2

    def _log_parts(self, coordinates: Array, variance: Array) -> Array:
        """log w_k + log N(x; t m_k, C_k), (..., k)."""
        form = jnp.sum(coordinates**2 / variance + jnp.log(2.0 * jnp.pi * variance), axis=-1)
        return jnp.asarray(np.log(self.weights), coordinates.dtype) - 0.5 * form

    def _posterior(self, coordinates: Array, variance: Array) -> Array:
        """r_k(x), the probability that x came from component k."""
        return jax.nn.softmax(self._log_parts(coordinates, variance), axis=-1)

    def _mean(self, posterior: Array, of: Array) -> Array:
        """sum_k r_k U_k of_k."""
        return jnp.einsum("...k,kij,...kj->...i", posterior, self._axes(of.dtype)[1], of)


def axis_aligned(means, sds, weights=None) -> Mixture:
    """A mixture of components with independent coordinates; equal weights unless given."""
    means, sds = np.atleast_2d(np.asarray(means, np.float64)), np.atleast_2d(np.asarray(sds, np.float64))
    weights = np.full(len(means), 1.0 / len(means)) if weights is None else np.asarray(weights, np.float64)
    return Mixture(means, sds[:, :, None] ** 2 * np.eye(means.shape[-1]), weights / weights.sum())


def grid(mixture: Mixture, spacing: float, sds: float = 9.0) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Points and weights p(a) spacing^d of the trapezoidal rule, up to `sds` standard deviations from the means.

    The integrands are smooth and vanish at the edges, so the error falls like exp(-c / spacing).
    """
    reach = sds * np.sqrt(np.diagonal(mixture.covariances, axis1=-2, axis2=-1))
    low, high = (mixture.means - reach).min(axis=0), (mixture.means + reach).max(axis=0)
    sides = [np.arange(a, b + spacing, spacing) for a, b in zip(low, high, strict=True)]
    points = jnp.asarray(np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=-1))
    weights = jnp.exp(mixture.log_density(points)) * spacing ** points.shape[-1]
    kept = np.asarray(weights) > 1e-22  # the corners of the grid add nothing
    return points[kept], weights[kept]


def gaussian_kl(
    mean: np.ndarray, covariance: np.ndarray, base_mean: np.ndarray, base_covariance: np.ndarray
) -> float:
    """KL(N(m, S) || N(m_0, S_0)) = 1/2 [tr(S_0^-1 S) - d + (m - m_0)^T S_0^-1 (m - m_0) - log det(S_0^-1 S)]."""
    ratio = np.linalg.solve(base_covariance, covariance)
    difference = mean - base_mean
    square = difference @ np.linalg.solve(base_covariance, difference)
    return float(0.5 * (np.trace(ratio) - len(mean) + square - np.linalg.slogdet(ratio)[1]))
