"""(c) The best distance eps = 1 - t if the velocity has an error.

The score is (t v - a) / eps. An error e in v becomes t e / eps in the score. The clean query also has the bias C1 eps
(theorem b). With e = C2 u, u the unit roundoff:

    error^2 = (C1 eps)^2 + (C2 u / eps)^2,    least at eps* = (C2 u / C1)^(1/2),    with error^2 = 2 C1 C2 u.

The exponent is 1/2. The paper's law eps* = (C2 delta / C1)^(1/4) minimises C1 eps^2 + C2 delta / eps^2. It is the
same law if delta is the variance of the velocity's error (and C1, C2 belong to squared errors), but not if delta is
the machine precision. The scaled query t s_t(t a), whose bias is C eps^2, has the exponent 1/3. The error of a
learned velocity is much larger than rounding, so its best eps is larger by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes

from fidec import nn
from fidec.geometry.theorems.bias import SMOOTH, constants
from fidec.geometry.theorems.result import Result, slope
from fidec.ops import flow
from fidec.plots import BLUE, GREEN, INK, ORANGE, PURPLE
from fidec.types import Params

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}
DISTANCES = 10.0 ** np.arange(-10, -0.25, 0.1)
LEARNED_DISTANCES = 10.0 ** np.arange(-3, -0.25, 0.1)
POINTS, STEPS, BATCH = 1000, 6000, 256
QUERIES = ("clean", "scaled")
COLUMNS = (
    "velocity",
    "velocity error",
    "eps*",
    "law 1/2",
    "law 1/4",
    "least error",
    "eps* scaled",
    "least error scaled",
)


class Curve(NamedTuple):
    """The root mean square error of the score for each eps."""

    distances: np.ndarray
    errors: np.ndarray

    @property
    def best(self) -> tuple[float, float]:
        """eps* and the error there: the minimum of a parabola in logarithms, through points within a factor of 2."""
        x, y = np.log(self.distances), np.log(self.errors)
        near = np.abs(x - x[np.argmin(y)]) < np.log(2.0)
        a, b, c = np.polyfit(x[near], y[near], 2)
        return float(np.exp(-b / (2 * a))), float(np.exp(c - b * b / (4 * a)))


def curve(velocity: flow.Velocity, a: jax.Array, distances: np.ndarray, query: str = "clean") -> Curve:
    """The error of the score that the package computes from `velocity`, in the precision of the points a."""
    truth = SMOOTH.score(a)

    def at(eps):
        t = 1.0 - eps
        x, factor = (a, 1.0) if query == "clean" else (t * a, t)
        error = factor * flow.velocity_to_score(velocity(x, flow.times(x, t)), x, t) - truth
        return jnp.sqrt(jnp.mean(jnp.sum(error**2, axis=-1)))

    return Curve(distances, np.asarray(jax.jit(lambda eps: jax.lax.map(at, eps))(jnp.asarray(distances, a.dtype))))


def rounding_errors(x: np.ndarray, away: np.ndarray, precision: str) -> np.ndarray:
    """round(v) - v for v = x + away, exactly; for float64 by Knuth's two-sum."""
    v = x + away
    if precision != "float64":
        return v.astype(jnp.dtype(precision)).astype(np.float64) - v
    part = v - x
    return -((x - (v - part)) + (away - part))


def rounded_curves(a: jax.Array, distances: np.ndarray, query: str) -> dict[str, Curve]:
    """Error curves of the exact velocity if only the velocity is rounded, for each precision.

    v = x + eps/t (x + s_t(x)), so that (t round(v) - x) / eps = s_t + t (round(v) - v) / eps, without cancellation.
    """
    truth = np.asarray(SMOOTH.score(a))
    where = lambda eps: a if query == "clean" else (1.0 - eps) * a  # noqa: E731
    smoothed = jax.jit(lambda eps: jax.lax.map(lambda e: SMOOTH.score(where(e), 1.0 - e), eps))(
        jnp.asarray(distances)
    )
    curves: dict[str, list[float]] = {precision: [] for precision in ROUNDOFF}
    for eps, score in zip(distances, np.asarray(smoothed), strict=True):
        t, x = 1.0 - eps, np.asarray(where(eps))
        for precision, errors in curves.items():
            rounding = t / eps * rounding_errors(x, eps / t * (x + score), precision)
            error = (1.0 if query == "clean" else t) * (score + rounding) - truth
            errors.append(float(np.sqrt(np.mean(np.sum(error**2, axis=-1)))))
    return {precision: Curve(distances, np.array(errors)) for precision, errors in curves.items()}


def velocity_error(velocity: flow.Velocity, a: jax.Array, eps: float) -> float:
    """The rms error of a velocity at the points a and time 1 - eps."""
    t = flow.times(a, 1.0 - eps)
    return float(jnp.sqrt(jnp.mean(jnp.sum((velocity(a, t) - SMOOTH.velocity(a, t)) ** 2, axis=-1))))


def learned_velocity(steps: int = STEPS) -> flow.Velocity:
    """A 3 x 64 network fitted to the smooth mixture by flow matching, with Adam and a rate that falls to zero."""
    network = nn.VelocityField((64, 64, 64), SMOOTH.means.shape[-1])
    init_key, key = jax.random.split(jax.random.key(0))
    no_observation = jnp.zeros((1, 0))
    params = network.init(init_key, no_observation, jnp.zeros((1, 2)), jnp.zeros((1, 1)))
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def velocity(params: Params, x: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.asarray(network.apply(params, no_observation, x, t))

    def loss(params, key):
        data_key, loss_key = jax.random.split(key)
        return flow.matching_loss(partial(velocity, params), SMOOTH.sample(data_key, BATCH), loss_key)

    def step(carry, key):
        params, state = carry
        updates, state = optimiser.update(jax.grad(loss)(params, key), state)
        return (optax.apply_updates(params, updates), state), None

    train = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0])
    params, _ = train((params, optimiser.init(params)), jax.random.split(key, steps))
    return partial(velocity, params)


