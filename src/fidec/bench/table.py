"""The table of a suite's finished runs as Markdown, TeX, CSV or JSON, and on the HTML page of all its runs.

There is one table for each category, with methods as columns and `ours (paper)` in the cells.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fidec import tasks
from fidec.bench import scores
from fidec.bench.jobs import SuiteJob
from fidec.bench.scores import Data, Line, Run
from fidec.bench.suites import Scale, Suite, published_plan
from fidec.errors import ConfigError, FidecError, RunError
from fidec.report.page import Tables, report_runs
from fidec.report.runs import SUCCESS
from fidec.stats import Estimate
from fidec.tasks import Reported

NONE = "–"
OTHER_CODE = "†"  # marks a number of the paper


class Report(NamedTuple):
    """The content of a suite's table."""

    title: str
    caption: str
    lines: list[Line]
    runs: list[Run]
    baseline: str
    scale: Scale | None

    @property
    def data(self) -> dict[str, Data]:
        """What was trained on, by task."""
        return {run.job.task: run.data for run in self.runs}


def report(jobs: Sequence[SuiteJob], scale: Scale | None, baseline: str = "") -> Report:
    """The table of the jobs that are finished."""
    labels = dict.fromkeys(job.variant.label for job in jobs)
    if baseline and baseline not in labels:
        raise ConfigError(f"--baseline {baseline}: the table has {', '.join(labels)}")
    baseline = baseline or ("fql" if "fql" in labels else next(iter(labels)))
    suite, runs = jobs[0].suite, finished(jobs)
    lines = scores.summarise(jobs, runs, baseline)
    title = f"Suite {suite.name}" + (f" at scale {scale.name}" if scale and suite.scale is None else "")
    return Report(title, caption(suite, runs, lines, scale), lines, runs, baseline, scale)


def write_page(jobs: Sequence[SuiteJob], scale: Scale | None, path: Path) -> Path:
    """Write the page of these jobs. It can be written again at any time, also while they go on."""
    started = [job.directory for job in jobs if (job.directory / "config.json").exists()]
    if not started:
        raise RunError(f"no run of {jobs[0].suite} has started: there is nothing to report")
    content = report(jobs, scale)
    tables = Tables(content.caption, grids(content)) if content.runs else None
    return report_runs(started, path, title=content.title, tables=tables)[0]


def finished(jobs: Sequence[SuiteJob]) -> list[Run]:
    """The runs that are finished, on any data, and have their scores. Others are left out with a message."""
    runs = []
    for job in jobs:
        try:
            runs += [scores.read_run(job)] if job.state(any_data=True) == "done" else []
        except FidecError as error:
            print(f"left out: {error}", file=sys.stderr)
    return runs


# --- caption ------------------------------------------------------------------------------------------------------


def caption(suite: Suite, runs: Sequence[Run], lines: Sequence[Line], scale: Scale | None) -> str:
    """What was run, on which data, and what the numbers mean."""
    online = suite.setting == "online"
    if not runs:
        phases = " before → after the online phase" if online else ""
        cells = f"No run of ours is finished yet. Cells: ours (the paper's{phases})."
        return " ".join(filter(None, [cells, _other_code(lines)]))
    seeds = sorted({run.job.seed for run in runs})
    kinds = sorted({run.data.kind for run in runs})
    count = len({run.job.task for run in runs})
    over, after = " and seeds" if len(seeds) > 1 else "", ", after the online phase" if online else ""
    units = dict.fromkeys(line.unit for line in lines if line.task)
    parts = [
        _protocol(runs, scale),
        f"Data {' and '.join(kinds)}{', not the official files' * (kinds == ['regenerated'])}.",
        f"{count} of the suite's {len(suite.tasks)} tasks have runs; seeds {_numbers(seeds)}; {_length(runs)}.",
        f"Score: {_score_rule(runs)}, "
        + (f"{SUCCESS} unless the row of a task names another unit." if len(units) > 1 else f"{next(iter(units))}."),
        "Tasks with different units have no common mean and no common IQM." if len(units) > 1 else "",
        f"Cells: ours{', before → after the online phase' * online}, mean ± std over seeds"
        + (" (the paper's in brackets)." if _has_reported(runs) else "."),
        _other_code(lines),
        _note(runs),
        f"IQM: interquartile mean over tasks{over}{after}."
        if any(line.iqm and line.runs > 1 for line in lines if not line.task)
        else "",
        "Intervals: 95 %, stratified bootstrap over seeds; of success also the chance of the episodes."
        if len(seeds) > 1
        else "One seed has no spread and no interval.",
    ]
    return " ".join(filter(None, parts))


def _other_code(lines: Sequence[Line]) -> str:
    """What the mark on a number of the paper means."""
    if all(line.same_code for line in lines if line.paper):
        return ""
    return f"{OTHER_CODE}: a number of code that was not released, or whose update our preset does not have."


