"""Gaussian mixtures with exact density, score and velocity at every time, and six landscapes in the plane.

On the linear path x_t = (1 - t) z + t a, with a ~ sum_k w_k N(m_k, S_k), the point x_t has the density

    p_t(x) = sum_k w_k N(x; t m_k, C_k(t)),    C_k(t) = t^2 S_k + (1 - t)^2 I,

and within a component E[a | x] = m_k + t S_k C_k^-1 (x - t m_k), E[z | x] = (1 - t) C_k^-1 (x - t m_k).

A landscape is a mixture with a value function. Curved supports are chains of many overlapping components. Actions lie
in about [-1, 1]^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fidec.register import unknown

OFF_SUPPORT = 4.0
"""A point further than this many standard deviations from every component is off the support."""

Points = Float[Array, "*batch d"]
Time = Float[Array, "*batch #d"] | float
Value = Callable[[jax.Array], jax.Array]


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


def grid(mixture: Mixture, spacing: float) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Points and weights p(a) spacing^d of the trapezoidal rule, up to nine standard deviations from the means.

    The integrands are smooth and vanish at the edges, so the error falls like exp(-c / spacing).
    """
    reach = 9.0 * np.sqrt(np.diagonal(mixture.covariances, axis1=-2, axis2=-1))
    low, high = (mixture.means - reach).min(axis=0), (mixture.means + reach).max(axis=0)
    sides = [np.arange(a, b + spacing, spacing) for a, b in zip(low, high, strict=True)]
    points = jnp.asarray(np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=-1))
    weights = jnp.exp(mixture.log_density(points)) * spacing ** points.shape[-1]
    kept = np.asarray(weights) > 1e-22  # the corners of the grid add nothing
    return points[kept], weights[kept]


# --- the landscapes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Landscape(Mixture):
    """The density of the data and the value of every action."""

    name: str
    title: str
    modes: np.ndarray  # (k,) the mode each component belongs to
    mode_names: tuple[str, ...]
    value: Value  # (..., 2) -> (...)

    def distance(self, a: jax.Array) -> jax.Array:
        """The smallest Mahalanobis distance to a component, min_k |S_k^-1/2 (a - m_k)|."""
        coordinates, variance = self._coordinates(a, 1.0)
        return jnp.sqrt(jnp.min(jnp.sum(coordinates**2 / variance, axis=-1), axis=-1))

    def off_support(self, a: jax.Array) -> jax.Array:
        """Whether the distance exceeds OFF_SUPPORT, or is NaN."""
        return ~(self.distance(a) <= OFF_SUPPORT)

    def mode_of(self, a: jax.Array) -> jax.Array:
        """The mode of the component with the largest posterior."""
        return jnp.asarray(self.modes)[jnp.argmax(self._log_parts(*self._coordinates(a, 1.0)), axis=-1)]


def _bump(a: jax.Array, centre: tuple[float, float], width: float) -> jax.Array:
    """exp(-|a - c|^2 / (2 w^2))."""
    x, y = a[..., 0] - centre[0], a[..., 1] - centre[1]
    return jnp.exp(-0.5 * (x**2 + y**2) / width**2)


def _ridge(a: jax.Array, centre: tuple[float, float], degrees: float, along: float, across: float) -> jax.Array:
    """A bump stretched along a direction: exp(-(u / along)^2 / 2 - (v / across)^2 / 2)."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    x, y = a[..., 0] - centre[0], a[..., 1] - centre[1]
    return jnp.exp(-0.5 * ((c * x + s * y) / along) ** 2 - 0.5 * ((c * y - s * x) / across) ** 2)


def _covariance(degrees: np.ndarray, along: np.ndarray, across: np.ndarray) -> np.ndarray:
    """R diag(along^2, across^2) R^T for every direction, (k, 2, 2)."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    rotation = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)
    return rotation @ (np.stack([along, across], -1)[..., None] ** 2 * np.swapaxes(rotation, -1, -2))


def _blobs(rows: list[tuple[float, float, float, float, float, float]]) -> dict[str, np.ndarray]:
    """Separate Gaussians from rows (x, y, degrees of the long axis, sd along, sd across, weight)."""
    x, y, degrees, along, across, weight = np.asarray(rows, np.float64).T
    return {
        "means": np.stack([x, y], -1),
        "covariances": _covariance(degrees, along, across),
        "weights": weight / weight.sum(),
        "modes": np.arange(len(rows)),
    }


