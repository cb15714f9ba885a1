"""A suite's table as Markdown, TeX or CSV: one table a category, methods as columns, `ours (paper)` in the cells."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from fidec.bench.scores import Data, Line, plain
from fidec.report.tex import escape, tabular
from fidec.stats import Estimate
from fidec.tasks import Reported

NONE = "–"


class Grid(NamedTuple):
    """A table of words."""

    title: str
    rows: list[list[str]]  # the first is the header


class Report(NamedTuple):
    """All that the table of a suite says."""

    title: str
    caption: str
    lines: list[Line]
    data: dict[str, Data]  # of each task
    baseline: str


def grids(report: Report) -> list[Grid]:
    """One table for each category, one over all, and one of the data."""
    found = []
    for category in dict.fromkeys(line.category for line in report.lines):
        lines = [line for line in report.lines if line.category == category]
        methods = list(dict.fromkeys(line.method for line in lines))
        rows = [["task", *methods]]
        for task in dict.fromkeys(line.task for line in lines if line.task):
            own = {line.method: line for line in lines if line.task == task}
            runs = max(line.runs for line in own.values())
            rows.append([task, *(_score(own[method], f"n={own[method].runs}", runs) for method in methods)])
        total = {line.method: line for line in lines if not line.task}
        if len(rows) != 2 or any(line.runs for line in total.values()):  # the paper's number of one task is there
            rows += _totals([total[method] for method in methods], report.baseline)
        found.append(Grid("All tasks" if category == "all" else category, rows))
    if report.data:
        files = dict.fromkeys(report.data.values())  # several tasks share one
        rows = [[d.name, d.kind, f"{d.rows:,}", d.sha256[:12]] for d in files]
        found.append(Grid("Data", [["data", "origin", "transitions", "SHA-256"], *rows]))
    return found


def _totals(lines: Sequence[Line], baseline: str) -> list[list[str]]:
    """Mean, interquartile mean and chance of improvement; what would only repeat a single run is left out."""
    tasks, rows = max(line.tasks for line in lines), []
    if tasks == 0:
        return [["mean", *(_score(line, "", 0) for line in lines)]]
    if tasks > 1:
        few = [f"{line.tasks} of {tasks} tasks" if line.tasks < tasks else "" for line in lines]
        cells = [_score(line, "", line.runs, note) for line, note in zip(lines, few, strict=True)]
        rows.append([f"mean of {tasks} tasks", *cells])
    if any(line.runs > 1 for line in lines):
        rows.append(["IQM", *(_estimate(line.iqm, "{:.1f}") for line in lines)])
    if any(line.better for line in lines):
        rows.append([f"P(better than {baseline})", *(_estimate(line.better, "{:.2f}") for line in lines)])
    return rows


def _score(line: Line, note: str, runs: int, few: str = "") -> str:
    """`ours (paper)`; a cell with fewer runs than its row, or fewer tasks than its column's, says so."""
    if line.mean is None:
        ours = NONE
    else:
        ours = _mean(line.mean, line.std)
        if line.before is not None:
            ours = f"{_mean(line.before, line.before_std)} → {ours}"
        notes = ", ".join(part for part in (note if line.runs < runs else "", few) if part)
        ours += f" [{notes}]" if notes else ""
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


def markdown(report: Report) -> str:
    parts = [f"**{report.title}.** {report.caption}"]
    for grid in grids(report):
        header, *rows = grid.rows
        lines = [header, ["---"] * len(header), *rows]
        parts.append(f"### {grid.title}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    return "\n\n".join(parts)


def tex(report: Report) -> str:
    """One `table` each, for a document that uses the package booktabs."""
    parts = []
    for grid in grids(report):
        header, *rows = [[escape(cell) for cell in row] for row in grid.rows]
        caption = escape(f"{report.title}: {grid.title}. {report.caption}")
        lines = [
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{caption}}}",
            tabular(header, rows),
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def comma_separated(report: Report) -> str:
    """One line for each method and task, category, or all, with the task's data."""
    rows = []
    for line in report.lines:
        data = report.data.get(line.task)
        facts = (data.kind, data.rows, data.sha256[:12]) if data else (None,) * 3
        rows.append(plain(line) | dict(zip(("data", "transitions", "sha256"), facts, strict=True)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
