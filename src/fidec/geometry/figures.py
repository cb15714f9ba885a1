"""Figures of the laboratory: where refined samples lie, and the value they gain against the true KL they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, PercentFormatter
from PIL import Image

from fidec.geometry.frontier import FLOOR, Row
from fidec.geometry.landscapes import OFF_SUPPORT, Landscape
from fidec.plots import BLUE, GREY, INK, RED
from fidec.store import files

SHADES = LinearSegmentedColormap.from_list("muted", ["#fbfaf7", "#e6e0d2", "#d0c4a2", "#b8a56f"])
NATS = (0.5, 1.0, 2.0)

# Colours of Okabe and Ito, darkened where a line on white asks for it; the markers say the same without colour.
STYLES = {
    "fql": ("FQL, one step", "#7a7a7a", "X"),
    "isotropic": ("isotropic (DeFlow)", "#e69f00", "s"),
    "local": ("local (the paper)", "#c4609a", "v"),
    "velocity": ("velocity", "#d55e00", "^"),
    "averaged": ("averaged", "#56b4e9", "D"),
    "renoised": ("renoised", "#0072b2", "P"),
    "stein": ("stein", "#009e73", "h"),
    "path": ("path", "#111111", "o"),
    "path_centred": ("path, centred", "#7b3294", "<"),
    "denoising": ("denoising", "#b2182b", "*"),
    "closed_form": ("closed form, one step", "#8c6d31", "p"),
    "closed_form_10": ("closed form, ten steps", "#4d7f17", "d"),
}
SPARE = (("#35978f", ">"), ("#5a5a9c", "H"), ("#a6761d", "8"), ("#1b7837", "4"))


def style(method: str, methods: Iterable[str]) -> tuple[str, str, str]:
    """(label, colour, marker): fixed for the known methods, from a cycle for the others in their order."""
    if method in STYLES:
        return STYLES[method]
    others = [name for name in dict.fromkeys(methods) if name not in STYLES]
    return method.replace("_", " "), *SPARE[others.index(method) % len(SPARE)]


def draw_samples(
    landscape: Landscape, samples: Mapping[str, np.ndarray], captions: Mapping[str, str], path: str | Path
) -> Path:
    """One panel for the data and one per method: value as shading, the support's edge, the samples as dots.

    `samples` maps "data" and method names to arrays (n, 2). Samples off the support have another colour.
    """
    names = sorted(samples, key=lambda name: name != "data")
    columns = math.ceil(math.sqrt(len(names)))
    rows = math.ceil(len(names) / columns)
    size = (3.3 * columns + 0.9, 3.62 * rows + 1.1)
    figure = Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    reach = max(np.percentile(np.abs(found[np.isfinite(found)]), 99.5) for found in map(np.asarray, samples.values()))
    limit = float(np.clip(1.05 * reach, 1.1, 1.6))
    ground = _Ground(landscape, limit)
    for panel, name in zip(panels.flat, names, strict=False):
        shading = ground.draw(panel)
        _draw_dots(panel, landscape, np.asarray(samples[name], np.float32), limit)
        title = "data" if name == "data" else style(name, names)[0]
        panel.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=19)
        panel.text(0, 1.022, captions.get(name, ""), transform=panel.transAxes, fontsize=10.5, color=INK)
    for panel in panels.flat[len(names) :]:
        panel.set_visible(False)
    bar = figure.colorbar(shading, ax=panels, shrink=0.5 if rows > 1 else 0.8, aspect=28, pad=0.015)
    bar.set_label("value of the action", color=INK, fontsize=11)
    bar.outline.set_visible(False)  # type: ignore[operator]
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=6, linestyle="none", label="sample on the support"),
        Line2D([], [], color=RED, marker="o", markersize=6, linestyle="none", label="sample off the support"),
        Line2D([], [], color=INK, linewidth=1.2, label=f"edge of the support ({OFF_SUPPORT:g} sd)"),
        Line2D([], [], color=INK, linewidth=1.0, linestyle=":", label="densest half of the data"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, 2 * columns), frameon=False, fontsize=11)
    for panel in panels[-1]:
        panel.set_xlabel("action, first dimension", color=GREY)
    for panel in panels[:, 0]:
        panel.set_ylabel("action, second dimension", color=GREY)
    return _save(figure, landscape, path)


class _Ground:
    """What every panel shares, computed once: the value, the support and the data's density on a grid."""

    def __init__(self, landscape: Landscape, limit: float):
        line = np.linspace(-limit, limit, 181, dtype=np.float32)
        grid = jnp.asarray(np.stack(np.meshgrid(line, line), -1))
        self.line, self.limit = line, limit

        @jax.jit
        def fields(key: jax.Array) -> tuple[jax.Array, ...]:
            half = jnp.median(landscape.log_density(landscape.sample(key, 4000)))
            return landscape.value(grid), landscape.distance(grid), landscape.log_density(grid), half

        self.value, self.distance, self.density, half = (np.asarray(x) for x in fields(jax.random.key(0)))
        self.half = float(half)

    def draw(self, panel: Axes):
        levels = MaxNLocator(12, steps=[1, 2, 5, 10]).tick_values(self.value.min(), self.value.max())
        shading = panel.contourf(self.line, self.line, self.value, levels=levels, cmap=SHADES)
        panel.contour(self.line, self.line, self.value, levels=levels, colors="white", linewidths=0.5)
        for field, level, width, dashes in (
            (self.distance, OFF_SUPPORT, 1.2, "-"),
            (self.density, self.half, 1.0, ":"),
        ):
            lines = panel.contour(self.line, self.line, field, levels=[level], colors=INK, linewidths=width, zorder=4)
            lines.set(linestyle=dashes)
        panel.set(
            xlim=(-self.limit, self.limit), ylim=(-self.limit, self.limit), xticks=(-1, 0, 1), yticks=(-1, 0, 1)
        )
        panel.set_aspect("equal")
        panel.tick_params(labelsize=9, colors=GREY, length=2)
        for spine in panel.spines.values():
            spine.set(color=GREY, linewidth=0.6)
        return shading


