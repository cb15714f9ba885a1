"""The table of a suite's finished runs as Markdown, TeX, CSV or JSON.

There is one table for each category, with methods as columns and `ours (paper)` in the cells. A suite with one task
has a comparison of single runs with the time of an update instead.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fidec import tasks
from fidec.bench import scores
from fidec.bench.jobs import Job
from fidec.bench.scores import Data, Line, Run
from fidec.bench.suite import Scale, Suite, published_plan
from fidec.errors import ConfigError, FidecError, RunError
from fidec.report import table as run_table
from fidec.report.tex import escape, tabular
from fidec.stats import Estimate
from fidec.store import files
from fidec.tasks import Reported

NONE = "–"


class Report(NamedTuple):
    """The content of a suite's table."""

    title: str
    caption: str
    lines: list[Line]
    data: dict[str, Data]  # by task
    baseline: str


def render(jobs: Sequence[Job], scale: Scale | None, out: Path, form: str, baseline: str = "") -> str:
    """The table as text in one of the formats md, tex, csv and json."""
    if len(jobs[0].suite.tasks) == 1:
        return _comparison([job for job in jobs if _is_done(job)], jobs[0].suite, out, form)
    runs = finished(jobs)
    report = _report(jobs, runs, scale, baseline)
    if form == "json":
        return json.dumps(_json(report, runs, scale), indent=2, allow_nan=False)
    return {"md": _markdown, "tex": _tex, "csv": _csv}[form](report)


def title(suite: Suite, scale: Scale | None) -> str:
    return f"Suite {suite.name}" + (f" at scale {scale.name}" if scale and suite.scale is None else "")


# --- runs and numbers ---------------------------------------------------------------------------------------------


def _is_done(job: Job) -> bool:
    """Whether its run is finished, on any data. A run with another configuration is left out with a message."""
    try:
        return job.state(any_data=True) == "done"
    except FidecError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False


def finished(jobs: Sequence[Job]) -> list[Run]:
    """The runs that are finished and have their scores. Others are left out with a message."""
    runs = []
    for job in jobs:
        try:
            runs += [scores.read_run(job)] if _is_done(job) else []
        except RunError as error:
            print(f"left out: {error}", file=sys.stderr)
    return runs


def _report(jobs: Sequence[Job], runs: Sequence[Run], scale: Scale | None, baseline: str) -> Report:
    labels = dict.fromkeys(job.variant.label for job in jobs)
    if baseline and baseline not in labels:
        raise ConfigError(f"--baseline {baseline}: the table has {', '.join(labels)}")
    baseline = baseline or ("fql" if "fql" in labels else "deflow" if "deflow" in labels else next(iter(labels)))
    return Report(
        title(jobs[0].suite, scale),
        _caption(jobs[0].suite, runs, scale),
        scores.summarise(jobs, runs, baseline),
        {run.job.task: run.data for run in runs},
        baseline,
    )


# --- the caption ----------------------------------------------------------------------------------------------------


def _caption(suite: Suite, runs: Sequence[Run], scale: Scale | None) -> str:
    online = suite.setting == "online"
    if not runs:
        phases = " before → after the online phase" if online else ""
        return f"No run of ours is finished yet. Cells: ours (the paper's{phases})."
    seeds = sorted({run.job.seed for run in runs})
    kinds = sorted({run.data.kind for run in runs})
    count = len({run.job.task for run in runs})
    cells = "Cells: ours, before → after the online phase" if online else "Cells: ours"
    after = ", after the online phase" if online else ""
    parts = [
        _protocol(runs, scale),
        f"Data {' and '.join(kinds)}{', not the official files' * (kinds == ['regenerated'])}.",
        f"{count} of the suite's {len(suite.tasks)} tasks have runs; seeds {_numbers(seeds)}; {_length(runs)}.",
        _score_rule(runs),
        f"{cells}, mean ± std over seeds" + (" (the paper's in brackets)." if _has_reported(runs) else "."),
        *_notes(runs),
        f"IQM: interquartile mean over tasks and seeds{after}. Intervals: 95 %, stratified bootstrap over seeds."
        if len(seeds) > 1
        else f"IQM: interquartile mean over tasks{after}. One seed has no spread and no interval.",
    ]
    return " ".join(parts)


def _notes(runs: Sequence[Run]) -> list[str]:
    """What a reader has to know about the environments."""
    if not any((row := tasks.find(run.job.task)) and row.benchmark == "d4rl" for run in runs):
        return []
    from fidec.envs.families.d4rl import note

    return [f"{note()}."]


def _in_benchmark(runs: Sequence[Run]) -> bool:
    return any(run.job.suite_task.id is not None for run in runs)


