"""What the runs of a suite will cost, from what finished ones took: never from a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fidec import tasks
from fidec.tasks.scale import Plan
from fidec.train.rundir import RunDirectory
from fidec.train.suite import Job
from fidec.types import Spec


class Speed(NamedTuple):
    """Seconds that the parts of a run take, and how that is known."""

    update: float
    evaluation: float
    start: float
    source: str

    def seconds(self, plan: Plan) -> float:
        evaluations = -(-plan.steps // plan.eval_interval)
        return self.start + plan.steps * self.update + evaluations * self.evaluation


def measured(done: Sequence[Job], job: Job) -> Speed | None:
    """From finished runs of the same method and preset: on the same task, else in the same category, else on any."""
    alike = [other for other in done if other.variant == job.variant and other.plan == job.plan]
    category = tasks.CATEGORY_OF.get(job.task)
    for where, chosen in (
        ("this task", [other for other in alike if other.task == job.task]),
        ("this category", [other for other in alike if tasks.CATEGORY_OF.get(other.task) == category]),
        ("other tasks", alike),
    ):
        speeds = [speed for other in chosen if (speed := _speed(other, _horizon(job) / _horizon(other)))]
        if speeds:
            update, evaluation, start = np.median(speeds, 0)
            return Speed(float(update), float(evaluation), float(start), f"{len(speeds)} finished on {where}")
    return None


def _horizon(job: Job) -> int:
    row = tasks.find(job.task)
    return row.horizon if row else 1


def _speed(job: Job, longer: float) -> tuple[float, float, float] | None:
    """Median seconds, by a run's own log, of an update, of an evaluation so much `longer`, and of a compilation."""
    rows = RunDirectory.open(job.directory, read_only=True).read_jsonl("time")

    def median(name: str) -> float:
        return float(np.median([row[name] for row in rows if name in row] or [0.0]))

    rate = median("time/steps_per_second")
    return (1 / rate, longer * median("time/evaluation"), median("time/compile")) if rate else None


def timed(job: Job) -> Speed | None:
    """From a short timing of the update, here and now. Evaluations are not in it, and pixels are not timed."""
    from fidec.train.timing import milliseconds

    row = tasks.find(job.task)
    if row is None or row.visual:
        return None
    spec = Spec(row.observation_shape, row.action_dim)
    found = milliseconds({job.variant.method: job.options()}, spec, job.plan.batch_size, rounds=3)
    return Speed(found[job.variant.method] / 1e3, 0.0, 0.0, "timed now, without evaluations")


def estimates(jobs: Sequence[Job], done: Sequence[Job], measure: bool = False) -> dict[Job, Speed | None]:
    """The speed of each job, None where nothing is known."""
    found, timings = {}, {}
    for job in jobs:
        speed = measured(done, job)
        if speed is None and measure:
            key = (job.variant.name, tasks.CATEGORY_OF.get(job.task), job.plan)  # one timing a category and variant
            if key not in timings:
                timings[key] = timed(job)
            speed = timings[key]
        found[job] = speed
    return found


def duration(seconds: float) -> str:
    """In the unit that reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