def _draw_dots(panel: Axes, landscape: Landscape, points: np.ndarray, limit: float, most: int = 1200) -> None:
    points = points[:most]
    off = np.asarray(jax.jit(landscape.off_support)(points))
    for part, colour, size in ((points[~off], BLUE, 5), (points[off], RED, 9)):
        panel.scatter(*part.T, s=size, color=colour, alpha=0.55, linewidths=0, zorder=3)
    outside = np.mean(~(np.abs(points) <= limit).all(-1))  # written so that NaN counts as outside
    if outside > 0:
        text = f"{100 * outside:.1f} % outside the frame"
        panel.text(0.98, 0.02, text, transform=panel.transAxes, ha="right", fontsize=9, color=RED)


def draw_frontier(landscape: Landscape, rows: Iterable[Row], path: str | Path) -> Path:
    """Value, and mass off the support, against true KL: a line per method over its budgets, a dot per run.

    A line goes through the mean value and the geometric mean of KL over seeds, budget by budget. The row of
    method "data" gives the dashed line. Runs without a finite KL are counted in the legend, not drawn.
    """
    rows = list(rows)
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "data"))
    methods.sort(key=lambda method: list(STYLES).index(method) if method in STYLES else len(STYLES))
    data = [row for row in rows if row["method"] == "data"]
    figure = Figure(figsize=(12.5, 5.2), dpi=130, layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2)
    handles = [_draw_method(panels, rows, method, methods) for method in methods]
    rule = None
    for panel, quantity in zip(panels, ("value", "off"), strict=True):
        if data:
            level = float(np.mean([row[quantity] for row in data]))
            rule = panel.axhline(level, color=INK, linestyle="--", linewidth=1.1, label="data")
        for kl in NATS:
            panel.axvline(kl, color="#c9ccd1", linewidth=0.9, zorder=0)
            place = panel.get_xaxis_transform()
            panel.text(kl, 1.005, f"{kl:g}", transform=place, ha="center", va="bottom", fontsize=9.5, color=GREY)
        panel.set(xscale="log", xlim=_range([row["kl"] for row in rows if row["method"] != "data"]))
        panel.set_xlabel("true KL from the data (nats)", color=INK, fontsize=12)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panel.tick_params(labelsize=10.5)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.25, linewidth=0.6)
    panels[0].set_title("Value", loc="left", fontsize=13, color=INK, pad=20)
    panels[1].set_title("Mass off the support", loc="left", fontsize=13, color=INK, pad=20)
    # A square-root axis: the difference between 0 and 5 % matters more than that between 80 and 90 %.
    panels[1].set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    panels[1].set_ylim(0, None)
    panels[1].yaxis.set_major_locator(FixedLocator([0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1]))
    panels[1].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    figure.legend(
        handles=[*handles, *([rule] if rule else [])],
        loc="outside right center",
        frameon=False,
        fontsize=11.5,
        handlelength=2.4,
    )
    return _save(figure, landscape, path)


def _range(kl: list[float]) -> tuple[float, float]:
    """Limits around the finite values, no wider than 0.01 to 300 nats and never without NATS."""
    finite = [x for x in kl if np.isfinite(x)] or [1.0]
    return min(max(min(finite) / 1.4, 0.01), NATS[0] / 1.4), max(min(1.4 * max(finite), 300.0), 1.4 * NATS[-1])


def _draw_method(panels: np.ndarray, rows: list[Row], method: str, methods: list[str]) -> Line2D:
    label, colour, marker = style(method, methods)
    runs = [row for row in rows if row["method"] == method]
    finite = [row for row in runs if np.isfinite([row["kl"], row["value"]]).all()]
    if len(finite) < len(runs):
        label += f"\n(not finite: {len(runs) - len(finite)} of {len(runs)} runs)"
    by_budget = [[row for row in finite if row["budget"] == b] for b in sorted({row["budget"] for row in finite})]
    kl = [np.exp(np.mean([np.log(max(row["kl"], FLOOR)) for row in group])) for group in by_budget]
    for panel, quantity in zip(panels, ("value", "off"), strict=True):
        mean = [np.mean([row[quantity] for row in group]) for group in by_budget]
        panel.plot(
            kl,
            mean,
            color=colour,
            marker=marker,
            markersize=6.5,
            linewidth=1.8,
            markeredgecolor="white",
            markeredgewidth=0.5,
        )
        each = np.asarray([(max(row["kl"], FLOOR), row[quantity]) for row in finite]).reshape(-1, 2)
        panel.scatter(*each.T, s=7, color=colour, alpha=0.45, linewidths=0)
    return Line2D(
        [], [], color=colour, marker=marker, markersize=7, markeredgecolor="white", markeredgewidth=0.5, label=label
    )


def _save(figure: Figure, landscape: Landscape, path: str | Path) -> Path:
    figure.suptitle(landscape.title, color=INK, fontsize=15)
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    # A palette: thousands of dots over shading make a file several times as large in full colour.
    few = Image.open(picture).convert("RGB").quantize(200, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    files.write_whole(path, lambda file: few.save(file, format="png", optimize=True))
    return path