def _has_reported(runs: Sequence[Run]) -> bool:
    return any(run.job.variant.reported(run.job.task, run.job.suite.setting) for run in runs)


def _length(runs: Sequence[Run]) -> str:
    plans = [run.job.plan for run in runs]
    offline = _numbers(sorted({plan.steps for plan in plans if plan.steps}))
    online = _numbers(sorted({plan.online_steps for plan in plans if plan.online_steps}))
    if not online:
        return f"{offline} steps"
    without = sorted({run.job.variant.label for run in runs if not run.job.plan.steps})
    phases = f"{offline} offline + {online} online steps" if offline else f"{online} online steps"
    return phases + (f", {' and '.join(without)} without an offline phase" if without and offline else "")


def _score_rule(runs: Sequence[Run]) -> str:
    plans = [run.job.plan for run in runs]
    episodes = _numbers(sorted({plan.eval_episodes for plan in plans}))
    if any(plan.online_steps for plan in plans):
        return (
            "Score: as published, single evaluations at the end of the offline phase (before) and at the end of the "
            f"run (after), of {episodes} episodes each, in percent."
        )
    counts = sorted({len(plan.averaged) for plan in plans})
    averaged = " or ".join("the last evaluation" if n == 1 else f"the last {n} evaluations" for n in counts)
    unit = "in percent" if _in_benchmark(runs) else "success in percent, or the return where there is no success"
    return f"Score: mean of {averaged} of {episodes} episodes, {unit}."


def _protocol(runs: Sequence[Run], scale: Scale | None) -> str:
    """Whether the runs follow the published protocol. A user's own tasks have none."""
    plans = [run.job.plan for run in runs]
    if scale is not None and not _in_benchmark(runs):
        return f"Size: {scale.summary}."
    if scale is not None:
        own = all(plan == scale.plan() for plan in plans)
        how = f"Reduced scale ({scale.summary if own else scale.summary.replace(f'{scale.steps:,} steps', 'steps')})"
    else:
        rows = [tasks.find(run.job.task, run.job.suite.setting) for run in runs]
        published = [published_plan(row, run.job.variant.method) for row, run in zip(rows, runs, strict=True) if row]
        if plans == published:
            return "The published protocol."
        longer = any(plan.total > other.total for plan, other in zip(plans, published, strict=False))
        how = f"{'Another length' if longer else 'Shortened'}: {_length(runs)}"
    orientation = ": the paper's numbers are for orientation only" if _has_reported(runs) else ""
    return f"{how}, not the published protocol{orientation}."


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


# --- cells ----------------------------------------------------------------------------------------------------------


def _grids(report: Report) -> list[tuple[str, list[list[str]]]]:
    """Title and rows of one table for each category, one for all tasks, and one for the data."""
    grids = []
    for category in dict.fromkeys(line.category for line in report.lines):
        lines = [line for line in report.lines if line.category == category]
        methods = list(dict.fromkeys(line.method for line in lines))
        rows = [["task", *methods]]
        for task in dict.fromkeys(line.task for line in lines if line.task):
            own = {line.method: line for line in lines if line.task == task}
            runs = max(line.runs for line in own.values())
            notes = {m: f"n={line.runs}" if line.runs < runs else "" for m, line in own.items()}
            rows.append([task, *(_score(own[method], notes[method]) for method in methods)])
        total = {line.method: line for line in lines if not line.task}
        if len(rows) != 2 or any(line.runs for line in total.values()):  # else it would repeat the paper's one number
            rows += _totals([total[method] for method in methods], report.baseline)
        grids.append(("All tasks" if category == "all" else category, rows))
    if report.data:
        rows = [[d.name, d.kind, f"{d.rows:,}", d.sha256[:12]] for d in dict.fromkeys(report.data.values())]
        grids.append(("Data", [["data", "origin", "transitions", "SHA-256"], *rows]))
    return grids


def _totals(lines: Sequence[Line], baseline: str) -> list[list[str]]:
    """Mean, interquartile mean and probability of improvement. Rows that would repeat a single run are left out."""
    count, rows = max(line.tasks for line in lines), []
    if count == 0:
        return [["mean", *(_score(line, "") for line in lines)]]
    if count > 1:
        notes = [f"{line.tasks} of {count} tasks" if line.tasks < count else "" for line in lines]
        rows.append([f"mean of {count} tasks", *map(_score, lines, notes)])
    if any(line.runs > 1 for line in lines):
        rows.append(["IQM", *(_estimate(line.iqm, "{:.1f}") for line in lines)])
    if any(line.better for line in lines):
        rows.append([f"P(better than {baseline})", *(_estimate(line.better, "{:.2f}") for line in lines)])
    return rows


