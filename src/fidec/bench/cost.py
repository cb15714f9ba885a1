"""What the runs of a suite will cost, from what finished ones took: never from a guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fidec import tasks
from fidec.bench.jobs import Job
from fidec.bench.scale import Plan
from fidec.store.rundir import RunDirectory
from fidec.types import Spec


class Speed(NamedTuple):
    """Seconds that the parts of a run take, and how that is known."""

    update: float
    online: float  # a step of the environment with its updates
    evaluation: float
    start: float
    source: str

    def seconds(self, plan: Plan) -> float:
        training = plan.steps * self.update + plan.online_steps * self.online
        return self.start + training + len(plan.evaluations) * self.evaluation


def measured(done: Sequence[Job], job: Job) -> Speed | None:
    """From finished runs of the same method and preset: on the same task, else in the same category, else on any."""
    alike = [other for other in done if other.variant == job.variant and other.plan == job.plan]
    category = tasks.CATEGORY_OF.get(job.task)
    for where, chosen in (
        ("this task", [other for other in alike if other.task == job.task]),
        ("this category", [other for other in alike if tasks.CATEGORY_OF.get(other.task) == category]),
        ("other tasks", alike),
    ):
        speeds = [speed for other in chosen if (speed := _speed(other, _longer(job, other)))]
        if speeds:
            parts = map(float, np.median(speeds, 0))
            return Speed(*parts, source=f"{len(speeds)} finished on {where}")
    return None


def _longer(job: Job, other: Job) -> float:
    """How many times longer its episodes are than another's; as long where the benchmark does not say."""
    row, known = tasks.find(job.task), tasks.find(other.task)
    return row.horizon / known.horizon if row and known else 1.0


def _speed(job: Job, longer: float) -> tuple[float, float, float, float] | None:
    """Median seconds, by a run's own log, of an update, online step, evaluation so much `longer`, and of compiling.

    None if the log does not tell the speed of a phase that the run has.
    """
    plan, rows = job.plan, RunDirectory.open(job.directory, read_only=True).read_jsonl("time")

    def median(name: str, first: int = 0, last: int = plan.total) -> float:
        return float(np.median([row[name] for row in rows if name in row and first <= row["step"] <= last] or [0.0]))

    phases = [(plan.steps, (1, plan.steps)), (plan.online_steps, (plan.steps + 1, plan.total))]
    rates = [median("time/steps_per_second", *span) if count else np.inf for count, span in phases]
    if 0.0 in rates:
        return None
    compilations = sum(count > 0 for count, _ in phases)
    return 1 / rates[0], 1 / rates[1], longer * median("time/evaluation"), compilations * median("time/compile")


def timed(job: Job) -> Speed | None:
    """From a short timing of the update, here and now. Evaluations are not in it, and pixels are not timed."""
    from fidec.bench.timing import milliseconds

    row = tasks.find(job.task)
    if row is None or row.visual:
        return None
    spec = Spec(row.observation_shape, row.action_dim)
    found = milliseconds({job.variant.method: job.options()}, spec, job.plan.batch_size, rounds=3)
    update = found[job.variant.method] / 1e3
    without = "without evaluations" + " and the environment's steps" * bool(job.plan.online_steps)
    return Speed(update, update, 0.0, 0.0, f"timed now, {without}")


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
