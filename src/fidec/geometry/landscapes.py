"""Six landscapes in the plane, each a Gaussian mixture with a value function.

Density, score and samples of a mixture p(a) = sum_k w_k N(a; m_k, S_k) are exact. Curved supports are chains of many
overlapping components. Actions lie in about [-1, 1]^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fidec.geometry.exact import Mixture
from fidec.register import unknown

OFF_SUPPORT = 4.0
"""A point further than this many standard deviations from every component is off the support."""

Value = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True, eq=False)  # compared by identity, so that jit can take one as a static argument
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


def _arc(radius: float, first: float, last: float, centre: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    angle = np.radians(np.linspace(first, last, 2001))
    return np.asarray(centre) + radius * np.stack([np.cos(angle), np.sin(angle)], -1)


def _wave() -> np.ndarray:
    x = np.linspace(-0.8, 0.8, 2001)
    return np.stack([x, 0.35 * np.sin(np.pi * x / 0.8)], -1)


def _bimodal(a: jax.Array) -> jax.Array:
    """sigmoid(y / 0.2), along the long axes, and 0.2 bump((0, 0.3), 0.3), in the gap between the modes."""
    return jax.nn.sigmoid(a[..., 1] / 0.2) + 0.2 * _bump(a, (0.0, 0.3), 0.3)


def _thin(a: jax.Array) -> jax.Array:
    """bump((0.25, 0.4), 0.4): the peak is 0.23 inside the ring, the best point on the ring has 0.85 of it."""
    return _bump(a, (0.25, 0.4), 0.4)


def _saddle(a: jax.Array) -> jax.Array:
    """0.9 bump((-0.1, 0.6), 0.4) + 0.7 bump((0.45, -0.4), 0.45): a saddle between the modes, off their middle."""
    return 0.9 * _bump(a, (-0.1, 0.6), 0.4) + 0.7 * _bump(a, (0.45, -0.4), 0.45)


def _hotspot(a: jax.Array) -> jax.Array:
    """0.5 sigmoid(x / 0.3), along the support, and bump((0.4, -0.25), 0.25), the hotspot off the support."""
    return 0.5 * jax.nn.sigmoid(a[..., 0] / 0.3) + _bump(a, (0.4, -0.25), 0.25)


def _lobes(a: jax.Array) -> jax.Array:
    """0.9 - 0.7 bump(0, 0.4), the basin, - 0.5 ridge((0.35, -0.4), 50 deg, 0.5 x 0.15), the valley off centre."""
    return 0.9 - 0.7 * _bump(a, (0.0, 0.0), 0.4) - 0.5 * _ridge(a, (0.35, -0.4), 50.0, 0.5, 0.15)


def _crescent(a: jax.Array) -> jax.Array:
    """Three peaks and a slope: 0.8 bump((0.3, 0.7), 0.27) and 0.6 bump((0.25, -0.65), 0.25) beside the horns,
    0.7 bump((0, 0), 0.25) in the hollow, 0.2 sigmoid(x / 0.3)."""
    horns = 0.8 * _bump(a, (0.3, 0.7), 0.27) + 0.6 * _bump(a, (0.25, -0.65), 0.25)
    return horns + 0.7 * _bump(a, (0.0, 0.0), 0.25) + 0.2 * jax.nn.sigmoid(a[..., 0] / 0.3)


# The lobes are at 45 degrees to the radii of their circle: the radius is neither their long nor their short axis.
_PINWHEEL = [
    (0.6 * np.cos(np.radians(t)), 0.6 * np.sin(np.radians(t)), t + 45.0, 0.11, 0.05, weight)
    for t, weight in zip(90.0 + 72.0 * np.arange(5), (0.2, 0.25, 0.15, 0.15, 0.25), strict=True)
]

LANDSCAPES: dict[str, Landscape] = {
    landscape.name: landscape
    for landscape in (
        Landscape(
            name="bimodal",
            title="Two modes",
            **_blobs([(-0.45, 0.0, 90.0, 0.20, 0.08, 0.5), (0.45, 0.0, 90.0, 0.20, 0.08, 0.5)]),
            mode_names=("left", "right"),
            value=_bimodal,
        ),
        Landscape(
            name="thin",
            title="Thin manifold",
            **_chain(_arc(0.7, -20.0, 200.0), lambda s: np.full_like(s, 0.03), k=44, parts=3),
            mode_names=("right", "top", "left"),
            value=_thin,
        ),
        Landscape(
            name="saddle",
            title="Unequal modes, off-centre saddle",
            **_blobs([(-0.45, -0.15, 105.0, 0.20, 0.09, 0.65), (0.45, 0.3, -40.0, 0.15, 0.06, 0.35)]),
            mode_names=("large", "small"),
            value=_saddle,
        ),
        Landscape(
            name="hotspot",
            title="Curved support, detached hotspot",
            **_chain(_wave(), lambda s: np.full_like(s, 0.045), k=32, parts=3),
            mode_names=("left", "middle", "right"),
            value=_hotspot,
        ),
        Landscape(
            name="lobes",
            title="Lobes around a basin, eccentric valley",
            **_blobs(_PINWHEEL),
            mode_names=("top", "upper left", "lower left", "lower right", "upper right"),
            value=_lobes,
        ),
        Landscape(
            name="crescent",
            title="Crescent, competing peaks",
            # The sd falls from 0.09 in the middle to 0.03 at the horns.
            **_chain(_arc(0.62, 70.0, 290.0), lambda s: 0.03 + 0.06 * np.sin(np.pi * s) ** 2, k=32, parts=3),
            mode_names=("upper horn", "middle", "lower horn"),
            value=_crescent,
        ),
    )
}


def get(name: str) -> Landscape:
    """The landscape of that name."""
    if name not in LANDSCAPES:
        raise unknown("landscape", name, LANDSCAPES)
    return LANDSCAPES[name]