def _score(line: Line, note: str) -> str:
    """`ours (paper)`, with a note if fewer runs or tasks are in it than in others."""
    ours = NONE
    if line.mean is not None:
        before = f"{_mean(line.before, line.before_std)} → " if line.before is not None else ""
        ours = before + _mean(line.mean, line.std) + (f" [{note}]" if note else "")
    paper = _paper(line.paper)
    return f"{ours} ({paper})" if paper else ours


def _mean(mean: float, std: float | None) -> str:
    return f"{mean:.1f}" + (f" ± {std:.1f}" if std is not None else "")


def _paper(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, Reported):
        return " → ".join(_paper(each) for each in value)
    mean = f"{value.mean:.0f}" if value.mean == round(value.mean) else f"{value.mean:.1f}"
    return mean if value.std is None else f"{mean} ± {value.std:.0f}"


def _estimate(estimate: Estimate | None, form: str) -> str:
    if estimate is None:
        return NONE
    value = form.format(estimate.value)
    if not math.isfinite(estimate.low):
        return value
    return f"{value} [{form.format(estimate.low)}, {form.format(estimate.high)}]"


# --- formats --------------------------------------------------------------------------------------------------------


def _markdown(report: Report) -> str:
    parts = [f"**{report.title}.** {report.caption}"]
    return "\n\n".join([*parts, *(f"### {head}\n\n{run_table.markdown(rows)}" for head, rows in _grids(report))])


def _tex(report: Report) -> str:
    """One `table` each, for a document that uses the package booktabs."""
    parts = []
    for head, rows in _grids(report):
        caption = escape(f"{report.title}: {head}. {report.caption}")
        parts.append(f"\\begin{{table}}\n\\centering\\small\n\\caption{{{caption}}}\n{tabular(rows)}\n\\end{{table}}")
    return "\n\n".join(parts)


def _csv(report: Report) -> str:
    """One row for each line of the table, with the data of its task."""
    rows = []
    for line in report.lines:
        data = report.data.get(line.task)
        facts = (data.kind, data.rows, data.sha256[:12]) if data else (None,) * 3
        rows.append(scores.to_row(line) | dict(zip(("data", "transitions", "sha256"), facts, strict=True)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip()


def _json(report: Report, runs: Sequence[Run], scale: Scale | None) -> dict[str, Any]:
    return {
        "title": report.title,
        "caption": report.caption,
        "baseline": report.baseline,
        "scale": scale.name if scale else None,
        "lines": [scores.to_row(line) for line in report.lines],
        "runs": [
            {
                "directory": str(run.job.directory),
                "task": run.job.task,
                "method": run.job.variant.label,
                "seed": run.job.seed,
                "score": run.score,
                "before": run.before,
                "data": run.data._asdict(),
            }
            for run in runs
        ],
    }


# --- one task: single runs with the time of an update ---------------------------------------------------------------


def measure(jobs: Sequence[Job], out: Path) -> None:
    """Time the updates of the finished runs' methods in one process, unless that was done before."""
    from fidec.bench.timing import milliseconds
    from fidec.train.policy import load_policy

    known = files.find_json(out / "timing.json") or {}
    done = {job.variant.label: job for job in jobs if job.state() == "done"}
    if not set(done) <= set(known):
        policies = {label: load_policy(job.directory) for label, job in done.items()}
        methods = {label: (done[label].variant.method, policy.options) for label, policy in policies.items()}
        spec = next(iter(policies.values())).spec
        files.write_json(out / "timing.json", milliseconds(methods, spec))


def _comparison(done: Sequence[Job], suite: Suite, out: Path, form: str) -> str:
    times = files.find_json(out / "timing.json") or {}
    rows = []
    for job in done:
        options = ", ".join(f"`{name}` {value}" for name, value in job.variant.options.items())
        rows.append(run_table.row(job.directory, job.variant.label, options, times.get(job.variant.label)))
    if len({row.pop("data") for row in rows}) > 1:
        raise RunError(f"the runs in {out} were trained on different data: they cannot be compared")
    if not rows and form in ("md", "tex"):
        raise RunError(f"no run of {suite} in {out} is finished yet")
    if form == "json":
        return json.dumps(rows, indent=2, allow_nan=False)
    if form == "csv":
        return run_table.comma_separated(rows).rstrip()
    cells = run_table.cells(rows)
    return (
        run_table.markdown(cells) if form == "md" else tabular([[c.replace("`", "") for c in row] for row in cells])
    )
