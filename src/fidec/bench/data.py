"""Provide the data of a suite's jobs: make what is missing where fidec can make it, else say how to get it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from fidec import tasks
from fidec.bench.jobs import Job, SuiteJob
from fidec.bench.suites import Scale
from fidec.data.cache import data_dir
from fidec.data.source import find_source
from fidec.errors import BusyError, ConfigError, DataError, FidecError
from fidec.make import dataset_name, find_recipe, make_dataset
from fidec.store.remote import as_url

ROWS = 1_000_000  # of data made at the published size, if the published number is not known
PAUSE = 5.0  # seconds between two attempts at data that another process is making


def provide(
    jobs: Sequence[SuiteJob], scale: Scale | None, rows: int, say: Callable[[str], None]
) -> dict[SuiteJob, str]:
    """Make the data that is missing; the result is the jobs that have no data, with the reason.

    With `rows`, `make_dataset` is called even if there is data: it keeps a file with enough rows and rejects others.
    """
    without, tried = {}, {}
    for job in jobs:
        reason = missing(job)
        if reason is None and not rows:
            continue
        key = (dataset_name(job.data()), job.config.data_dir)  # the tasks of an OGBench family share one data set
        if key not in tried:
            tried[key] = _make(job, rows or _rows(job, scale), reason, say)
        if tried[key] is not None:
            without[job] = tried[key]
    return without


def missing(job: Job) -> str | None:
    """Why a job cannot read its data, and how to get it; None if the data is there or only loading can tell."""
    try:
        _, source, what = find_source(job.data())
        if source.check_present is not None and as_url(what) is None:
            source.check_present(what, job.config.data_dir)
    except DataError as error:
        return str(error)
    return None


def _rows(job: SuiteJob, scale: Scale | None) -> int:
    row = tasks.find(job.task)
    if scale is not None:
        return (row is not None and row.visual and scale.visual_rows) or scale.rows
    return (row.data_transitions if row else None) or ROWS


def _make(job: SuiteJob, rows: int, reason: str | None, say: Callable[[str], None]) -> str | None:
    """Make the data of a job's task, if there is a recipe; the result is the reason if it is still missing."""
    name = job.data().partition(":")[2]
    try:
        recipe = find_recipe(name)
    except ConfigError:
        return reason
    directory, workers, waits = data_dir(job.config.data_dir), os.cpu_count() or 1, False
    say(f"data for {job.task}: making {rows} rows of {recipe.name}")
    while True:
        try:
            make_dataset(name, rows, directory=directory, seed=0, workers=workers)
            return None
        except BusyError:
            if not waits:
                say(f"data for {job.task}: waiting for another process that makes it")
            waits = True
            time.sleep(PAUSE)
        except FidecError as error:
            return f"Making its data failed: {error}"
