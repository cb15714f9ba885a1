"""The learning curves of a suite's runs: one panel per task, one line per method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fidec.bench.scores import SUCCESS, Run, check_same_data, units
from fidec.plots import COLOURS, INK, new_figure, save_figure, style_axes
from fidec.report.curves import mark_hand_over

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--")
COLUMNS = 3  # panels side by side, at most


def draw_suite(runs: Sequence[Run], path: str | Path, title: str) -> Path:
    """Write a PNG of the runs' scores over their steps: a line for the mean over seeds, a band for their range."""
    check_same_data(runs)
    unit_of = units([], runs)
    tasks = list(dict.fromkeys(run.job.task for run in runs))
    labels = list(dict.fromkeys(run.job.variant.label for run in runs))
    columns = min(len(tasks), COLUMNS)
    rows = math.ceil(len(tasks) / columns)
    figure = new_figure(max(6.0, 4.6 * columns), 3.6 * rows + 1.1)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel, task in zip(panels.flat, tasks, strict=False):
        _draw_task(panel, [run for run in runs if run.job.task == task], labels, unit_of[task])
        panel.set_title(task, fontsize=9, pad=16 if runs[0].job.plan.online_steps else 6)
    for panel in panels.flat[len(tasks) :]:
        panel.set_visible(False)
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.suptitle(title, color=INK)
    figure.legend(
        [lines[label] for label in labels],
        [_name(label, runs) for label in labels],
        title=caption(runs),
        title_fontsize=8,
        fontsize=9,
        loc="outside lower center",
        ncols=5 if columns > 1 else 3,
        frameon=False,
    )
    return save_figure(figure, path)


def _draw_task(panel: Axes, runs: Sequence[Run], labels: Sequence[str], unit: str) -> None:
    offline = max(run.job.plan.steps for run in runs)
    for index, label in enumerate(labels):
        own = [run for run in runs if run.job.variant.label == label]
        if not own:
            continue
        steps, scores = curve(own, offline)
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        marker = MARKERS[index % len(MARKERS)]
        panel.fill_between(steps / 1000, scores.min(0), scores.max(0), color=colour, alpha=0.15, linewidth=0)
        panel.plot(
            steps / 1000, scores.mean(0), color=colour, linestyle=dash, marker=marker, markersize=4, label=label
        )
    if unit == SUCCESS:
        panel.set_ylim(-4, 104)
    panel.set_ylabel(unit)
    panel.set_xlabel("thousand steps")
    panel.set_xlim(left=0)
    style_axes(panel)
    if offline and any(run.job.plan.online_steps for run in runs):
        mark_hand_over(panel, offline / 1000)


def curve(runs: Sequence[Run], offline: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the scores of each run at these steps.

    Runs without an offline phase begin where the online phase of the others begins, so that the same position means
    the same number of online steps for all methods.
    """
    steps = sorted(set.intersection(*(set(run.curve) for run in runs)))
    plan = runs[0].job.plan
    begin = offline if plan.online_steps and not plan.steps else 0
    return np.array(steps) + begin, np.array([[run.curve[step] for step in steps] for run in runs])


def _name(label: str, runs: Sequence[Run]) -> str:
    """A method in the legend, with a note if its curve is shifted."""
    plans = [run.job.plan for run in runs if run.job.variant.label == label]
    return f"{label} (no offline phase)" if any(plan.online_steps and not plan.steps for plan in plans) else label


def caption(runs: Sequence[Run]) -> str:
    """The meaning of lines, bands and points."""
    seeds = sorted({run.job.seed for run in runs})
    episodes = sorted({run.job.plan.eval_episodes for run in runs})
    points = f"A point is an evaluation of {' or '.join(map(str, episodes))} episodes."
    if len(seeds) == 1:
        return f"Seed {seeds[0]}. {points}"
    return f"Lines: mean over seeds {', '.join(map(str, seeds))}; bands: from the worst to the best seed. {points}"
