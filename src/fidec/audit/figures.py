"""The result of an audit as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fidec.audit.text import number
from fidec.plots import BLUE, GREY, INK, ORANGE, new_figure, save_figure, style_axes


def draw(result: dict[str, Any], title: str, path: Path) -> None:
    """Four panels: KL of the states, KL against the penalty, direction of the displacement, distance to the data."""
    figure = new_figure(11, 7.4)
    panels = figure.subplots(2, 2)
    _draw_kl(panels[0, 0], result)
    _draw_penalty(panels[0, 1], result)
    _draw_direction(panels[1, 0], result)
    _draw_distances(panels[1, 1], result["neighbours"])
    for panel in panels.flat:
        style_axes(panel)
    figure.suptitle(title, color=INK)
    save_figure(figure, path)


def _draw_kl(panel: Axes, result: dict[str, Any]) -> None:
    kl = np.asarray(result["kl"]["of_each_state"], float)
    kl = kl[np.isfinite(kl)]
    panel.set(title="True KL from the behaviour flow", xlabel="KL of a state (nats)", ylabel="states")
    if not len(kl):
        _write(panel, "not finite at any state")
        return
    top = _top(kl, result["penalty"])
    beyond = int((kl > top).sum())
    edges = np.linspace(min(0.0, float(kl.min())), top, 33)
    panel.hist(np.minimum(kl, top), bins=edges.tolist(), color=BLUE, alpha=0.85)
    label = f"mean {number(kl.mean())}" + (f"; last bar: {beyond} beyond" if beyond else "")
    panel.axvline(kl.mean(), color=ORANGE, linewidth=2, label=label)
    if result["penalty"]["unit"] == "nats":
        _draw_budget(panel, result["penalty"]["budget"])
    panel.legend(frameon=False)


def _top(kl: np.ndarray, penalty: dict[str, Any]) -> float:
    """The largest KL that is drawn, so that a few large ones do not squeeze the others into one bar."""
    needed = 1.2 * penalty["budget"] if penalty["unit"] == "nats" else 1e-3
    return max(1.25 * float(np.percentile(kl, 98)), needed)


def _draw_budget(panel: Axes, budget: float) -> None:
    panel.axvline(budget, color=INK, linewidth=1.4, linestyle="--", label=f"budget {number(budget)}")


def _draw_penalty(panel: Axes, result: dict[str, Any]) -> None:
    """Does the penalty that training constrains order the states as their KL does?"""
    kl, penalty = (np.asarray(result[name]["of_each_state"], float) for name in ("kl", "penalty"))
    unit = "nats" if result["penalty"]["unit"] == "nats" else "its own unit"
    panel.set(title="Penalty of the training", xlabel=f"penalty of a state ({unit})", ylabel="KL of a state (nats)")
    used = np.isfinite(kl) & np.isfinite(penalty)
    if not used.any():
        _write(panel, "not finite at any state")
        return
    top = _top(kl[used], result["penalty"])
    for chosen, marker in ((used & (kl <= top), "o"), (used & (kl > top), "^")):
        panel.scatter(penalty[chosen], np.minimum(kl[chosen], top), s=14, color=BLUE, marker=marker, alpha=0.6)
    if penalty[used].min() > 0:
        panel.set_xscale("log")
    _draw_budget(panel, result["penalty"]["budget"])
    mean = penalty[used].mean()
    panel.axvline(mean, color=ORANGE, linewidth=2, label=f"mean {number(mean)}")
    panel.legend(framealpha=0.9, edgecolor="none")


def _draw_direction(panel: Axes, result: dict[str, Any]) -> None:
    counts, d = np.asarray(result["direction"]["cosine_histogram"]), result["action_dim"]
    panel.set(title="Direction of the displacement", xlabel="cosine with the score of the flow", ylabel="density")
    if not counts.sum():
        _write(panel, "no action is moved")
        return
    edges = np.linspace(-1, 1, len(counts) + 1)
    heights = counts / counts.sum() / np.diff(edges)
    panel.stairs(heights, edges, fill=True, color=BLUE, alpha=0.85, label="this policy")
    panel.set(ylim=(0, 1.3 * float(heights.max())))  # leaves room for the legend
    if d > 2:  # in two dimensions the density of a random direction is infinite at both ends
        x = np.linspace(-1, 1, 401)
        height = np.clip(1 - x**2, 0, None) ** ((d - 3) / 2)
        height /= np.sum(0.5 * (height[1:] + height[:-1]) * np.diff(x))
        panel.plot(x, height, color=INK, linestyle="--", linewidth=1.4, label=f"random direction, d = {d}")
    panel.legend(frameon=False, loc="upper right")


def _draw_distances(panel: Axes, near: dict[str, Any]) -> None:
    panel.set(title="Closest data action of similar states", xlabel="distance (bounds 2 apart)", ylabel="share below")
    if "skipped" in near:
        _write(panel, "no distances: " + near["skipped"])
        return
    # The dashed line is drawn last, so that it stays visible where two curves agree.
    styles = {
        "data": (GREY, "-", "logged actions"),
        "refined": (ORANGE, "-", "refined"),
        "base": (BLUE, "--", "base"),
    }
    for name, (colour, line, label) in styles.items():
        percentiles = near[name]["percentiles"]
        share = np.linspace(0, 1, len(percentiles))
        panel.plot(percentiles, share, color=colour, linestyle=line, linewidth=2, label=label)
    panel.set(ylim=(0, 1.02), xlim=(0, None))
    panel.legend(frameon=False, loc="lower right")


def _write(panel: Axes, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center", va="center", color=GREY, wrap=True, transform=panel.transAxes)
