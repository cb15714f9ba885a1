"""The style of all figures: one palette, one look of the axes, and files that are written atomically."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fidec.store import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE = "#222222", "#8a8f98", "#c9ccd1"  # text and rules
# Okabe and Ito's colours, which colour-blind readers can tell apart. Their yellow is left out: it is faint on white.
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"
BLACK = "#000000"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK)
# For a figure with more lines, which then differ in their markers too.
VIOLET, CRIMSON, OCHRE, OLIVE, TEAL = "#7b3294", "#b2182b", "#8c6d31", "#4d7f17", "#01665e"
SAND = ("#fbfaf7", "#e6e0d2", "#d0c4a2", "#b8a56f")  # shades behind the data, from low to high


def new_figure(width: float, height: float, dpi: int = 130) -> Figure:
    """A white figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout="constrained", facecolor="white")


def style_axes(panel: Axes) -> None:
    """A faint grid behind the data, and no frame at the top and right."""
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG, atomically, and return its path. The directory is created if need be."""
    path = Path(path)
    with files.writing(path, "the figure"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, lambda file: figure.savefig(file, format="png"))
    return path
