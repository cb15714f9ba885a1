"""Estimate the time of a suite's runs from the speeds of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fidec import tasks
from fidec.bench.job import RunJob
from fidec.bench.suite import Plan
from fidec.errors import RunError
from fidec.store.rundir import RunDirectory


class Speed(NamedTuple):
    """Seconds for the parts of a run, and how they were measured."""

    update: float
    online: float  # an environment step with its updates
    evaluation: float
    start: float
    source: str

    def seconds(self, plan: Plan) -> float:
        training = plan.steps * self.update + plan.online_steps * self.online
        return self.start + training + len(plan.evaluations) * self.evaluation


def estimate(job: RunJob, done: Sequence[RunJob]) -> Speed | None:
    """The speed of finished runs of the same variant: on the same task, else in the same category, else on any."""
    alike = [other for other in done if other.variant == job.variant and other.plan == job.plan]
    category = tasks.CATEGORY_OF.get(job.task)
    for where, chosen in (
        ("this task", [other for other in alike if other.task == job.task]),
        ("this category", [other for other in alike if tasks.CATEGORY_OF.get(other.task) == category]),
        ("other tasks", alike),
    ):
        speeds = [speed for other in chosen if (speed := _logged_speed(other, job))]
        if speeds:
            return Speed(*map(float, np.median(speeds, 0)), source=f"{len(speeds)} finished on {where}")
    return None


def _logged_speed(done: RunJob, job: RunJob) -> tuple[float, float, float, float] | None:
    """Median seconds of an update, online step, evaluation and compilation in the log of a finished run.

    The time of an evaluation is scaled to the length of the job's episodes. None if the log has no speed of a phase.
    """
    try:
        plan, rows = done.plan, RunDirectory.open(done.directory, read_only=True).read_jsonl("time")
    except RunError:  # an estimate can do without this run
        return None

    def median(name: str, first: int = 0, last: int = plan.total) -> float:
        return float(
            np.median(
                [row[name] for row in rows if row.get(name) is not None and first <= row["step"] <= last] or [0.0]
            )
        )

    phases = [(plan.steps, (1, plan.steps)), (plan.online_steps, (plan.steps + 1, plan.total))]
    rates = [median("time/steps_per_second", *span) if count else np.inf for count, span in phases]
    if 0.0 in rates:
        return None
    own, other = tasks.find(job.task), tasks.find(done.task)
    longer = own.horizon / other.horizon if own and other else 1.0
    compilations = sum(count > 0 for count, _ in phases)
    return 1 / rates[0], 1 / rates[1], longer * median("time/evaluation"), compilations * median("time/compile")
