"""(b) The bias of a score that is computed from the velocity at time 1 - eps.

x_t = t a + (1 - t) z is t a with noise of scale eps = 1 - t, so p_t(x) = p(x / t) / t^d + O(eps^2) and

    clean:     s_t(a)             = s(a) + eps grad(a . s(a)) + O(eps^2),    grad(a . s) = s + H a,
    renoised:  t s_t(t a + eps z) = s(a) + eps H z + O(eps^2),               mean over z: s(a) + O(eps^2),
    scaled:    t s_t(t a)         = s(a) + O(eps^2),

with s = grad log p and H its Jacobian. The first-order error of the clean query comes from the scaling by t;
evaluating at t a removes it. The expansions need a density that is smooth on the scale eps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from fidec.geometry.landscapes import Mixture, axis_aligned
from fidec.geometry.theorems.kl import MIXTURE
from fidec.geometry.theorems.result import Result, slope
from fidec.ops import flow
from fidec.plots import BLUE, GREEN, GREY, INK, PURPLE, RED

SMOOTH = MIXTURE
THIN_SD = 0.03
THIN = axis_aligned([[-0.6, 0.0], [0.2, 0.6]], [[THIN_SD, 0.4], [0.4, THIN_SD]])
DENSITIES = {"smooth": SMOOTH, "thin": THIN}
POWERS = {"clean": 1, "scaled": 2, "renoised, mean": 2, "renoised, one": 1}  # order of each query's error in eps
DISTANCES = 10.0 ** np.arange(-4, -0.29, 0.25)
SHOWN = (0.001, 0.01, 0.03, 0.1, 0.2)  # in the table; 0.2 is the paper's t_eps = 0.8


def estimates(density: Mixture, a: jax.Array, eps: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The estimates (m, b, d) of each query from the exact velocity, and their weights (m,)."""
    t = 1.0 - eps
    score = lambda x: flow.velocity_to_score(density.velocity(x, t), x, t)  # noqa: E731
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)  # E over z ~ N(0, 1), for each of two coordinates
    z = jnp.asarray(np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 1, 2))
    probability = jnp.asarray(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    copies = t * score(jnp.broadcast_to(flow.interpolate(z, a, t), (len(z), *a.shape)))
    one = jnp.ones(1)
    return {
        "clean": (score(a)[None], one),
        "scaled": (t * score(t * a)[None], one),
        "renoised, mean": (jnp.einsum("m,mbd->bd", probability, copies)[None], one),
        "renoised, one": (copies, probability),
    }


def errors(density: Mixture, a: jax.Array, distances: np.ndarray) -> dict[str, np.ndarray]:
    """The root mean square over a (and z) of |estimate - s(a)|, for each eps. It needs 64-bit JAX.

    `remainder` is the part of the clean query's error that the first-order term does not explain.
    """

    @jax.jit
    def at(eps):
        truth = density.score(a)
        every = estimates(density, a, eps)
        explained = truth + eps * dilation(density, a)
        errors = {name: (value - truth, weights) for name, (value, weights) in every.items()}
        errors["remainder"] = (every["clean"][0] - explained, every["clean"][1])
        return {
            name: jnp.sqrt(weights @ jnp.mean(jnp.sum(error**2, axis=-1), axis=-1))
            for name, (error, weights) in errors.items()
        }

    rows = [at(eps) for eps in distances]
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def dilation(density: Mixture, a: jax.Array) -> jax.Array:
    """grad(a . grad log p(a)), the coefficient of eps in the clean estimate."""
    return jax.vmap(jax.grad(lambda x: x @ density.score(x)))(a)


def constants(density: Mixture, a: jax.Array) -> dict[str, float]:
    """Root mean squares of the coefficients above: of eps for `clean` and one copy, of eps^2 for the other two."""

    @jax.jit
    def sizes(a):
        score = density.score
        hessian = jax.vmap(jax.jacfwd(score))(a)
        laplacian = jax.vmap(jax.grad(lambda x: jnp.trace(jax.jacfwd(score)(x))))(a)
        half_gradient = jnp.einsum("bij,bj->bi", hessian, score(a))  # of |s|^2
        coefficients = {
            "clean": dilation(density, a),
            "scaled": 0.5 * laplacian + half_gradient,
            "renoised, mean": laplacian + half_gradient,
            "renoised, one": hessian.reshape(len(a), -1),
            "score": score(a),
        }
        return {name: jnp.sqrt(jnp.mean(jnp.sum(c**2, axis=-1))) for name, c in coefficients.items()}

    return {name: float(size) for name, size in sizes(a).items()}


def direction(density: Mixture, a: jax.Array, eps: float) -> tuple[float, float]:
    """Mean cosines of the clean estimate: with the true score, and with -a."""

    def cosine(x, y):
        return float(jnp.mean(jnp.sum(x * y, -1) / jnp.linalg.norm(x, axis=-1) / jnp.linalg.norm(y, axis=-1)))

    estimate = flow.velocity_to_score(density.velocity(a, 1.0 - eps), a, 1.0 - eps)
    return cosine(estimate, density.score(a)), cosine(estimate, -a)


def score_bias() -> Result:
    """Slopes and constants on a smooth mixture, and the range of eps where they hold on a thin one."""
    measured: dict[str, float] = {}
    curves: dict[str, dict[str, np.ndarray]] = {}  # errors relative to the score
    table: list[np.ndarray] = []
    with jax.enable_x64(True):
        for name, density in DENSITIES.items():
            a = density.sample(jax.random.key(0), 500)
            scale = constants(density, a)
            size = scale["score"]
            error = errors(density, a, np.array([*DISTANCES, *SHOWN]))
            curve = {query: values[: len(DISTANCES)] for query, values in error.items()}
            linear = scale["clean"] * DISTANCES
            for query, power in POWERS.items():
                law = scale[query] * DISTANCES[0] ** power
                measured[f"{name}: slope of {query}"] = slope(DISTANCES[:4], curve[query][:4])
                measured[f"{name}: constant of {query}"] = scale[query]
                measured[f"{name}: {query} over its law"] = float(curve[query][0] / law)
                measured[f"{name}: error of {query} at 0.2"] = float(error[query][-1] / size)
            measured[f"{name}: eps of a remainder of 10 %"] = _crossing(curve["remainder"] / linear)
            measured[f"{name}: eps of an error of 10 %"] = _crossing(curve["clean"] / size)
            measured[f"{name}: eps of an error of 10 %, scaled"] = _crossing(curve["scaled"] / size)
            for eps in (0.01, 0.2):
                for what, value in zip(("score", "-a"), direction(density, a, eps), strict=True):
                    measured[f"{name}: cosine with {what} at {eps}"] = value
            curves[name] = {query: curve[query] / size for query in POWERS} | {"law": linear / size}
            table += [error[query][len(DISTANCES) :] / size for query in POWERS]
    rows: list[list[Any]] = [[eps, *map(float, cells)] for eps, *cells in zip(SHOWN, *table, strict=True)]
    return Result(
        name="b",
        title="Error of the score computed from the exact velocity at time 1 - eps",
        columns=("eps", *(f"{name}: {query}" for name in DENSITIES for query in POWERS)),
        rows=rows,
        notes=_notes(measured),
        measured=measured,
        plot=lambda axes: _plot(axes, curves),
    )


def _crossing(ratio: np.ndarray) -> float:
    """The eps at which an increasing ratio reaches a tenth; a power law between grid points."""
    return float(np.exp(np.interp(np.log(0.1), np.log(ratio), np.log(DISTANCES))))


def _notes(m: dict[str, float]) -> list[str]:
    lost = ", ".join(f"{m[f'thin: error of {query} at 0.2']:.2f}" for query in POWERS)
    ratio = m["thin: constant of clean"] / m["smooth: constant of clean"]
    remainder, clean, scaled = (
        "{:.2g} (smooth: {:.2g})".format(*(m[f"{name}: eps of {what}"] for name in ("thin", "smooth")))
        for what in ("a remainder of 10 %", "an error of 10 %", "an error of 10 %, scaled")
    )
    cosines = [f"{m[f'thin: cosine with {what} at {eps}']:.2f}" for eps in (0.2, 0.01) for what in ("score", "-a")]
    return [
        "The errors in the table are relative to the root mean square of the true score.",
        f"Clean query, smooth density: slope {m['smooth: slope of clean']:.3f}. The error is "
        f"{m['smooth: clean over its law']:.3f} times eps C1, where C1^2 = E|grad(a . grad log p)|^2 and here "
        f"C1 = {m['smooth: constant of clean']:.2f}.",
        f"One re-noised copy: slope {m['smooth: slope of renoised, one']:.3f}. Its mean over the noise: slope "
        f"{m['smooth: slope of renoised, mean']:.3f}. The scaled query t s_t(t a): slope "
        f"{m['smooth: slope of scaled']:.3f}, with one evaluation and without added noise.",
        f"Thin density (sd {THIN_SD}): C1 is {ratio:.0f} times larger. The first-order term explains all but a tenth "
        f"of the error up to eps = {remainder}. The error is a tenth of the score at eps = {clean}, with the scaled "
        f"query at {scaled}.",
        f"At t = 0.8 the errors of all four queries are about as large as the score of the thin density ({lost}). "
        f"The mean cosines of the clean estimate with the score and with -a are {cosines[0]} and {cosines[1]}; at "
        f"t = 0.99 they are {cosines[2]} and {cosines[3]}.",
    ]


def _plot(axes: Sequence[Axes], curves: dict[str, dict[str, np.ndarray]]) -> None:
    styles = dict(zip(POWERS, ((RED, "o"), (GREEN, "s"), (BLUE, "^"), (PURPLE, "v")), strict=True))
    titles = {"smooth": "smooth mixture, sd 0.25 to 0.35", "thin": f"thin mixture, sd {THIN_SD} across"}
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        for query, (colour, marker) in styles.items():
            panel.loglog(DISTANCES, curves[name][query], color=colour, marker=marker, markersize=4, label=query)
        law = "eps |grad(a . grad log p)|"
        panel.loglog(DISTANCES, curves[name]["law"], color=INK, linewidth=0.9, linestyle="--", label=law)
        panel.set(title=title, xlabel="eps = 1 - t", ylim=(1e-7, 10))
    axes[1].axvline(THIN_SD, color=GREY, linewidth=0.9, linestyle=":")
    axes[1].text(THIN_SD * 0.9, 3e-7, "eps = sd", ha="right", fontsize=8, color=INK)
    axes[0].set_ylabel("rms error / rms score", color=INK)
