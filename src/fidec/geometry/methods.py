"""The methods that the laboratory compares, each with its budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fidec.algos.constraints import Constraint, Costs, Model, Move
from fidec.algos.constraints.averaged import Averaged
from fidec.algos.constraints.denoising import Denoising
from fidec.algos.constraints.information import Information
from fidec.algos.constraints.isotropic import Isotropic
from fidec.algos.constraints.local import Local
from fidec.algos.constraints.path import Path
from fidec.algos.constraints.precision import Precision
from fidec.algos.constraints.renoised import Renoised
from fidec.algos.constraints.stein import Stein
from fidec.algos.constraints.velocity import Velocity
from fidec.geometry import lab
from fidec.geometry.landscapes import Landscape
from fidec.ops import fisher
from fidec.types import PRNGKey

Budgets = tuple[float, ...]
Result = tuple[lab.Truth, dict[str, Any]]  # the measurement, and further arrays (seeds, budgets)

QUADRATIC: Budgets = (0.0003, 0.001, 0.004, 0.015, 0.06)
NATS: Budgets = (0.1, 0.3, 0.8, 1.6, 3.0)
WEIGHTS: Budgets = (1.0, 3.0, 10.0, 30.0, 100.0)  # FQL's alpha


@dataclass(frozen=True)
class UncentredPath(Path):
    """`path` without its control variate."""

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        return fisher.path(move.field, model.anchors, self.score(model), key, nodes=3, centred=False)


CONSTRAINTS: dict[str, Constraint] = {
    "isotropic": Isotropic(),
    "local": Local(t_eps=0.8),
    "velocity": Velocity(t_eps=0.9, t_width=0.05),
    "averaged": Averaged(t_eps="auto"),
    "information": Information(t_eps="auto"),
    "renoised": Renoised(t_eps="auto"),
    "precision": Precision(),
    "stein": Stein(t_eps="auto"),
    "path": UncentredPath(t_eps="auto"),
    "path_centred": Path(t_eps="auto"),
    "denoising": Denoising(t_eps="auto", samples=2),
}


class Method(NamedTuple):
    """`unit` is that of the budgets. `run` trains the method at all seeds and budgets and measures it."""

    budgets: Budgets
    unit: str
    run: Callable[[Landscape, lab.Flows, Budgets, lab.Sizes], Result]


def _one_step(landscape: Landscape, flows: lab.Flows, budgets: Budgets, sizes: lab.Sizes) -> Result:
    params = lab.train_one_step(landscape, flows, budgets, sizes)
    return lab.measure_one_steps(landscape, params, flows, sizes), {}


def _constrained(constraint: Constraint) -> Method:
    def run(landscape: Landscape, flows: lab.Flows, budgets: Budgets, sizes: lab.Sizes) -> Result:
        maps = lab.train_maps(landscape, flows, constraint, budgets, sizes)
        return lab.measure_maps(landscape, maps, sizes), {"penalty": maps.penalty, "multiplier": maps.multiplier}

    return Method(NATS, "nats", run) if constraint.unit == "nats" else Method(QUADRATIC, "penalty", run)


def _closed_form(steps: int) -> Method:
    constraint = Renoised(t_eps="auto", samples=16)

    def run(landscape: Landscape, flows: lab.Flows, budgets: Budgets, sizes: lab.Sizes) -> Result:
        return lab.measure_closed_form(landscape, flows, constraint, budgets, steps, sizes), {}

    return Method(QUADRATIC, "penalty", run)


METHODS = {
    "fql": Method(WEIGHTS, "alpha", _one_step),
    **{name: _constrained(constraint) for name, constraint in CONSTRAINTS.items()},
    "closed_form": _closed_form(1),
    "closed_form_10": _closed_form(10),
}
