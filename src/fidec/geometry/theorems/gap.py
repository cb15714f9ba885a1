"""(d) The gain from a metric: the optimality gap 1/(2 lambda) (g^T M^-1 g - g^T g).

Linearised, a refinement solves max_delta g . delta - lambda/2 delta^T M delta. The optimum is
delta_M = M^-1 g / lambda with the value A^2 / (2 lambda), A^2 = g^T M^-1 g. With M = I it is delta_I = g / lambda
with B^2 / (2 lambda), B^2 = g^T g.

- The formula compares two optima under two different penalties. Its sign is that of A - B. It depends on the scale
  of M and is negative if all eigenvalues of M exceed 1.
- The loss of delta_I under M's own penalty is the regret
  |M^(-1/2) g - M^(1/2) g|^2 / (2 lambda) = (A^2 - 2 B^2 + g^T M g) / (2 lambda) >= 0.
  The formula equals it if and only if g^T M g = g^T g: M must be normalised along g.
- Under a hard budget, max g . delta with 1/2 delta^T M delta <= eps, the optimum is sqrt(2 eps) A. For one eps the
  two optima differ by sqrt(2 eps) (A - B), which is the formula with the mean of the two multipliers for lambda.
- On one budget of M, the ratio of the gains of the two directions is sqrt(g^T M^-1 g g^T M g) / g^T g. It is at least
  1, at most (k + 1) / (2 sqrt(k)) for condition number k (Kantorovich), and does not depend on the scale of M.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import minimize

from fidec.geometry.theorems.result import Result
from fidec.plots import BLUE, GREY, INK, RED

CONDITIONS = (1.0, 3.0, 10.0, 100.0, 1000.0)
SCALES = {"trace d": "trace", "g^T M g = g^T g": "along", "smallest eigenvalue 2": "above"}
DIMENSION, DRAWS, BUDGET, PRICE = 4, 20, 0.5, 2.0


Solved = dict[tuple[float, str], list[dict[str, float]]]  # (condition number, scale) -> solved problems


class Problem(NamedTuple):
    gradient: np.ndarray
    metric: np.ndarray


def problem(rng: np.random.Generator, condition: float, scale: str) -> Problem:
    """A random gradient, and a metric of random axes with eigenvalues spread evenly in their logarithm."""
    axes = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0]
    metric = axes @ np.diag(condition ** np.linspace(0, 1, DIMENSION)) @ axes.T
    g = rng.normal(size=DIMENSION)
    unit = {"trace": np.trace(metric) / DIMENSION, "along": g @ metric @ g / (g @ g), "above": 0.5}[scale]
    return Problem(g, metric / unit)


def solve_penalised(gradient: np.ndarray, metric: np.ndarray, price: float) -> np.ndarray:
    """argmax g . delta - lambda/2 delta^T M delta, by a quasi-Newton method."""
    return minimize(
        lambda x: 0.5 * price * x @ metric @ x - gradient @ x,
        np.zeros_like(gradient),
        jac=lambda x: price * metric @ x - gradient,
        method="BFGS",
        options={"gtol": 1e-9},
    ).x


def solve_budget(gradient: np.ndarray, metric: np.ndarray, budget: float) -> np.ndarray:
    """argmax g . delta subject to 1/2 delta^T M delta <= eps, by sequential quadratic programming."""
    constraint = {
        "type": "ineq",
        "fun": lambda x: budget - 0.5 * x @ metric @ x,
        "jac": lambda x: -metric @ x,
    }
    start = 0.1 * gradient / np.sqrt(gradient @ metric @ gradient)
    return minimize(
        lambda x: -gradient @ x,
        start,
        jac=lambda x: -gradient,
        method="SLSQP",
        constraints=[constraint],
        options={"ftol": 1e-12, "maxiter": 500},
    ).x


def compare(p: Problem) -> dict[str, float]:
    """The formula, and the solved quantities that it is compared with."""
    g, m = p
    a2, b2, along = g @ np.linalg.solve(m, g), g @ g, g @ m @ g
    identity = np.eye(len(g))
    delta_m, delta_i = solve_penalised(g, m, PRICE), solve_penalised(g, identity, PRICE)
    value = lambda delta, metric: g @ delta - 0.5 * PRICE * delta @ metric @ delta  # noqa: E731
    budget_m, budget_i = (g @ solve_budget(g, metric, BUDGET) for metric in (m, identity))
    multipliers = [np.sqrt(square / (2 * BUDGET)) for square in (a2, b2)]
    scaled = delta_i * np.sqrt(2 * BUDGET / (delta_i @ m @ delta_i))  # the isotropic direction on M's budget
    quantities = {
        "formula": (a2 - b2) / (2 * PRICE),
        "difference of optima": value(delta_m, m) - value(delta_i, identity),
        "regret": value(delta_m, m) - value(delta_i, m),
        "regret in closed form": (a2 - 2 * b2 + along) / (2 * PRICE),
        "difference under budgets": budget_m - budget_i,
        "formula at the mean multiplier": (a2 - b2) / sum(multipliers),
        "ratio on one budget": budget_m / (g @ scaled),
        "ratio in closed form": np.sqrt(a2 * along) / b2,
    }
    return {name: float(quantity) for name, quantity in quantities.items()}


def optimality_gap() -> Result:
    """Random problems of several condition numbers and scales of M, solved numerically."""
    rng = np.random.default_rng(0)
    shown = ("formula", "difference of optima", "regret", "difference under budgets", "ratio on one budget")
    rows: list[list[Any]] = []
    solved: Solved = {}
    for condition in CONDITIONS:
        for label, scale in SCALES.items():
            several = [compare(problem(rng, condition, scale)) for _ in range(DRAWS)]
            solved[condition, scale] = several
            means = [float(np.mean([each[name] for each in several])) for name in shown]
            negative = float(np.mean([each["formula"] < -1e-12 for each in several]))
            rows.append([f"{condition:g}", label, *(x if abs(x) > 1e-7 else 0.0 for x in means), negative])
    measured = _measure(solved)
    columns = "cond|scale of M|formula|solved: two penalties|solved: regret|solved: two budgets|ratio, one budget"
    return Result(
        name="d",
        title="The optimality gap against solved problems",
        columns=(*columns.split("|"), "formula < 0"),
        rows=rows,
        notes=_notes(measured),
        measured=measured,
        plot=lambda axes: _plot(axes, solved),
    )


def _measure(solved: Solved) -> dict[str, float]:
    by_scale = {
        scale: [each for (_, own), several in solved.items() if own == scale for each in several]
        for scale in SCALES.values()
    }
    every = [each for several in solved.values() for each in several]

    def worst(rows: list[dict[str, float]], name: str, law: str) -> float:
        return float(max(abs(each[name] - each[law]) / max(1.0, abs(each[law])) for each in rows))

    bound = max(
        each["ratio on one budget"] * 2 * np.sqrt(condition) / (condition + 1)
        for (condition, _), several in solved.items()
        for each in several
        if condition > 1  # for an isotropic M the ratio and its bound are 1
    )
    return {
        "difference of optima against the formula": worst(every, "difference of optima", "formula"),
        "regret against its closed form": worst(every, "regret", "regret in closed form"),
        "regret against the formula, normalised along g": worst(by_scale["along"], "regret", "formula"),
        "two budgets against the formula at the mean multiplier": worst(
            every, "difference under budgets", "formula at the mean multiplier"
        ),
        "ratio against its closed form": worst(every, "ratio on one budget", "ratio in closed form"),
        "largest ratio over Kantorovich's bound": float(bound),
        "smallest ratio": float(min(each["ratio on one budget"] for each in every)),
        "smallest regret": float(min(each["regret"] for each in every)),
        "negative with eigenvalues above 1": float(np.mean([each["formula"] < 0 for each in by_scale["above"]])),
        "negative with trace d": float(np.mean([each["formula"] < -1e-12 for each in by_scale["trace"]])),
        "smallest formula, normalised along g": float(min(each["formula"] for each in by_scale["along"])),
    }


def _notes(m: dict[str, float]) -> list[str]:
    share = m["largest ratio over Kantorovich's bound"]
    return [
        f"The table has means over {DRAWS} random problems in {DIMENSION} dimensions, lambda = {PRICE:g}, "
        f"eps = {BUDGET:g}.",
        "The formula is the difference of the two penalised optima, each under its own penalty (the solver agrees to "
        f"{m['difference of optima against the formula']:.0e}). The scale of M decides its sign: it is negative in "
        f"{100 * m['negative with eigenvalues above 1']:.0f} % of the cases with all eigenvalues above 1 and in "
        f"{100 * m['negative with trace d']:.0f} % of those with trace d.",
        "The isotropic step loses the regret under M's own penalty, which is never negative (smallest "
        f"{m['smallest regret']:.0e}). The formula equals it only if g^T M g = g^T g (to "
        f"{m['regret against the formula, normalised along g']:.0e}).",
        "Two hard budgets differ by the formula with the mean of the two multipliers for lambda (to "
        f"{m['two budgets against the formula at the mean multiplier']:.0e}).",
        "On one budget of M the natural direction gains sqrt(g^T M^-1 g g^T M g) / g^T g times as much as the "
        f"gradient: at least {m['smallest ratio']:.4f}, and at most {share:.3f} of Kantorovich's bound, for every "
        "scale of M.",
    ]


def _plot(axes: Sequence[Axes], solved: Solved) -> None:
    styles = zip(SCALES.items(), (BLUE, INK, RED), ("o", "D", "^"), (0.9, 1.0, 1.1), strict=True)
    for (label, scale), colour, marker, offset in styles:
        style: dict[str, Any] = {
            "linestyle": "none", "marker": marker, "markersize": 3.5, "alpha": 0.7, "color": colour
        }  # fmt: skip
        points = [
            (condition, each)
            for (condition, own), several in solved.items()
            if own == scale
            for each in several
        ]  # fmt: skip
        axes[0].plot([p["regret"] for _, p in points], [p["formula"] for _, p in points], label=label, **style)
        axes[1].plot([k * offset for k, _ in points], [p["ratio on one budget"] for _, p in points], **style)
    line = np.array([1e-2, 1e3])
    axes[0].plot(line, line, color=GREY, linewidth=0.9, linestyle="--", label="formula = regret")
    axes[0].axhline(0.0, color=GREY, linewidth=0.7)
    axes[0].set_xscale("symlog", linthresh=0.1)
    axes[0].set_yscale("symlog", linthresh=0.1)
    axes[0].set_xlim(-0.03, 5e3)
    axes[0].set(xlabel="solved: regret of the isotropic step", ylabel="formula", title="one penalty weight lambda")
    k = np.geomspace(1, CONDITIONS[-1], 100)
    axes[1].plot(k, (k + 1) / (2 * np.sqrt(k)), color=INK, linewidth=0.9, linestyle="--", label="Kantorovich's bound")
    axes[1].set(xscale="log", yscale="log", xlabel="condition number of M", title="one budget of M")
    axes[1].set_ylabel("gain, natural / isotropic direction")
