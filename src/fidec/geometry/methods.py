"""The methods that the laboratory compares, each with its budgets, and the process that trains them.

`python -m fidec.geometry.methods`, started by `fidec.geometry.experiment`, does the jobs of the comparison: it fits
the flows of a landscape, or trains one method on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fidec import compilation
from fidec.algos.constraints import Constraint, Costs, Model, Move, path
from fidec.algos.constraints.averaged import Averaged
from fidec.algos.constraints.denoising import Denoising
from fidec.algos.constraints.information import Information
from fidec.algos.constraints.isotropic import Isotropic
from fidec.algos.constraints.local import Local
from fidec.algos.constraints.precision import Precision
from fidec.algos.constraints.renoised import Renoised
from fidec.algos.constraints.stein import Stein
from fidec.algos.constraints.velocity import Velocity
from fidec.geometry import lab, landscapes
from fidec.geometry.landscapes import Landscape
from fidec.launch import serve
from fidec.ops import fisher
from fidec.store import files, trees
from fidec.types import PRNGKey

Budgets = tuple[float, ...]
Result = tuple[lab.Truth, dict[str, Any]]  # the measurement, and further arrays (seeds, budgets)

QUADRATIC: Budgets = (0.0003, 0.001, 0.004, 0.015, 0.06)
NATS: Budgets = (0.1, 0.3, 0.8, 1.6, 3.0)
WEIGHTS: Budgets = (1.0, 3.0, 10.0, 30.0, 100.0)  # FQL's alpha


@dataclass(frozen=True)
class UncentredPath(path.Path):
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
    "path_centred": path.Path(t_eps="auto"),
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


SETTINGS, FLOWS = "settings.json", "flows.safetensors"


def do(out: Path, name: str, method: str = "") -> None:
    settings = files.read_json(out / name / SETTINGS, lab.Sizes)
    seeds = settings.pop("seeds")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    sizes = lab.Sizes(**values)
    landscape = landscapes.get(name)
    if method:
        train(landscape, method, seeds, sizes, out / name)
    else:
        trees.save_tree(out / name / FLOWS, lab.fit(landscape, seeds, sizes))


def train(landscape: landscapes.Landscape, method: str, seeds: int, sizes: lab.Sizes, directory: Path) -> None:
    template = jax.eval_shape(lambda: lab.fit_template(landscape, seeds, sizes))
    flows = jax.tree.map(jax.numpy.asarray, trees.load_tree(directory / FLOWS, template))
    budgets, unit, run = METHODS[method]
    truth, more = run(landscape, flows, budgets, sizes)
    rows = lab.rows(landscape, method, unit, budgets, truth, **more)
    # The samples of the first seed at the budget whose true KL is nearest to one nat are drawn.
    distance = np.abs(np.log(np.maximum(np.asarray(truth.kl)[0], lab.FLOOR)))
    index = int(np.argmin(np.where(np.isfinite(distance), distance, np.inf)))
    drawn = next(row for row in rows if row["seed"] == 0 and row["budget"] == budgets[index])
    samples = np.asarray(truth.actions)[0, index, :1500].round(4)
    files.write_json(directory / f"{method}.json", {"rows": rows, "drawn": drawn, "samples": samples})


if __name__ == "__main__":
    compilation.enable()
    serve(lambda out: lambda job: do(Path(out), *job))
