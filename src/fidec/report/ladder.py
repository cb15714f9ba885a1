"""The figure of `fidec eval --ladder`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fidec.plots import COLOURS, GREY, INK, new_figure, save_figure, style_axes
from fidec.report.panels import MARKERS


def draw_ladder(result: dict[str, Any], path: str | Path) -> Path:
    """Write a PNG: success or return against the strength, one line for each noise, with 95 % intervals.

    Without a displacement it is drawn against the noise. `result` is that of `fidec.train.evaluation.ladder`.
    """
    cells, of = result["cells"], result["of"]
    figure = new_figure(7, 4.4)
    panel = figure.subplots()
    moved = result["against"] == "strength 0"
    axis, other = ("strength", "noise") if moved else ("noise", "strength")
    places = sorted({cell[axis] for cell in cells})
    lines = sorted({cell[other] for cell in cells})
    for number, value in enumerate(lines):
        row = [cell for cell in cells if cell[other] == value]
        x = np.array([cell[axis] for cell in row])
        mean, low, high = (
            np.array([cell["summary"][f"{of}{end}"] for cell in row], float) for end in ("", "_low", "_high")
        )
        panel.errorbar(
            x + (number - (len(lines) - 1) / 2) * _gap(places),  # so that the intervals do not hide each other
            mean,
            # One episode has no interval, and the mean of fractions may lie outside of Wilson's.
            yerr=np.maximum(np.nan_to_num([mean - low, high - mean]), 0.0),
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            linewidth=1.6,
            capsize=3,
            label=f"noise {value:g}" if moved else None,
        )
    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.set_xlabel(
        "strength of the displacement (0: base policy, 1: as trained)" if moved else "noise (1: as trained)"
    )
    panel.set_ylabel("success rate" if of == "success" else "return")
    if of == "success":
        panel.set_ylim(-0.03, 1.03)
    style_axes(panel)
    if moved:
        figure.legend(frameon=False, loc="outside right upper")  # beside the lines, never on them
    chosen = f", {result['candidates']} candidates" if result["candidates"] > 1 else ""
    panel.set_title(
        f"{result['algo']}, step {result['step']}{chosen}, on {result['environment']}", color=INK, fontsize=10
    )
    count = len(cells[0]["episodes"])
    figure.supxlabel(
        f"the same {count} episodes for every point; bars are 95 % intervals, drawn side by side",
        fontsize=8,
        color=GREY,
    )
    return save_figure(figure, path)


def _gap(places: list[float]) -> float:
    """The horizontal distance of two lines at one place: about a marker, and far less than a step between places."""
    return min(0.025 * (places[-1] - places[0]), 0.15 * min(np.diff(places), default=0.0))
