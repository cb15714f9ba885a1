"""The HTML page of a suite: its table, and the report of its runs, finished or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fidec.bench import table
from fidec.bench.jobs import Job
from fidec.bench.suite import Scale
from fidec.errors import RunError
from fidec.report.page import Tables, report_runs


def write_page(jobs: Sequence[Job], scale: Scale | None, path: Path) -> Path:
    """Write the page of these jobs. It can be written again at any time, also while they go on."""
    started = [job.directory for job in jobs if (job.directory / "config.json").exists()]
    if not started:
        raise RunError(f"no run of {jobs[0].suite} has started: there is nothing to report")
    report = table.report(jobs, scale)
    tables = Tables(report.caption, table.grids(report)) if report.runs else None
    return report_runs(started, path, title=report.title, tables=tables)[0]
