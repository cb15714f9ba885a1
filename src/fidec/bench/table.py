"""The table of a suite's finished runs as Markdown, TeX, CSV or JSON.

There is one table for each category, with methods as columns and `ours (paper)` in the cells.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from fidec.bench import scores
from fidec.bench.caption import OTHER_CODE, caption
from fidec.bench.jobs import Job
from fidec.bench.scores import Data, Line, Run
from fidec.bench.suite import Scale, Suite
from fidec.errors import ConfigError, FidecError
from fidec.report.runs import SUCCESS
from fidec.stats import Estimate
from fidec.tasks import Reported

NONE = "–"


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


def report(jobs: Sequence[Job], scale: Scale | None, baseline: str = "") -> Report:
    """The table of the jobs that are finished."""
    labels = dict.fromkeys(job.variant.label for job in jobs)
    if baseline and baseline not in labels:
        raise ConfigError(f"--baseline {baseline}: the table has {', '.join(labels)}")
    baseline = baseline or ("fql" if "fql" in labels else next(iter(labels)))
    suite, runs = jobs[0].suite, finished(jobs)
    lines = scores.summarise(jobs, runs, baseline)
    return Report(title(suite, scale), caption(suite, runs, lines, scale), lines, runs, baseline, scale)


def title(suite: Suite, scale: Scale | None) -> str:
    return f"Suite {suite.name}" + (f" at scale {scale.name}" if scale and suite.scale is None else "")


def finished(jobs: Sequence[Job]) -> list[Run]:
    """The runs that are finished, on any data, and have their scores. Others are left out with a message."""
    runs = []
    for job in jobs:
        try:
            runs += [scores.read_run(job)] if job.state(any_data=True) == "done" else []
        except FidecError as error:
            print(f"left out: {error}", file=sys.stderr)
    return runs


# --- cells ----------------------------------------------------------------------------------------------------------


def grids(report: Report) -> list[tuple[str, list[list[str]]]]:
    """Title and rows of one table for each category, one for all tasks, and one for the data."""
    grids, mixed = [], len({line.unit for line in report.lines if line.task}) > 1
    for category in dict.fromkeys(line.category for line in report.lines):
        lines = [line for line in report.lines if line.category == category]
        methods = list(dict.fromkeys(line.method for line in lines))
        rows = [["task", *methods]]
        for task in dict.fromkeys(line.task for line in lines if line.task):
            own = {line.method: line for line in lines if line.task == task}
            runs = max(line.runs for line in own.values())
            notes = {m: f"n={line.runs}" if line.runs < runs else "" for m, line in own.items()}
            unit = next(iter(own.values())).unit
            name = f"{task} ({unit})" if mixed and unit != SUCCESS else task
            rows.append([name, *(_score(own[method], notes[method]) for method in methods)])
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
