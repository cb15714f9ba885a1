"""How good is the time that `t_eps auto` chooses? Its frontier beside those of fixed times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fidec.algos.constraints.denoising import Denoising
from fidec.algos.constraints.stein import Stein
from fidec.geometry import frontier
from fidec.geometry.lab import Entry, Sizes
from fidec.plots import GREEN, INK, PURPLE, new_figure, save_figure, style_axes

TIMES = (0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
CONSTRAINTS = {"denoising": Denoising(t_eps="auto", samples=2), "stein": Stein(t_eps="auto")}
BUDGETS = (0.2, 0.7, 1.6)
AT = 1.0  # nats of true KL at which values are compared


def run(
    names: Sequence[str],
    *,
    seeds: int = 3,
    sizes: Sizes | None = None,
    flows_of: Callable[[str], Any] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """For each landscape and constraint: value at one nat by time, and what the calibrated time gives."""
    import jax
    import jax.numpy as jnp

    from fidec.geometry import lab, landscapes

    sizes = sizes or Sizes()
    rows = []
    for name in names:
        landscape = landscapes.get(name)
        flows = flows_of(name) if flows_of else lab.fit(landscape, seeds, sizes)
        flows = jax.tree.map(lambda leaf: leaf[:seeds], flows)
        data = float(landscape.value(landscape.sample(jax.random.key(0), 8192)).mean())
        for label, constraint in CONSTRAINTS.items():
            # One program for all times: each is a further set of seeds, with the same flows.
            many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * (1 + len(TIMES))), flows)
            times = jnp.concatenate([flows.t_eps, *(jnp.full(seeds, time) for time in TIMES)])
            maps = lab.train_maps(landscape, many._replace(t_eps=times), Entry(BUDGETS, constraint), sizes)
            truth = lab.measure_maps(landscape, maps, sizes)
            found: dict[str, float | None] = {}
            for i, time in enumerate(("auto", *TIMES)):
                own = jax.tree.map(lambda leaf: leaf[i * seeds : (i + 1) * seeds], truth)  # noqa: B023
                at = frontier.frontier_at(lab.rows(landscape, label, "nats", BUDGETS, own), AT)[label]
                found[str(time)] = at["value"][0] if at and at["n"] == seeds else None
            rows.append(_compare(name, label, data, np.asarray(flows.t_eps), found))
            report(f"{name}, {label}")
    return rows


def _compare(
    name: str, constraint: str, data: float, chosen: np.ndarray, found: dict[str, float | None]
) -> dict[str, Any]:
    fixed = {time: value for time, value in found.items() if time != "auto" and value is not None}
    best = max(fixed, key=fixed.__getitem__) if fixed else None
    auto = found["auto"]
    share = None if auto is None or best is None else auto / fixed[best]
    gain = None if auto is None or best is None else (auto - data) / (fixed[best] - data)
    return {
        "landscape": name,
        "constraint": constraint,
        "data": data,
        "chosen": [round(float(t), 4) for t in chosen],
        "value": found,
        "best": best,
        "share_of_value": share,
        "share_of_gain": gain,
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Value at one nat against 1 - t, a panel for each landscape; the calibrated choice as a star."""
    names = list(dict.fromkeys(row["landscape"] for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = new_figure(4.1 * columns, 3.3 * lines)
    panels = figure.subplots(lines, columns, squeeze=False)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    for panel, name in zip(panels.flat, names, strict=False):
        for row, colour, marker in zip(
            [row for row in rows if row["landscape"] == name], (GREEN, PURPLE), "hd", strict=False
        ):
            points = [(1 - float(t), v) for t, v in row["value"].items() if t != "auto" and v is not None]
            if points:
                panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=row["constraint"])
            if row["value"]["auto"] is not None:
                place = 1 - float(np.median(row["chosen"]))
                panel.plot(place, row["value"]["auto"], marker="*", markersize=15, color=colour, markeredgecolor="k")
        panel.axhline(row["data"], color=INK, linestyle="--", linewidth=1)
        panel.set(xscale="log", title=name, xlabel="1 - t", ylabel="value at 1 nat")
        panel.invert_xaxis()
        style_axes(panel)
    panels.flat[0].plot([], [], "k*", markersize=10, label="t_eps auto")
    panels.flat[0].legend(frameon=False, fontsize=9)
    return save_figure(figure, path)
