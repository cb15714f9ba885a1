"""Charts as PNG files, drawn with matplotlib: the curves of a run, and learning curves of several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from fidec.errors import RunError
from fidec.plots import COLOURS, INK, new_figure, save_figure, style_axes
from fidec.report.charts import Chart, Line, has_values, number
from fidec.report.runs import RunResults
from fidec.report.sections import run_charts

MARKERS, DASHES = ("o", "s", "^", "D", "v", "P", "X"), ("-", "--")
COLUMNS = 3  # panels side by side, at most
FEW = 40  # points of a line, each of which gets a marker


def draw_charts(drawn: Sequence[Chart], path: str | Path, *, title: str, caption: str = "") -> Path:
    """Write a PNG with a panel for each chart that has values.

    With a `caption` all panels share one legend, under it: a line of the same name looks the same in all panels.
    """
    drawn = [chart for chart in drawn if any(map(has_values, chart.lines))]
    columns = 2 if len(drawn) == 4 else min(max(len(drawn), 1), COLUMNS)
    rows = math.ceil(len(drawn) / columns) or 1
    figure = new_figure(max(6.0, 4.6 * columns), 3.6 * rows + 0.6)
    figure.suptitle(title, color=INK)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    names = list(dict.fromkeys(line.name for chart in drawn for line in chart.lines)) if caption else []
    for panel, chart in zip(panels, drawn, strict=False):
        _draw(panel, chart, names)
    for panel in panels[len(drawn) :]:
        panel.set_visible(False)
    if names:
        handles = {line.get_label(): line for panel in panels for line in panel.get_lines()}
        figure.legend(
            [handles[name] for name in names if name in handles],
            [name for name in names if name in handles],
            title=caption,
            title_fontsize=8,
            fontsize=9,
            loc="outside lower center",
            ncols=5 if columns > 1 else 3,
            frameon=False,
        )
    return save_figure(figure, path)


def _draw(panel: Axes, chart: Chart, names: Sequence[str]) -> None:
    """`names` is the order of the common legend; without it the panel has its own."""
    for index, line in enumerate(chart.lines):
        _draw_line(panel, line, names.index(line.name) if names else index)
    for name, value in chart.levels:
        panel.axhline(value, color=INK, linewidth=0.8, linestyle="--", label=name)
    for name, place in chart.marks:
        panel.axvline(place, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        panel.annotate(
            name, (place, 1.0), (4, -9), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8
        )
    panel.set(xlabel=chart.x_label, ylabel=chart.y_label)
    panel.set_title(chart.title, fontsize=10)
    panel.set_xlim(left=min(0.0, panel.get_xlim()[0]) if min(min(line.x) for line in chart.lines) < 0 else 0.0)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    panel.locator_params(axis="x", nbins=6)
    if chart.limits is not None:
        panel.set_ylim(chart.limits)
    if chart.log:
        panel.set_yscale("log")
    style_axes(panel)
    if not names and (len(chart.lines) > 1 or chart.levels or chart.lines[0].name != chart.y_label):
        panel.legend(frameon=False, fontsize=8)


def _draw_line(panel: Axes, line: Line, index: int) -> None:
    """A line with its band; a single point has a bar instead."""
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
    x, y = np.asarray(line.x, float), np.asarray(line.y, float)
    marker = MARKERS[index % len(MARKERS)] if len(x) <= FEW else ""
    panel.plot(x, y, color=colour, linestyle=dash, marker=marker, markersize=4, label=line.name)
    if line.low is None or line.high is None:
        return
    low, high = np.asarray(line.low, float), np.asarray(line.high, float)
    if len(x) == 1:
        panel.vlines(x, low, high, color=colour)
    else:
        panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def draw_run(directory: str | Path, path: str | Path) -> Path:
    """Write a PNG of one run, with the curves of its report."""
    run = RunResults(Path(directory))
    if not run.train:
        raise RunError(f"{directory} has no training metrics yet: nothing to draw")
    title = f"{run.config.algo} ({run.config.preset}) on {run.config.task or run.place}"
    return draw_charts(list(run_charts(run)), path, title=title)
