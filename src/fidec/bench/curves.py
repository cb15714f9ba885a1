"""The learning curves of a suite's runs: one panel per task, one line per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fidec.bench.scores import Run, check_same_data, units
from fidec.report.panels import Panel, common_curve, draw_panels


def draw_suite(runs: Sequence[Run], path: str | Path, title: str) -> Path:
    """Write a PNG of the runs' scores over their steps: a line for the mean over seeds, a band for their range."""
    check_same_data(runs)
    unit_of = units([], runs)
    labels = dict.fromkeys(run.job.variant.label for run in runs)
    panels = []
    for task in dict.fromkeys(run.job.task for run in runs):
        own = [run for run in runs if run.job.task == task]
        offline = max(run.job.plan.steps for run in own)
        by_label = {label: [run for run in own if run.job.variant.label == label] for label in labels}
        curves = {label: curve(each, offline) for label, each in by_label.items() if each}
        online = any(run.job.plan.online_steps for run in own)
        panels.append(Panel(task, unit_of[task], curves, offline if online else 0, online))
    names = {label: _name(label, runs) for label in labels}
    return draw_panels(panels, names, path, title=title, caption=caption(runs))


def curve(runs: Sequence[Run], offline: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the scores of each run at these steps.

    Runs without an offline phase begin where the online phase of the others begins, so that the same position means
    the same number of online steps for all methods.
    """
    steps, scores = common_curve([run.curve for run in runs])
    plan = runs[0].job.plan
    return steps + (offline if plan.online_steps and not plan.steps else 0), scores


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
