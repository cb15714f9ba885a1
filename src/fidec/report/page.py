"""The report: one HTML file about one run, several runs, or a suite. It needs no network and no other file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fidec.errors import RunError
from fidec.report import compare
from fidec.report.charts import draw
from fidec.report.concerns import concerns
from fidec.report.dataset import data_sections
from fidec.report.html import Html, join, table, tag, write_document
from fidec.report.runs import RunResults, read_all
from fidec.report.sections import filtered, interval, run_section, time_spent
from fidec.store.versions import version

# So that a page stays below 3 MB, however many runs it is about.
POINTS = 30_000  # of all charts; about 40 bytes each
LONG, SECTIONS = 30, 100  # runs with long sections, and with sections of their own


@dataclass(frozen=True)
class Tables:
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
    tables: Tables | None = None,
    data: bool = False,
) -> tuple[Path, dict[Path, str]]:
    """Write the report of all runs among the paths and below them; the file, and what was left out and why.

    `videos` are shown beside those in the run directories, with the first run. With `data` the data sets of the runs
    are loaded and drawn.
    """
    runs, left_out = read_all(paths, logs=True)
    if not runs:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in left_out.items())
        raise RunError(f"there is no run to report. {reasons or 'No path was given.'}")
    runs[0].videos.extend(videos)
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
            _tables(tables),
            _overview(runs) if len(runs) > 1 else None,
            _comparisons(runs, points),
            tag("div", *sections, id="runs"),
            _without_section(runs),
            *(data_sections(runs) if data else ()),
            _left_out(left_out),
        ),
    )
    return write_document(out, title, body), left_out


def _made(runs: Sequence[RunResults]) -> Html:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    going = sum(run.state == "running" for run in runs)
    state = f" {going} of them had not ended then: `fidec report` makes the page anew." if going else ""
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    keys = "Charts: move the pointer for values, drag to zoom, double-click to reset. Keys: arrows, + and -, 0."
    return join(
        tag("p", f"{count}, read on {when} by fidec {version('fidec')}.{state}", class_="soft"),
        tag("p", keys, class_="soft keys"),
    )


def _tables(tables: Tables | None) -> Html:
    if tables is None:
        return join()
    grids = (join(tag("h3", head), table(rows[0], rows[1:])) for head, rows in tables.grids)
    return tag("section", tag("h2", "The table"), tag("p", tables.caption), *grids)


def _overview(runs: Sequence[RunResults]) -> Html:
    rows = []
    for index, run in enumerate(runs):
        of, _ = run.measure
        last = run.evaluations[-1] if run.evaluations else {}
        score = interval({key.removeprefix("evaluation/"): value for key, value in last.items()}, of)
        spent = sum(time_spent(run).values())
        listed = concerns(run)
        bad = sum(each.severity == "bad" for each in listed)
        words = f"{bad} problems, {len(listed) - bad} notes" if listed else "none"
        link = tag("a", run.method, href=f"#run{index}") if index < SECTIONS else run.method
        minutes = f"{spent / 60:.1f}"
        place = "/".join(run.directory.parts[-2:])  # tells variants of a method apart
        rows.append([link, place, run.place, run.state, f"{run.step:,}", of, score, minutes, words])
    columns = ["method", "directory", "task", "state", "step", "measure", "last evaluation", "minutes", "warnings"]
    return tag("section", tag("h2", "All runs"), filtered("overview", columns, rows, "filter runs"))


def _comparisons(runs: Sequence[RunResults], points: int) -> Html:
    """Finished runs by task and method, with the curves of each task."""
    try:
        compared = compare.compare_runs(runs)
    except RunError:  # none is finished and evaluated
        return join()
    parts = []
    for each in compared.comparisons:
        if len(each.entries) < 2 and len(each.entries[0].runs) < 2:
            continue
        header, *rows = compare.table(each)
        options = compare.options_table(each)
        parts += [
            tag("h3", str(each.example.config.env_name)),
            tag("p", compare.title(each), class_="soft"),
            table(header, rows),
            draw(compare.curves(each), points),
            tag("details", tag("summary", "options in which they differ"), table(options[0], options[1:]))
            if options
            else None,
        ]
    if not parts:
        return join()
    return tag("section", tag("h2", "Comparison"), *parts, tag("p", compare.note(compared), class_="soft"))


def _without_section(runs: Sequence[RunResults]) -> Html:
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
