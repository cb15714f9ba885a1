"""A process that does jobs of the comparison: it fits the flows of a landscape, or trains one method on it.

`python -m fidec.geometry.job`, started by `fidec.geometry.experiment`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fidec import compilation
from fidec.geometry import frontier, lab, landscapes
from fidec.geometry.methods import METHODS
from fidec.launch import serve
from fidec.store import files, trees

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
    distance = np.abs(np.log(np.maximum(np.asarray(truth.kl)[0], frontier.FLOOR)))
    index = int(np.argmin(np.where(np.isfinite(distance), distance, np.inf)))
    drawn = next(row for row in rows if row["seed"] == 0 and row["budget"] == budgets[index])
    samples = np.asarray(truth.actions)[0, index, :1500].round(4)
    files.write_json(directory / f"{method}.json", {"rows": rows, "drawn": drawn, "samples": samples})


if __name__ == "__main__":
    compilation.enable()
    serve(lambda out: lambda job: do(Path(out), *job))
