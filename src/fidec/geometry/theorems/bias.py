"""(b) The bias of a score that is read off the velocity at time 1 - eps.

x_t = t a + (1 - t) z is t a, blurred on the scale eps = 1 - t. So p_t(x) = p(x / t) / t^d + O(eps^2) and

    clean:     s_t(a)            = s(a) + eps grad(a . s(a)) + O(eps^2),    grad(a . s) = s + H a,
    renoised:  t s_t(t a + eps z) = s(a) + eps H z + O(eps^2),               with mean over z s(a) + O(eps^2),
    scaled:    t s_t(t a)         = s(a) + O(eps^2),

with s = grad log p and H its Jacobian. The first-order error of the clean query is the dilation by 1/t, and it has a
preferred direction; asking at t a undoes it. `t s_t(t a + eps z)` is the gradient by a of log (p * N(0, tau^2)) at
a + tau z, tau = eps / t: a function of the blur alone. The expansions need a density that is smooth on the scale eps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from fidec.geometry.exact import Mixture, axis_aligned
from fidec.geometry.theorems.kl import MIXTURE
from fidec.geometry.theorems.result import Result, Tick, no_tick, slope
from fidec.ops import flow
from fidec.plots import BLUE, GREEN, GREY, INK, PURPLE, RED

SMOOTH = MIXTURE
THIN_SD = 0.03
THIN = axis_aligned([[-0.6, 0.0], [0.2, 0.6]], [[THIN_SD, 0.4], [0.4, THIN_SD]])
DENSITIES = {"smooth": SMOOTH, "thin": THIN}
QUERIES = ("clean", "scaled", "renoised, mean", "renoised, one")
DISTANCES = 10.0 ** np.arange(-4, -0.29, 0.25)
LEVELS = ("a remainder of 10 %", "an error of 10 %", "an error of 10 %, scaled")
SHOWN = (0.001, 0.01, 0.03, 0.1, 0.2)  # the table's; 0.2 is the paper's t_eps = 0.8


def estimates(density: Mixture, a: jax.Array, eps: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """The estimates (m, b, d) of each query from the exact velocity, and their weights (m,)."""
    t = 1.0 - eps
    read = lambda x: flow.velocity_to_score(density.velocity(x, t), x, t)  # noqa: E731
    places, weights = np.polynomial.hermite_e.hermegauss(7)  # E over z ~ N(0, 1), for each of two coordinates
    z = jnp.asarray(np.stack(np.meshgrid(places, places), axis=-1).reshape(-1, 1, 2))
    chance = jnp.asarray(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    copies = t * read(jnp.broadcast_to(flow.interpolate(z, a, t), (len(z), *a.shape)))
    one = jnp.ones(1)
    return {
        "clean": (read(a)[None], one),
        "scaled": (t * read(t * a)[None], one),
        "renoised, mean": (jnp.einsum("m,mbd->bd", chance, copies)[None], one),
        "renoised, one": (copies, chance),
    }


def errors(density: Mixture, a: jax.Array, distances: np.ndarray) -> dict[str, np.ndarray]:
    """The root mean square over a (and z) of |estimate - s(a)|, for each eps; call it in 64 bits.

    `remainder` is what the first-order term leaves of the clean query's error.
    """

    @jax.jit
    def at(eps):
        truth = density.score(a)
        found = estimates(density, a, eps)
        explained = truth + eps * dilation(density, a)
        errors = {name: (value - truth, weights) for name, (value, weights) in found.items()}
        errors["remainder"] = (found["clean"][0] - explained, found["clean"][1])
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
        pull = jnp.einsum("bij,bj->bi", hessian, score(a))  # half the gradient of |s|^2
        coefficients = {
            "clean": dilation(density, a),
            "scaled": 0.5 * laplacian + pull,
            "renoised, mean": laplacian + pull,
            "renoised, one": hessian.reshape(len(a), -1),
            "score": score(a),
        }
        return {name: jnp.sqrt(jnp.mean(jnp.sum(c**2, axis=-1))) for name, c in coefficients.items()}

    return {name: float(size) for name, size in sizes(a).items()}


def direction(density: Mixture, a: jax.Array, eps: float) -> tuple[float, float]:
    """Mean cosines of the clean estimate: with the true score, and with -a."""

    def cosine(x, y):
        return float(jnp.mean(jnp.sum(x * y, -1) / jnp.linalg.norm(x, axis=-1) / jnp.linalg.norm(y, axis=-1)))

    found = flow.velocity_to_score(density.velocity(a, 1.0 - eps), a, 1.0 - eps)
    return cosine(found, density.score(a)), cosine(found, -a)


def score_bias(tick: Tick = no_tick) -> Result:
    """Slopes and constants on a smooth mixture, and where they begin on a thin one."""
    measured: dict[str, float] = {}
    curves: dict[str, dict[str, np.ndarray]] = {}
    scales: dict[str, dict[str, float]] = {}
    with jax.enable_x64(True):
        for name, density in DENSITIES.items():
            a = density.sample(jax.random.key(0), 500)
            scales[name] = constants(density, a)
            found = errors(density, a, np.array([*DISTANCES, *SHOWN]))
            curves[name] = {query: error[: len(DISTANCES)] for query, error in found.items()}
            curves[f"{name} shown"] = {
                q: error[len(DISTANCES) :] / scales[name]["score"] for q, error in found.items()
            }
            for query in QUERIES:
                power = 2 if query in ("scaled", "renoised, mean") else 1
                measured[f"{name}: slope of {query}"] = slope(DISTANCES[:4], curves[name][query][:4])
                measured[f"{name}: constant of {query}"] = scales[name][query]
                measured[f"{name}: {query} over its law"] = float(
                    curves[name][query][0] / (scales[name][query] * DISTANCES[0] ** power)
                )
            linear = scales[name]["clean"] * DISTANCES
            size = scales[name]["score"]
            ratios = (curves[name]["remainder"] / linear, curves[name]["clean"] / size, curves[name]["scaled"] / size)
            measured |= {f"{name}: eps of {what}": _crossing(r) for what, r in zip(LEVELS, ratios, strict=True)}
            for eps in (0.01, 0.2):
                for what, value in zip(("score", "-a"), direction(density, a, eps), strict=True):
                    measured[f"{name}: cosine with {what} at {eps}"] = value
            tick()
    rows: list[list[Any]] = [
        [eps, *(float(curves[f"{name} shown"][query][i]) for name in DENSITIES for query in QUERIES)]
        for i, eps in enumerate(SHOWN)
    ]
    return Result(
        name="b",
        title="Error of the score read off the exact velocity at time 1 - eps",
        columns=("eps", *(f"{name}: {query}" for name in DENSITIES for query in QUERIES)),
        rows=rows,
        notes=_notes(measured, curves, scales),
        measured=measured,
        plot=lambda axes: _plot(axes, curves, scales),
        panels=2,
    )


def _crossing(ratio: np.ndarray, level: float = 0.1) -> float:
    """The eps at which an increasing ratio reaches the level, between grid points by a power law."""
    return float(np.exp(np.interp(np.log(level), np.log(ratio), np.log(DISTANCES))))


def _notes(measured: dict[str, float], curves: dict, scales: dict) -> list[str]:
    m = measured
    lost = ", ".join(f"{curves['thin shown'][query][-1]:.2f}" for query in QUERIES)
    ratio = scales["thin"]["clean"] / scales["smooth"]["clean"]
    level = {name: [m[f"{name}: eps of {what}"] for what in LEVELS] for name in DENSITIES}
    return [
        "The table's errors are relative to the root mean square of the true score.",
        f"Clean query, smooth density: slope {m['smooth: slope of clean']:.3f}, and the error is "
        f"{m['smooth: clean over its law']:.3f} times eps C1, where C1^2 = E|grad(a . grad log p)|^2 and here "
        f"C1 = {scales['smooth']['clean']:.2f}.",
        f"One re-noised copy: slope {m['smooth: slope of renoised, one']:.3f}, its squared constant E|H|_F^2. Its "
        f"mean over the noise: slope {m['smooth: slope of renoised, mean']:.3f}. The scaled query t s_t(t a), which "
        f"costs one evaluation and adds no noise: slope {m['smooth: slope of scaled']:.3f}.",
        f"Thin density (sd {THIN_SD}): C1 is {ratio:.0f} times larger. The first-order term is all but a tenth of "
        f"the error up to eps = {level['thin'][0]:.2g} (smooth: {level['smooth'][0]:.2g}). The error is a tenth of "
        f"the score at eps = {level['thin'][1]:.2g} (smooth: {level['smooth'][1]:.2g}), with the scaled query at "
        f"{level['thin'][2]:.2g} ({level['smooth'][2]:.2g}).",
        f"Above that the error saturates: at t = 0.8 all four queries have lost the score (errors {lost}).",
        f"There the clean estimate at t = 0.8 has mean cosine {m['thin: cosine with score at 0.2']:.2f} with the "
        f"score and {m['thin: cosine with -a at 0.2']:.2f} with -a; at t = 0.99 "
        f"{m['thin: cosine with score at 0.01']:.2f} and {m['thin: cosine with -a at 0.01']:.2f}.",
    ]


def _plot(axes: Sequence[Axes], curves: dict, scales: dict) -> None:
    styles = zip(QUERIES, ((RED, "o"), (GREEN, "s"), (BLUE, "^"), (PURPLE, "v")), strict=True)
    titles = {"smooth": "smooth mixture, sd 0.25 to 0.35", "thin": f"thin mixture, sd {THIN_SD} across"}
    for query, (colour, marker) in styles:
        for panel, name in zip(axes, titles, strict=True):
            relative = curves[name][query] / scales[name]["score"]
            panel.loglog(DISTANCES, relative, color=colour, marker=marker, markersize=4, label=query)
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        law = scales[name]["clean"] * DISTANCES / scales[name]["score"]
        panel.loglog(DISTANCES, law, color=INK, linewidth=0.9, linestyle="--", label="eps |grad(a . grad log p)|")
        panel.set(title=title, xlabel="eps = 1 - t", ylim=(1e-7, 10))
    axes[1].axvline(THIN_SD, color=GREY, linewidth=0.9, linestyle=":")
    axes[1].text(THIN_SD * 0.9, 3e-7, "eps = sd", ha="right", fontsize=8, color=INK)
    axes[0].set_ylabel("rms error / rms score", color=INK)
