"""Learning curves of several methods: one panel for each task, one line for each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from fidec.plots import COLOURS, INK, new_figure, save_figure, style_axes
from fidec.report.curves import mark_hand_over
from fidec.report.runs import SUCCESS

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--")
COLUMNS = 3  # panels side by side, at most


class Panel(NamedTuple):
    """The curves of one task: for each label the steps, and the scores of each run at these steps."""

    title: str
    unit: str
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]]
    hand_over: int = 0  # the step at which the online phase begins; 0 if there is none, or no offline phase
    online: bool = False


def common_curve(curves: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which all runs have a score, and the scores of each run."""
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return np.array(steps), np.array([[curve[step] for step in steps] for curve in curves])


def draw_panels(
    panels: Sequence[Panel], names: Mapping[str, str], path: str | Path, *, title: str, caption: str
) -> Path:
    """Write a PNG: a line for the mean over runs, a band for their range. `names` has the legend by label."""
    columns = min(len(panels), COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(6.0, 4.6 * columns), 3.6 * rows + 1.1)
    places = figure.subplots(rows, columns, squeeze=False)
    for place, panel in zip(places.flat, panels, strict=False):
        _draw(place, panel, list(names))
    for place in places.flat[len(panels) :]:
        place.set_visible(False)
    lines = {line.get_label(): line for place in places.flat for line in place.get_lines()}
    figure.suptitle(title, color=INK)
    figure.legend(
        [lines[label] for label in names],
        list(names.values()),
        title=caption,
        title_fontsize=8,
        fontsize=9,
        loc="outside lower center",
        ncols=5 if columns > 1 else 3,
        frameon=False,
    )
    return save_figure(figure, path)


def _draw(place: Axes, panel: Panel, labels: Sequence[str]) -> None:
    longest = max((steps.max(initial=0) for steps, _ in panel.curves.values()), default=0)
    unit, name = (1000, "thousand steps") if longest >= 2_000 else (1, "steps")
    for index, label in enumerate(labels):
        if label not in panel.curves:
            continue
        steps, scores = panel.curves[label]
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        marker = MARKERS[index % len(MARKERS)]
        place.fill_between(steps / unit, scores.min(0), scores.max(0), color=colour, alpha=0.15, linewidth=0)
        place.plot(
            steps / unit, scores.mean(0), color=colour, linestyle=dash, marker=marker, markersize=4, label=label
        )
    if panel.unit == SUCCESS:
        place.set_ylim(-4, 104)
    place.set_ylabel(panel.unit)
    place.set_xlabel(name)
    place.set_xlim(left=0)
    place.locator_params(axis="x", nbins=6)
    style_axes(place)
    place.set_title(panel.title, fontsize=9, pad=16 if panel.online else 6)
    if panel.hand_over:
        mark_hand_over(place, panel.hand_over / unit)