def rounding_curves() -> tuple[dict[str, Curve], dict[str, float]]:
    """Error curves of the exact velocity; C1, C2 and the scale of the score."""
    curves: dict[str, Curve] = {}
    with jax.enable_x64(True):
        a = SMOOTH.sample(jax.random.key(0), POINTS)
        known = constants(SMOOTH, a)
        for query in QUERIES:
            rounded = rounded_curves(a, DISTANCES, query)
            curves |= {f"{precision}, {query}": each for precision, each in rounded.items()}
        curves["float64 throughout, clean"] = curve(SMOOTH.velocity, a, DISTANCES)
        points = np.asarray(a)
    single = jnp.asarray(points, jnp.float32)
    curves["float32 throughout, clean"] = curve(SMOOTH.velocity, single, DISTANCES[DISTANCES > 1e-6])
    # At t = 1 the velocity is the point itself.
    error = rounding_errors(points, np.zeros_like(points), "float32")
    c2 = float(np.sqrt(np.mean(np.sum(error**2, axis=-1)))) / ROUNDOFF["float32"]
    return curves, {"C1": known["clean"], "C2": c2, "score": known["score"]}


def best_distance(steps: int = STEPS) -> Result:
    """The measured optimum for three precisions and for a learned velocity, and both laws."""
    curves, constant = rounding_curves()
    velocity = learned_velocity(steps)
    a = SMOOTH.sample(jax.random.key(1), POINTS)
    curves |= {f"learned, {query}": curve(velocity, a, LEARNED_DISTANCES, query) for query in QUERIES}
    velocity_errors = {precision: constant["C2"] * u for precision, u in ROUNDOFF.items()}
    velocity_errors["learned"] = velocity_error(velocity, a, curves["learned, clean"].best[0])

    rows: list[list[Any]] = []
    measured: dict[str, float] = dict(constant)
    for name in (*ROUNDOFF, "float32 throughout", "float64 throughout", "learned"):
        eps, error = curves[f"{name}, clean"].best
        cells = {"eps*": eps, "least error": error / constant["score"]}
        if name in velocity_errors:
            ratio = velocity_errors[name] / constant["C1"]
            scaled, scaled_error = curves[f"{name}, scaled"].best
            cells |= {"velocity error": velocity_errors[name], "law 1/2": ratio**0.5, "law 1/4": ratio**0.25}
            cells |= {"eps* scaled": scaled, "least error scaled": scaled_error / constant["score"]}
        rows.append([name, *(cells.get(column) for column in COLUMNS[1:])])
        measured |= {f"{name}: {what}": value for what, value in cells.items()}
    for query in QUERIES:
        best = [curves[f"{precision}, {query}"].best[0] for precision in ROUNDOFF]
        measured[f"exponent, {query}"] = slope(list(ROUNDOFF.values()), best)
    return Result(
        name="c",
        title="The best distance from t = 1: bias against the error of the velocity",
        columns=COLUMNS,
        rows=rows,
        notes=_notes(measured),
        measured=measured,
        plot=lambda axes: _plot(axes, curves, constant["score"]),
    )


def _notes(m: dict[str, float]) -> list[str]:
    worst = max(abs(m[f"{p}: eps*"] / m[f"{p}: law 1/2"] - 1) for p in ROUNDOFF)
    over = {p: m[f"{p}: law 1/4"] / m[f"{p}: eps*"] for p in ROUNDOFF}
    far = m["learned: eps*"] / m["float32: eps*"]
    return [
        "Errors are relative to the root mean square of the true score.",
        f"eps* grows as u^{m['exponent, clean']:.3f} over the three precisions. (C2 u / C1)^(1/2) predicts it within "
        f"{100 * worst:.0f} %. With the exponent 1/4 and u the machine precision it would be {over['float32']:.0f} "
        f"times too large in float32 and {over['float64']:.0f} times in float64.",
        f"eps* of the scaled query grows as u^{m['exponent, scaled']:.3f} (bias of order 2, so 1/3 is expected).",
        "These numbers are with only the velocity rounded. With time, point and division in the same precision, eps* "
        f"is {m['float32 throughout: eps*']:.1e} in float32 and {m['float64 throughout: eps*']:.1e} in float64.",
        f"A learned velocity (3 x 64) with an error of {m['learned: velocity error']:.2g} has eps* = "
        f"{m['learned: eps*']:.2g}, {far:.0f} times that of float32. The error of the score there is "
        f"{m['learned: least error']:.2f} (scaled query: {m['learned: least error scaled']:.2f} at "
        f"{m['learned: eps* scaled']:.2g}). The law 1/2 with that error gives {m['learned: law 1/2']:.2g}. "
        "In practice rounding does not matter.",
    ]


def _plot(axes: Sequence[Axes], curves: dict[str, Curve], size: float) -> None:
    colours = {"bfloat16": ORANGE, "float32": BLUE, "float64": GREEN, "learned": PURPLE}
    titles = ("clean query s_t(a)", "scaled query t s_t(t a)")
    for panel, query, title in zip(axes, QUERIES, titles, strict=True):
        for name, colour in colours.items():
            shown = curves[f"{name}, {query}"]
            eps, error = shown.best
            panel.loglog(shown.distances, shown.errors / size, color=colour, label=name)
            panel.plot(eps, error / size, color=colour, marker="o", markersize=6, markeredgecolor=INK)
        panel.set(title=title, xlabel="eps = 1 - t", ylim=(1e-12, 30))
    axes[0].set_ylabel("rms error / rms score", color=INK)
