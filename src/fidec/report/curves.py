"""The figure of one run, read from its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from fidec.errors import RunError
from fidec.plots import BLUE, GREEN, GREY, INK, ORANGE, new_figure, save_figure, style_axes
from fidec.store.rundir import RunDirectory
from fidec.train.stored import read_config


def draw_curves(run: str | Path, path: str | Path, comparison: dict[str, Any] | None = None) -> Path:
    """Write a PNG with four panels: success (or the return without it), the trust region, values and losses.

    In a run with an online phase each panel marks its beginning, and the first also shows the exploration episodes.
    `comparison` is the output of `fidec eval --json`: it adds the policy, with `--base` also the base policy, with
    their intervals, at the last step.
    """
    directory = RunDirectory.open(run, read_only=True)
    train, evaluations = directory.read_jsonl("train"), directory.read_jsonl("eval")
    if not train:
        raise RunError(f"{run} has no training metrics yet: nothing to draw")
    config = directory.read_config()
    figure = new_figure(11, 7)
    panels = figure.subplots(2, 2)
    steps = np.array([row["step"] for row in train]) / 1000
    marker = "." if len(train) < 5 else ""  # a line with few points needs markers

    def series(name: str, group: str = "training") -> np.ndarray:
        return np.array([row.get(f"{group}/{name}", np.nan) for row in train], float)

    explored = {name: series(name, "exploration") for name in ("success", "return")}
    of = _measure(evaluations, comparison, explored)
    _draw_evaluations(panels[0, 0], of, evaluations, comparison)
    _draw_exploration(panels[0, 0], steps, explored[of])
    _draw_legend(panels[0, 0], "upper left" if of == "success" else "best")
    options = read_config(directory).options
    region = options.trust_region() if hasattr(options, "trust_region") else None
    _draw_trust_region(panels[0, 1], steps, series("penalty"), series("multiplier"), region, marker)

    def draw(panel: Axes, *lines: tuple[str, str, str]) -> None:
        """The metrics that the method has logged: (name, colour, label)."""
        logged = [line for line in lines if np.isfinite(series(line[0])).any()]
        for name, colour, label in logged:
            panel.plot(steps, series(name), color=colour, marker=marker, label=label)
        if logged:
            panel.legend(frameon=False)

    draw(panels[1, 0], ("q_data", GREY, "data's actions"), ("q_policy", BLUE, "policy's actions"))
    panels[1, 0].set(title="Value Q", ylabel="mean Q")
    draw(panels[1, 1], ("critic_loss", BLUE, "critic"), ("flow_loss", ORANGE, "flow matching"))
    panels[1, 1].set(title="Losses", yscale="log")
    online = config.get("online_steps", 0)
    for panel in panels.flat:
        panel.set(xlabel="thousand steps" if online else "thousand updates", xlim=(0, 1.04 * steps[-1]))
        if online and config.get("steps"):
            mark_hand_over(panel, config["steps"] / 1000)
            panel.set_title(panel.get_title(), pad=16)  # above the names of the phases
        style_axes(panel)
    place = config.get("task") or config.get("env") or config.get("data") or "arrays"
    figure.suptitle(f"{config.get('algo')} ({config.get('preset')}) on {place}", color=INK)
    return save_figure(figure, path)


def _measure(
    evaluations: list[dict], comparison: dict[str, Any] | None, explored: dict[str, np.ndarray]
) -> Literal["success", "return"]:
    """What the first panel shows: the return if there are only returns."""

    def known(name: str) -> bool:
        rows = [row.get(f"evaluation/{name}") for row in evaluations]
        rows += [(comparison or {}).get(kind, {}).get(name) for kind in ("base", "refined", "policy")]
        return any(value is not None for value in rows) or bool(np.isfinite(explored[name]).any())

    return "return" if known("return") and not known("success") else "success"


def _draw_evaluations(panel: Axes, of: str, evaluations: list[dict], comparison: dict[str, Any] | None) -> None:
    if of == "success":
        panel.set(title="Success, with 95 % intervals", ylim=(-0.03, 1.03), ylabel="success rate")
    else:
        panel.set(title="Return, with 95 % intervals", ylabel="return")
    known = [row for row in evaluations if row.get(f"evaluation/{of}") is not None]
    if known:
        steps = np.array([row["step"] for row in known]) / 1000
        mean, low, high = (
            np.array([row[f"evaluation/{of}{end}"] for row in known], float) for end in ("", "_low", "_high")
        )
        count = known[-1]["evaluation/n"]
        panel.errorbar(
            steps,
            mean,
            yerr=[mean - low, high - mean],
            color=BLUE,
            marker="o",
            markersize=4,
            capsize=3,
            label=f"during training ({count} episodes)",
        )
    for kind, colour, marker in (("base", GREY, "s"), ("refined", ORANGE, "D"), ("policy", ORANGE, "D")):
        summary = (comparison or {}).get(kind)
        if not summary or summary[of] is None:
            continue
        mean, low, high = (np.array([summary[f"{of}{end}"]], float) for end in ("", "_low", "_high"))
        panel.errorbar(
            [comparison["step"] / 1000],  # type: ignore[index]
            mean,
            yerr=[mean - low, high - mean],
            color=colour,
            marker=marker,
            capsize=4,
            linestyle="none",
            label=f"{'' if kind == 'policy' else f'{kind} '}policy ({summary['n']} episodes)",
        )


def _draw_exploration(panel: Axes, steps: np.ndarray, values: np.ndarray) -> None:
    """The exploration episodes, without intervals in which none ended, so that the line is not interrupted."""
    known = np.isfinite(values)
    if known.any():
        panel.plot(steps[known], values[known], color=GREEN, linewidth=1, marker=".", label="exploring")


def _draw_legend(panel: Axes, place: Literal["upper left", "best"]) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, loc=place)
    else:
        panel.text(0.5, 0.5, "not evaluated", ha="center", color=GREY, transform=panel.transAxes)


def mark_hand_over(panel: Axes, place: float) -> None:
    """A line where the offline phase ends and the online phase begins, with the names of the phases."""
    panel.axvline(place, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for word, side, shift in (("offline", "right", -4), ("online", "left", 4)):
        panel.annotate(
            word,
            (place, 1.0),
            (shift, 2),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=8,
            color=INK,
        )


def _draw_trust_region(
    panel: Axes,
    steps: np.ndarray,
    penalty: np.ndarray,
    multiplier: np.ndarray,
    region: tuple[float, str] | None,
    marker: str,
) -> None:
    """`region` is the budget and its unit."""
    panel.plot(steps, penalty, color=BLUE, marker=marker, label="penalty")
    if region is not None:
        panel.axhline(region[0], color=INK, linewidth=0.8, linestyle="--", label="budget")
    unit = " in nats" if region is not None and region[1] == "nats" else ""
    panel.set(title="Trust region", yscale="log", ylabel=f"penalty{unit}")
    handles = [*panel.get_lines()]
    if np.isfinite(multiplier).any():  # not every method has one
        handles += _draw_multiplier(panel, steps, multiplier, marker)
    panel.legend(handles, [str(h.get_label()) for h in handles], frameon=False, loc="center right")


def _draw_multiplier(panel: Axes, steps: np.ndarray, multiplier: np.ndarray, marker: str) -> list[Any]:
    right = panel.twinx()
    right.plot(steps, multiplier, color=ORANGE, marker=marker, label="multiplier (right)")
    right.set(ylim=(0, 1.15 * float(np.nanmax(multiplier)) or 1), ylabel="multiplier")
    right.spines[["top"]].set_visible(False)
    return [*right.get_lines()]
