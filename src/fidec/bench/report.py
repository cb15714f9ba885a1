"""The HTML page and the learning curves of a suite's runs, finished or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fidec.bench import table
from fidec.bench.jobs import SuiteJob
from fidec.bench.scores import Run, check_same_data, units
from fidec.bench.suites import Scale
from fidec.errors import RunError
from fidec.report.compare import curves_chart
from fidec.report.page import Tables, report_runs


def write_page(jobs: Sequence[SuiteJob], scale: Scale | None, path: Path) -> Path:
    """Write the page of these jobs. It can be written again at any time, also while they go on."""
    started = [job.directory for job in jobs if (job.directory / "config.json").exists()]
    if not started:
        raise RunError(f"no run of {jobs[0].suite} has started: there is nothing to report")
    report = table.report(jobs, scale)
    tables = Tables(report.caption, table.grids(report)) if report.runs else None
    return report_runs(started, path, title=report.title, tables=tables)[0]


def draw_suite(runs: Sequence[Run], path: str | Path, title: str) -> Path:
    """Write a PNG of the runs' scores over their steps: a line for the mean over seeds, a band for their range."""
    from fidec.report.figures import draw_charts  # imports matplotlib

    check_same_data(runs)
    unit_of, charts = units([], runs), []
    labels = dict.fromkeys(run.job.variant.label for run in runs)
    for task in dict.fromkeys(run.job.task for run in runs):
        plans = [run.job.plan for run in runs if run.job.task == task]
        steps, online = max(plan.steps for plan in plans), max(plan.online_steps for plan in plans)
        curves = {
            _name(label, runs): [
                curve(run, steps) for run in runs if run.job.task == task and run.job.variant.label == label
            ]
            for label in labels
        }
        charts.append(curves_chart(task, {n: c for n, c in curves.items() if c}, unit_of[task], steps, online))
    return draw_charts(charts, path, title=title, caption=caption(runs))


def curve(run: Run, offline: int) -> dict[int, float]:
    """The scores of a run by their steps.

    A run without an offline phase begins where the online phase of the others begins, so that the same position means
    the same number of online steps for all methods.
    """
    plan = run.job.plan
    shift = offline if plan.online_steps and not plan.steps else 0
    return {step + shift: score for step, score in run.curve.items()}


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