def _chain(
    curve: np.ndarray, across: Callable[[np.ndarray], np.ndarray], k: int, parts: int
) -> dict[str, np.ndarray]:
    """k components along a finely sampled curve (n, 2), each as long as their spacing, so that they overlap.

    across(s) is the thickness at the arc length s in [0, 1]; the weight of a component is proportional to it.
    A connected support has no modes. It is cut into equal parts, to measure where along it the mass is.
    """
    steps = np.linalg.norm(np.diff(curve, axis=0), axis=-1)
    length = np.concatenate([[0.0], np.cumsum(steps)])
    s = (np.arange(k) + 0.5) / k
    at = s * length[-1]
    means = np.stack([np.interp(at, length, curve[:, i]) for i in range(2)], -1)
    tangent = np.stack([np.interp(at, length, np.gradient(curve[:, i], length)) for i in range(2)], -1)
    degrees = np.degrees(np.arctan2(tangent[:, 1], tangent[:, 0]))
    thickness = across(s)
    return {
        "means": means,
        "covariances": _covariance(degrees, np.full(k, length[-1] / k), thickness),
        "weights": thickness / thickness.sum(),
        "modes": np.minimum((s * parts).astype(int), parts - 1),
    }


def _arc(radius: float, first: float, last: float) -> np.ndarray:
    angle = np.radians(np.linspace(first, last, 2001))
    return radius * np.stack([np.cos(angle), np.sin(angle)], -1)


# The lobes are at 45 degrees to the radii of their circle: the radius is neither their long nor their short axis.
_PINWHEEL = [
    (0.6 * np.cos(np.radians(t)), 0.6 * np.sin(np.radians(t)), t + 45.0, 0.11, 0.05, weight)
    for t, weight in zip(90.0 + 72.0 * np.arange(5), (0.2, 0.25, 0.15, 0.15, 0.25), strict=True)
]

_X = np.linspace(-0.8, 0.8, 2001)
_WAVE = np.stack([_X, 0.35 * np.sin(np.pi * _X / 0.8)], -1)

LANDSCAPES: dict[str, Landscape] = {
    landscape.name: landscape
    for landscape in (
        Landscape(
            name="bimodal",
            title="Two modes",
            **_blobs([(-0.45, 0.0, 90.0, 0.20, 0.08, 0.5), (0.45, 0.0, 90.0, 0.20, 0.08, 0.5)]),
            mode_names=("left", "right"),
            # Along the long axes, and in the gap between the modes.
            value=lambda a: jax.nn.sigmoid(a[..., 1] / 0.2) + 0.2 * _bump(a, (0.0, 0.3), 0.3),
        ),
        Landscape(
            name="thin",
            title="Thin manifold",
            **_chain(_arc(0.7, -20.0, 200.0), lambda s: np.full_like(s, 0.03), k=44, parts=3),
            mode_names=("right", "top", "left"),
            # The peak is 0.23 inside the ring. The best point on the ring has 0.85 of it.
            value=lambda a: _bump(a, (0.25, 0.4), 0.4),
        ),
        Landscape(
            name="saddle",
            title="Unequal modes, off-centre saddle",
            **_blobs([(-0.45, -0.15, 105.0, 0.20, 0.09, 0.65), (0.45, 0.3, -40.0, 0.15, 0.06, 0.35)]),
            mode_names=("large", "small"),
            # A saddle between the modes, off their middle.
            value=lambda a: 0.9 * _bump(a, (-0.1, 0.6), 0.4) + 0.7 * _bump(a, (0.45, -0.4), 0.45),
        ),
        Landscape(
            name="hotspot",
            title="Curved support, detached hotspot",
            **_chain(_WAVE, lambda s: np.full_like(s, 0.045), k=32, parts=3),
            mode_names=("left", "middle", "right"),
            # Along the support, and the hotspot off the support.
            value=lambda a: 0.5 * jax.nn.sigmoid(a[..., 0] / 0.3) + _bump(a, (0.4, -0.25), 0.25),
        ),
        Landscape(
            name="lobes",
            title="Lobes around a basin, eccentric valley",
            **_blobs(_PINWHEEL),
            mode_names=("top", "upper left", "lower left", "lower right", "upper right"),
            # The basin, and the valley off centre.
            value=lambda a: 0.9 - 0.7 * _bump(a, (0.0, 0.0), 0.4) - 0.5 * _ridge(a, (0.35, -0.4), 50.0, 0.5, 0.15),
        ),
        Landscape(
            name="crescent",
            title="Crescent, competing peaks",
            # The sd falls from 0.09 in the middle to 0.03 at the horns.
            **_chain(_arc(0.62, 70.0, 290.0), lambda s: 0.03 + 0.06 * np.sin(np.pi * s) ** 2, k=32, parts=3),
            mode_names=("upper horn", "middle", "lower horn"),
            # Three peaks, two beside the horns and one in the hollow, and a slope.
            value=lambda a: (
                (0.8 * _bump(a, (0.3, 0.7), 0.27) + 0.6 * _bump(a, (0.25, -0.65), 0.25))
                + 0.7 * _bump(a, (0.0, 0.0), 0.25)
                + 0.2 * jax.nn.sigmoid(a[..., 0] / 0.3)
            ),
        ),
    )
}


def get(name: str) -> Landscape:
    """The landscape of that name."""
    if name not in LANDSCAPES:
        raise unknown("landscape", name, LANDSCAPES)
    return LANDSCAPES[name]
