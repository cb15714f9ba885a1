"""Compare the time that `t_eps auto` chooses with fixed times: value at one nat of true KL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import compilation
from fidec.geometry import lab, landscapes
from fidec.geometry.methods import CONSTRAINTS
from fidec.plots import GREEN, INK, PURPLE, new_figure, save_figure, style_axes

TIMES = (0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
NAMES = ("denoising", "stein")
BUDGETS = (0.2, 0.7, 1.6)
AT = 1.0  # nats of true KL at which values are compared


def run(
    names: Sequence[str],
    *,
    seeds: int = 3,
    sizes: lab.Sizes | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """A row for each landscape and constraint: the value at one nat with the calibrated time and with fixed times."""
    compilation.enable()
    sizes = sizes or lab.Sizes()
    rows = []
    for name in names:
        landscape = landscapes.get(name)
        flows = lab.fit(landscape, seeds, sizes)
        data = float(landscape.value(landscape.sample(jax.random.key(0), 8192)).mean())
        # One program for all times: each time is a further set of seeds with the same flows.
        many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * (1 + len(TIMES))), flows)
        times = jnp.concatenate([flows.t_eps, *(jnp.full(seeds, time) for time in TIMES)])
        for constraint in NAMES:
            maps = lab.train_maps(landscape, many._replace(t_eps=times), CONSTRAINTS[constraint], BUDGETS, sizes)
            truth = lab.measure_maps(landscape, maps, sizes)
            values: dict[str, float | None] = {}
            for i, time in enumerate(("auto", *TIMES)):
                own = jax.tree.map(lambda leaf: leaf[i * seeds : (i + 1) * seeds], truth)  # noqa: B023
                at = lab.frontier_at(lab.rows(landscape, constraint, "nats", BUDGETS, own), AT)[constraint]
                values[str(time)] = at["value"][0] if at and at["n"] == seeds else None
            chosen = [round(float(t), 4) for t in flows.t_eps]
            rows.append({"landscape": name, "constraint": constraint, "chosen": chosen, **compare(data, values)})
            report(f"{name}, {constraint}")
    return rows


def compare(data: float, values: dict[str, float | None]) -> dict[str, Any]:
    """The best fixed time, and the share of its value and of its gain over the data that `auto` reaches."""
    fixed = {time: value for time, value in values.items() if time != "auto" and value is not None}
    auto, best = values["auto"], max(fixed, key=fixed.__getitem__) if fixed else None
    shares = {"share_of_value": None, "share_of_gain": None}
    if auto is not None and best is not None:
        shares = {"share_of_value": auto / fixed[best], "share_of_gain": (auto - data) / (fixed[best] - data)}
    return {"data": data, "value": values, "best": best, **shares}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Plot value at one nat against 1 - t, a panel for each landscape; a star marks the calibrated time."""
    names = list(dict.fromkeys(row["landscape"] for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = new_figure(4.1 * columns, 3.3 * lines)
    panels = figure.subplots(lines, columns, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    styles = dict(zip(NAMES, ((GREEN, "h"), (PURPLE, "d")), strict=True))
    for panel, name in zip(panels.flat, names, strict=False):
        for row in [row for row in rows if row["landscape"] == name]:
            colour, marker = styles[row["constraint"]]
            points = [(1 - float(t), v) for t, v in row["value"].items() if t != "auto" and v is not None]
            if points:
                panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["constraint"])
            if row["value"]["auto"] is not None:
                x = 1 - float(np.median(row["chosen"]))
                panel.plot(x, row["value"]["auto"], marker="*", markersize=15, color=colour, markeredgecolor="k")
        panel.axhline(row["data"], color=INK, linestyle="--", linewidth=1)
        panel.set(xscale="log", title=name, xlabel="1 - t", ylabel="value at 1 nat")
        panel.invert_xaxis()
        style_axes(panel)
    panels.flat[0].plot([], [], "k*", markersize=10, label="t_eps auto")
    panels.flat[0].legend(frameon=False, fontsize=9)
    return save_figure(figure, path)
