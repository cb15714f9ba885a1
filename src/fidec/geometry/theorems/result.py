"""The result of a check: a table, notes, measured numbers and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fidec.plots import INK, new_figure, save_figure, style_axes


@dataclass(frozen=True)
class Result:
    """`measured` holds every number that the notes mention. `plot` draws on `panels` axes."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]
    notes: list[str]
    measured: dict[str, float]
    plot: Callable[[Sequence[Axes]], None]
    panels: int = 2

    def as_dict(self) -> dict[str, Any]:
        """Everything but the plot, in JSON's types."""
        fields = ("name", "title", "columns", "rows", "notes", "measured")
        return {field: getattr(self, field) for field in fields}


def slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The exponent n of y = c x^n, by least squares in the logarithms."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])


def formatted(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """The cells of a table: three digits for numbers, a dash for None."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return [[cell(value) for value in row] for row in rows]


def draw(result: Result, path: str | Path) -> Path:
    """Write the plot as a PNG."""
    figure = new_figure(0.6 + 4.9 * result.panels, 4.3, dpi=150)
    axes = list(figure.subplots(1, result.panels, squeeze=False)[0])
    result.plot(axes)
    labels: list[str] = []
    for panel in axes:
        style_axes(panel)
        if panel.get_legend_handles_labels()[1] != labels:  # panels with the same curves share one legend
            labels = panel.get_legend_handles_labels()[1]
            panel.legend(frameon=False, fontsize=8)
    figure.suptitle(result.title, color=INK, fontsize=11)
    return save_figure(figure, path)
