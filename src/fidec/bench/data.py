"""The data of a suite's jobs: what is there, what can be made, and what has to be got."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from fidec import tasks
from fidec.bench.jobs import Job
from fidec.bench.scale import Scale
from fidec.data.cache import data_dir
from fidec.data.source import find_source
from fidec.errors import BusyError, ConfigError, DataError, FidecError

ROWS = 1_000_000  # of data made for the benchmark at its published size, where nobody says how many there were
PAUSE = 5.0  # seconds between two attempts at data that another process makes


def lacking(job: Job) -> str | None:
    """Why a job cannot read its data, with what to do; None if it is there."""
    try:
        _, source, what = find_source(job.data())
        if source.check_present is not None:
            source.check_present(what, job.data_dir)
    except DataError as error:
        return str(error)
    return None  # there, or of a kind that only loading can tell


def provide(jobs: Sequence[Job], scale: Scale | None, rows: int, say: Callable[[str], None]) -> dict[Job, str]:
    """Make the data that is missing where fidec has a maker; the jobs that lack theirs, with the reason.

    With `rows` the maker is asked even where there is data: it takes what has enough rows, and refuses other files.
    """
    without, tried = {}, {}
    for job in jobs:
        reason = lacking(job)
        if reason is None and not rows:
            continue
        key = (_data_set(job), job.data_dir)
        if key not in tried:
            tried[key] = _make(job, rows or _rows(job, scale), reason, say, small=scale is not None)
        if tried[key] is not None:
            without[job] = tried[key]
    return without


def _data_set(job: Job) -> str:
    """What is made or got at once: the tasks of one OGBench family share it."""
    scheme, _, what = job.data().partition(":")
    if scheme == "ogbench":
        from fidec.data.sources import ogbench

        return f"{scheme}:{ogbench.dataset_name(what)}"
    return job.data()


def _rows(job: Job, scale: Scale | None) -> int:
    row = tasks.find(job.task)
    if scale is not None:
        return (row is not None and row.visual and scale.visual_rows) or scale.rows
    return (row.data_transitions if row else None) or ROWS


def _make(job: Job, rows: int, reason: str | None, say: Callable[[str], None], small: bool) -> str | None:
    """Make the data of a job's task, if it can be made; the reason if it is still lacking."""
    from fidec.make import find_recipe, make_dataset

    name = job.data().partition(":")[2]
    try:
        recipe = find_recipe(name)
    except ConfigError:
        return reason
    rendering = "fast" if small and recipe.rendering else None  # exact pictures are for the published size
    directory, workers, waits = data_dir(job.data_dir), os.cpu_count() or 1, False
    say(f"data for {job.task}: {rows} rows of {recipe.name} are made")
    while True:
        try:
            make_dataset(name, rows, directory=directory, seed=0, workers=workers, rendering=rendering)
            return None
        except BusyError:
            if not waits:
                say(f"data for {job.task}: another process makes it: waits for it")
            waits = True
            time.sleep(PAUSE)
        except FidecError as error:
            return f"its data could not be made: {error}"
