"""What a check returns: a small table, sentences with measured figures, and one plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fidec.store.files import write_whole

# Okabe and Ito's colours, which stay apart for colour-blind readers, on white with dark ink.
INK, GREY = "#222222", "#8a8f98"
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7"

Tick = Callable[[], None]


@dataclass(frozen=True)
class Result:
    """`plot` draws on `panels` axes. `measured` holds the slopes and constants that the notes speak of."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]
    notes: list[str]
    measured: dict[str, float]
    plot: Callable[[Sequence[Axes]], None]
    panels: int = 1

    def as_dict(self) -> dict[str, Any]:
        """All but the plot, in JSON's types."""
        fields = ("name", "title", "columns", "rows", "notes", "measured")
        return {field: getattr(self, field) for field in fields}


def no_tick() -> None:
    """Nobody watches."""


def slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The exponent n of y = c x^n, by least squares in the logarithms."""
    return float(np.polyfit(np.log(np.asarray(x)), np.log(np.asarray(y)), 1)[0])


def formatted(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Cells for a table: numbers with three digits, a dash where there is none."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    return [[cell(value) for value in row] for row in rows]


def draw(result: Result, path: str | Path) -> Path:
    """Write the plot as a PNG."""
    figure = Figure(figsize=(0.6 + 4.9 * result.panels, 4.3), dpi=150, layout="constrained", facecolor="white")
    axes = list(figure.subplots(1, result.panels, squeeze=False)[0])
    result.plot(axes)
    labels: list[str] = []
    for panel in axes:
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        if panel.get_legend_handles_labels()[1] != labels:  # one legend for panels that share their curves
            labels = panel.get_legend_handles_labels()[1]
            panel.legend(frameon=False, fontsize=8)
    figure.suptitle(result.title, color=INK, fontsize=11)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: figure.savefig(file, format="png"))
    return path
