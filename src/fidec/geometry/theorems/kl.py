"""(a) The KL of a displacement: KL of the push-forward against its approximations.

    KL(h) = KL((id + h delta)_# p || p) = E_p[log p(a) - log p(a + h delta) - log|det(I + h J)|]

Expanding in h and using Stein's identity E[s . delta + div delta] = 0,

    KL(h) = h^2/2 E[(s . delta + div delta)^2] + O(h^3).

The paper's Fisher form h^2/2 E[(s . delta)^2] agrees with that for rigid shifts only. Gauss-Legendre quadrature of
the path integral with n nodes leaves a remainder of order h^(2n + 1). All means are quadratures in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from fidec.geometry.landscapes import Mixture, axis_aligned, grid
from fidec.geometry.theorems.result import Result, slope
from fidec.ops import fisher, jacobian
from fidec.plots import BLUE, GREEN, INK, ORANGE, PURPLE, RED

Field = Callable[[jax.Array], jax.Array]
METHODS = ("fisher", "stein", "path, 1 node", "path, 2 nodes", "path, 3 nodes")
SIZES = 0.3 * 0.5 ** (np.arange(17) / 2)
FLOOR = 1e-15  # nats; smaller errors are rounding

GAUSSIAN = axis_aligned([[0.0]], [[1.0]])
# Not symmetric: in a symmetric density the odd orders would cancel.
MIXTURE = axis_aligned(
    [[-0.6, -0.2], [0.5, 0.4], [0.2, -0.7]], [[0.35, 0.25], [0.3, 0.3], [0.25, 0.35]], [0.5, 0.3, 0.2]
)


def _shift(a: jax.Array) -> jax.Array:
    return jnp.zeros_like(a) + jnp.asarray([0.6, -0.8])[: a.shape[-1]]


def _stretch(a: jax.Array) -> jax.Array:
    return a


def _bend(a: jax.Array) -> jax.Array:
    """Smooth; neither rigid nor linear nor divergence-free."""
    return jnp.sin(a + jnp.roll(a, 1, axis=-1)) + jnp.asarray([0.5, -0.5])[: a.shape[-1]]


MAPS: dict[str, Field] = {"shift": _shift, "stretch": _stretch, "bend": _bend}


def costs(density: Mixture, field: Field, sizes: np.ndarray, spacing: float) -> dict[str, np.ndarray]:
    """KL and every approximation of it for each size h of the map a + h delta(a). It needs 64-bit JAX."""
    points, weights = grid(density, spacing)
    key = jax.random.key(0)
    score = lambda a, _: density.score(a)[None]  # noqa: E731

    @jax.jit
    def at(h):
        move = lambda a: h * field(a)  # noqa: E731
        displacement, matrix = jacobian.value_and_jacobian(move, points)
        change = density.log_density(points) - density.log_density(points + displacement)
        values = {
            "kl": change - jacobian.log_determinant(matrix),
            "fisher": 0.5 * jnp.sum(density.score(points) * displacement, axis=-1) ** 2,
            "stein": fisher.stein(move, points, score, key),
            "centred": fisher.path(move, points, score, key, nodes=3, centred=True),
        }
        for nodes, name in enumerate(METHODS[2:], 1):
            values[name] = fisher.path(move, points, score, key, nodes=nodes)
        return {name: weights @ value for name, value in values.items()}

    each = [at(h) for h in sizes]
    return {name: np.array([float(values[name]) for values in each]) for name in each[0]}


def order(sizes: np.ndarray, errors: np.ndarray) -> float | None:
    """The exponent of the absolute error as h goes to 0, from the smallest three sizes above the floor."""
    above = np.flatnonzero(errors > FLOOR)
    return slope(sizes[above][-3:], errors[above][-3:]) if len(above) >= 3 else None


def push_forward_kl() -> Result:
    """Orders of convergence for a rigid shift, a stretch and a bend of a Gaussian and of a mixture."""
    rows: list[list[Any]] = []
    measured: dict[str, float] = {}
    curves: dict[str, dict[str, np.ndarray]] = {}
    at = -5  # index of the size h of the ratios: small enough for the limit, large enough against rounding
    with jax.enable_x64(True):
        for density, mixture, spacing in (("Gaussian", GAUSSIAN, 0.1), ("mixture", MIXTURE, 0.05)):
            for name, field in MAPS.items():
                cost = costs(mixture, field, SIZES, spacing)
                errors = {method: np.abs(cost[method] - cost["kl"]) for method in METHODS}
                orders = {method: order(SIZES, errors[method]) for method in METHODS}
                kl = float(cost["kl"][at])
                ratios = {"KL/h^2": kl / float(SIZES[at]) ** 2}
                ratios |= {f"{method}/KL": float(cost[method][at]) / kl for method in ("fisher", "stein")}
                rows.append([density, name, *ratios.values(), *orders.values()])
                case = f"{density} {name}"
                measured |= {f"{case}: {what}": value for what, value in ratios.items()}
                measured[f"{case}: centred - uncentred"] = float(np.max(np.abs(cost["centred"] - cost[METHODS[-1]])))
                measured |= {f"{case}: order of {m}": value for m, value in orders.items() if value is not None}
                curves[case] = {method: errors[method] / cost["kl"] for method in METHODS}
                curves[case]["floor"] = FLOOR / cost["kl"]
    return Result(
        name="a",
        title="Relative error of approximations of the KL of a -> a + h delta(a)",
        columns=("density", "map", "KL/h^2", "Fisher/KL", "stein/KL", *(f"order {m}" for m in METHODS)),
        rows=rows,
        notes=_notes(measured),
        measured=measured,
        plot=lambda axes: _plot(axes, curves),
        panels=3,
    )


def _notes(m: dict[str, float]) -> list[str]:
    paths = ", ".join(f"{m[f'mixture bend: order of {name}']:.2f}" for name in METHODS[2:])
    centred = max(value for name, value in m.items() if "centred" in name)
    return [
        f"The ratios are at h = {SIZES[-5]:.3g}. An order is the exponent of the absolute error; the KL itself has "
        "order 2. A dash means that the error is below rounding: the method is exact there.",
        "The Fisher form is right to leading order for the rigid shift only. Fisher/KL is "
        f"{m['Gaussian stretch: fisher/KL']:.3f} for the stretch of the Gaussian (the limit is 3/2), "
        f"{m['mixture stretch: fisher/KL']:.2f} for the stretch of the mixture and "
        f"{m['mixture bend: fisher/KL']:.2f} for its bend. A smaller step does not help.",
        f"The error of `stein` has order {m['mixture bend: order of stein']:.2f} for the bend of the mixture.",
        f"The error of `path` with 1, 2, 3 nodes has order {paths} there (2n + 1). For a Gaussian, whose score is "
        "linear, one node is exact.",
        f"The means of the centred and uncentred path forms differ by at most {centred:.0e} nats.",
    ]


def _plot(axes: Sequence[Axes], curves: dict[str, dict[str, np.ndarray]]) -> None:
    styles = dict(zip(METHODS, ((RED, "o"), (ORANGE, "s"), (GREEN, "^"), (BLUE, "v"), (PURPLE, "D")), strict=True))
    for panel, case in zip(axes, ("mixture shift", "mixture stretch", "mixture bend"), strict=True):
        shown = curves[case]
        for method, (colour, marker) in styles.items():
            kept = shown[method] > shown["floor"]
            dashed = {"linestyle": "--", "zorder": 3} if method == "fisher" else {}
            panel.loglog(
                SIZES[kept], shown[method][kept], color=colour, marker=marker, markersize=4, label=method, **dashed
            )
        panel.set(title=case, xlabel="h, size of the map (units of the action)", ylim=(1e-12, 3))
    axes[0].set_ylabel("relative error of the KL", color=INK)
