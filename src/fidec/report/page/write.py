"""The whole page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fidec.errors import RunError
from fidec.report import compare
from fidec.report.page.chart import Chart, Line, draw
from fidec.report.page.concerns import concerns
from fidec.report.page.dataset import data_sections
from fidec.report.page.document import write_document
from fidec.report.page.html import Html, join, table, tag
from fidec.report.page.read import Facts, read_all
from fidec.report.page.sections import filtered, interval, run_section, time_spent
from fidec.report.panels import common_curve
from fidec.report.runs import SUCCESS
from fidec.store.versions import version

# So that a page stays below 3 MB, however many runs it is about.
POINTS = 30_000  # of all charts; about 40 bytes each
LONG, SECTIONS = 30, 100  # runs with long sections, and with sections of their own


@dataclass(frozen=True)
class Extra:
    """Tables above the runs, such as those of a suite."""

    caption: str
    grids: Sequence[tuple[str, Sequence[Sequence[str]]]]
    """Titles and rows; the first row is the header."""


def report_runs(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str = "",
    embed_videos: bool = False,
    videos: Sequence[Path] = (),
    extra: Extra | None = None,
    data: bool = False,
) -> tuple[Path, dict[Path, str]]:
    """Write the report of all runs among the paths and below them; the file, and what was left out and why.

    `videos` are shown beside those in the run directories, with the first run. With `data` the data sets of the runs
    are loaded and drawn.
    """
    runs, left_out = read_all([Path(path) for path in paths])
    runs[0].videos.extend(videos)
    how = {"title": title, "embed_videos": embed_videos, "extra": extra, "left_out": left_out, "data": data}
    return write_report(runs, out, **how), left_out


def write_report(
    runs: Sequence[Facts],
    out: str | Path,
    *,
    title: str = "",
    embed_videos: bool = False,
    extra: Extra | None = None,
    left_out: dict[Path, str] | None = None,
    data: bool = False,
) -> Path:
    """Write one HTML file, atomically."""
    out = Path(out)
    points = int(np.clip(POINTS // (15 * len(runs)), 30, 400))
    title = title or (runs[0].place if len(runs) == 1 else f"{len(runs)} runs")
    short = len(runs) > LONG
    sections = [run_section(r, i, points, out, embed_videos, short) for i, r in enumerate(runs[:SECTIONS])]
    body = join(
        tag("a", "skip to the runs", href="#runs", class_="skip"),
        tag("header", tag("h1", title), _made(runs)),
        tag(
            "main",
            _extra(extra),
            _overview(runs) if len(runs) > 1 else None,
            _comparisons(runs, points),
            tag("div", *sections, id="runs"),
            _without_section(runs),
            *(data_sections(runs) if data else ()),
            _left_out(left_out or {}),
        ),
    )
    return write_document(out, title, body)


def _made(runs: Sequence[Facts]) -> Html:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    going = sum(run.state == "running" for run in runs)
    state = f" {going} of them had not ended then: `fidec report` makes the page anew." if going else ""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    keys = "Charts: move the pointer for values, drag to zoom, double-click to reset. Keys: arrows, + and -, 0."
    return join(
        tag("p", f"{count}, read on {when} by fidec {version('fidec')}.{state}", class_="soft"),
        tag("p", keys, class_="soft keys"),
    )


def _extra(extra: Extra | None) -> Html:
    if extra is None:
        return join()
    grids = (join(tag("h3", head), table(rows[0], rows[1:])) for head, rows in extra.grids)
    return tag("section", tag("h2", "The table"), tag("p", extra.caption), *grids)


def _overview(runs: Sequence[Facts]) -> Html:
    rows = []
    for index, run in enumerate(runs):
        of, _ = run.measure
        last = run.evaluations[-1] if run.evaluations else {}
        score = interval({key.removeprefix("evaluation/"): value for key, value in last.items()}, of)
        spent = sum(time_spent(run).values())
        found = concerns(run)
        bad = sum(each.severity == "bad" for each in found)
        words = f"{bad} problems, {len(found) - bad} notes" if found else "none"
        link = tag("a", run.method, href=f"#run{index}") if index < SECTIONS else run.method
        minutes = f"{spent / 60:.1f}"
        place = "/".join(run.directory.parts[-2:])  # tells variants of a method apart
        rows.append([link, place, run.place, run.state, f"{run.step:,}", of, score, minutes, words])
    columns = ["method", "directory", "task", "state", "step", "measure", "last evaluation", "minutes", "warnings"]
    return tag("section", tag("h2", "All runs"), filtered("overview", columns, rows, "filter runs"))


def _comparisons(runs: Sequence[Facts], points: int) -> Html:
    """Finished runs by task and method, with the curves of each task."""
    try:
        found = compare.compare([run.directory for run in runs])
    except RunError:  # none is finished and evaluated
        return join()
    parts = []
    for each in found.comparisons:
        if len(each.entries) < 2 and len(each.entries[0].runs) < 2:
            continue
        header, *rows = compare.table(each)
        options = compare.options_table(each)
        parts += [
            tag("h3", str(each.example.config.env_name)),
            tag("p", compare.title(each), class_="soft"),
            table(header, rows),
            draw(_curves(each), points),
            tag("details", tag("summary", "options in which they differ"), table(options[0], options[1:]))
            if options
            else None,
        ]
    if not parts:
        return join()
    return tag("section", tag("h2", "Comparison"), *parts, tag("p", compare.note(found), class_="soft"))


def _curves(comparison: compare.Comparison) -> Chart:
    run, lines = comparison.example, []
    for entry in comparison.entries:
        steps, scores = common_curve([each.curve for each in entry.runs])
        several = len(entry.runs) > 1
        ends = (scores.min(0).tolist(), scores.max(0).tolist()) if several else (None, None)
        lines.append(Line(entry.name, steps.tolist(), scores.mean(0).tolist(), *ends))
    several = max(len(entry.runs) for entry in comparison.entries) > 1
    note = "Lines: mean over runs; bands: from the worst to the best run." if several else "One run for each line."
    limits = (-3.0, 103.0) if run.unit == SUCCESS else None
    online = run.config.online_steps
    marks = [("online", run.config.steps)] if online and run.config.steps else []
    return Chart(
        "Learning curves", "step" if online else "update", run.unit, lines, limits=limits, marks=marks, note=note
    )


def _without_section(runs: Sequence[Facts]) -> Html:
    if len(runs) <= SECTIONS:
        return join()
    text = (
        f"{len(runs) - SECTIONS} more runs are in the tables only. `fidec report` with their directories shows them."
    )
    return tag("p", text)


def _left_out(left_out: dict[Path, str]) -> Html:
    if not left_out:
        return join()
    items = [tag("li", f"{path}: {reason}") for path, reason in left_out.items()]
    return tag("section", tag("h2", "Left out"), tag("ul", *items))