def _note(runs: Sequence[Run]) -> str:
    """What a reader has to know about the environments."""
    if not any((row := tasks.find(run.job.task)) and row.benchmark == "d4rl" for run in runs):
        return ""
    from fidec.envs.families.d4rl import note

    return f"{note()}."


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
            "as published, single evaluations at the end of the offline phase (before) and at the end of the run "
            f"(after), of {episodes} episodes each"
        )
    counts = sorted({len(plan.averaged) for plan in plans})
    averaged = " or ".join("the last evaluation" if n == 1 else f"the last {n} evaluations" for n in counts)
    return f"mean of {averaged} of {episodes} episodes"


def _protocol(runs: Sequence[Run], scale: Scale | None) -> str:
    """Whether the runs follow the published protocol. A user's own tasks have none."""
    plans = [run.job.plan for run in runs]
    if scale is not None:
        same = all(plan == scale.plan() for plan in plans)
        size = scale.summary if same else scale.summary.replace(f"{scale.steps:,} steps", "steps")
        if all(run.job.suite_task.id is None for run in runs):
            return f"Size: {size}." if size else ""
        how = f"Reduced scale ({size})" if size else "Reduced scale"
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


def grids(report: Report) -> list[tuple[str, list[list[str]]]]:
    """Title and rows of one table for each category, one for all tasks, and one for the data."""
    grids, mixed = [], len({line.unit for line in report.lines if line.task}) > 1
    for category in dict.fromkeys(line.category for line in report.lines):
        lines = [line for line in report.lines if line.category == category]
        methods = list(dict.fromkeys(line.method for line in lines))
        rows = [["task", *methods]]
        for task in dict.fromkeys(line.task for line in lines if line.task):
            by_method = {line.method: line for line in lines if line.task == task}
            runs = max(line.runs for line in by_method.values())
            notes = {m: f"n={line.runs}" if line.runs < runs else "" for m, line in by_method.items()}
            unit = next(iter(by_method.values())).unit
            name = f"{task} ({unit})" if mixed and unit != SUCCESS else task
            rows.append([name, *(_score(by_method[method], notes[method]) for method in methods)])
        total = {line.method: line for line in lines if not line.task}
        if len(rows) != 2 or any(line.runs for line in total.values()):  # else it would repeat the paper's one number
            rows += _totals([total[method] for method in methods], report.baseline)
        if len(rows) > 1:
            grids.append(("All tasks" if category == "all" else category, rows))
    if report.data:
        rows = [[d.name, d.kind, f"{d.rows:,}", d.sha256[:12]] for d in dict.fromkeys(report.data.values())]
        grids.append(("Data", [["data", "origin", "transitions", "SHA-256"], *rows]))
    return grids


def _totals(lines: Sequence[Line], baseline: str) -> list[list[str]]:
    """Mean, interquartile mean and probability of improvement. Rows that would repeat a single run are left out."""
    count, rows = max(line.tasks for line in lines), []
    if count == 0:
        return [["mean", *(_score(line, "") for line in lines)]] if any(line.paper for line in lines) else []
    if count > 1 and lines[0].unit:
        notes = [f"{line.tasks} of {count} tasks" if line.tasks < count else "" for line in lines]
        rows.append([f"mean of {count} tasks", *map(_score, lines, notes)])
    if any(line.iqm and line.runs > 1 for line in lines):
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
    return f"{ours} ({paper}{'' if line.same_code else OTHER_CODE})" if paper else ours


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


def markdown(report: Report) -> str:
    parts = [f"**{report.title}.** {report.caption}"]
    for head, (header, *body) in grids(report):
        rows = ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body)]
        parts.append("\n".join([f"### {head}", "", *rows]))
    return "\n\n".join(parts)


_TEX = {char: f"\\{char}" for char in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "–": "--",
    OTHER_CODE: r"$\dagger$",
}


def tex_escape(text: str) -> str:
    """Text with TeX's special characters escaped."""
    return "".join(_TEX.get(char, char) for char in text)


def tex(report: Report) -> str:
    """One `table` each, for a document that uses the package booktabs."""
    parts = []
    for head, rows in grids(report):
        header, *body = [" & ".join(map(tex_escape, row)) + r" \\" for row in rows]
        parts += [r"\begin{table}", r"\centering\small"]
        parts += [rf"\caption{{{tex_escape(f'{report.title}: {head}. {report.caption}')}}}"]
        parts += [rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule", header, r"\midrule", *body]
        parts += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(parts).rstrip()


def comma_separated(report: Report) -> str:
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


def to_json(report: Report) -> dict[str, Any]:
    return {
        "title": report.title,
        "caption": report.caption,
        "baseline": report.baseline,
        "scale": report.scale.name if report.scale else None,
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
            for run in report.runs
        ],
    }


FORMATS = {"md": markdown, "tex": tex, "csv": comma_separated}  # as text
