"""Estimate the time of a suite's runs from the speeds of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fidec import tasks
from fidec.bench.jobs import Job
from fidec.bench.suites import Plan
from fidec.errors import RunError
from fidec.store.rundir import RunDirectory


class Speed(NamedTuple):
    """Seconds for the parts of a run, and how they were measured."""

    update: float
    online: float  # an environment step with its updates
    evaluation: float
    start: float
    flow: float  # the behaviour flow, if it is trained first, and its proposals
    source: str

    def seconds(self, plan: Plan) -> float:
        training = plan.steps * self.update + plan.online_steps * self.online
        return self.start + self.flow + training + len(plan.evaluations) * self.evaluation


def estimate(job: Job, done: Sequence[Job]) -> Speed | None:
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


def _logged_speed(done: Job, job: Job) -> tuple[float, float, float, float, float] | None:
    """The seconds of `Speed` in the log of a finished run: medians, and the whole time of its flow.

    The time of an evaluation is scaled to the length of the job's episodes. None if the log has no speed of a phase.
    """
    try:
        directory = RunDirectory.open(done.directory, read_only=True)
        plan, rows, training = done.plan, directory.read_jsonl("time"), _flow_seconds(directory)
    except RunError:  # an estimate can do without this run
        return None
    phases = [(plan.steps, (1, plan.steps)), (plan.online_steps, (plan.steps + 1, plan.total))]
    rates = [_median(rows, "time/steps_per_second", *span) if count else np.inf for count, span in phases]
    if 0.0 in rates:
        return None
    task, other = tasks.find(job.task), tasks.find(done.task)
    longer = task.horizon / other.horizon if task and other else 1.0
    return (
        1 / rates[0],
        1 / rates[1],
        longer * _median(rows, "time/evaluation"),
        sum(count > 0 for count, _ in phases) * _median(rows, "time/compile"),
        training + sum(row.get("time/proposals") or 0.0 for row in rows),
    )


def _flow_seconds(directory: RunDirectory) -> float:
    """The time of the run that trained the flow; 0 if there is none, or if the flow is another run's."""
    if not (directory.flow / "config.json").exists():
        return 0.0
    stage = RunDirectory.open(directory.flow, read_only=True)
    rows, status = stage.read_jsonl("time"), stage.read_status()
    rate = _median(rows, "time/steps_per_second")
    return _median(rows, "time/compile") + (status["step"] / rate if status and rate else 0.0)


def _median(rows: Sequence[dict[str, Any]], name: str, first: int = 0, last: float = np.inf) -> float:
    """Of the values between these steps; 0 if there are none."""
    values = [row[name] for row in rows if row.get(name) is not None and first <= row["step"] <= last]
    return float(np.median(values or [0.0]))
