"""The numbers of a suite's table: for each task, for each category and for all tasks, ours and the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec import algos, tasks
from fidec.bench.jobs import SuiteJob
from fidec.errors import RunError
from fidec.report.runs import OTHER, SUCCESS, mean_of, unit_of
from fidec.stats import Estimate, interquartile_mean, probability_of_improvement
from fidec.store.rundir import RunDirectory
from fidec.tasks import Reported


class Data(NamedTuple):
    """What a run was trained on."""

    name: str
    kind: str  # official, regenerated or of unknown origin
    rows: int
    sha256: str  # shown in the table: of the file if it is known, else of the arrays


class Run(NamedTuple):
    """A finished run, scored."""

    job: SuiteJob
    score: float
    before: float | None  # the score before the online phase; None if the run has only one phase
    unit: str  # of the score
    data: Data
    content: str  # SHA-256 of the arrays, which every run has: equal for the same data
    episodes: int  # of the score if it is success in percent, else 0


@dataclass(frozen=True)
class Line:
    """One method on a task, on the tasks of a category, or on all tasks."""

    level: str  # task, category or all
    category: str
    task: str  # empty unless the level is task
    method: str  # the variant's label
    unit: str = ""  # of the scores; empty if the tasks have different units: then they have no mean and no IQM
    mean: float | None = None  # over the tasks, of the means over seeds
    std: float | None = None  # over seeds, of the mean over the tasks; None with a single seed
    before: float | None = None  # the same before the online phase
    before_std: float | None = None
    runs: int = 0
    tasks: int = 0
    iqm: Estimate | None = None
    better: Estimate | None = None  # probability of improvement over the baseline
    paper: Reported | tuple[Reported, Reported] | None = None  # online before and after
    same_code: bool = False  # whether the runs' preset is that of the code behind the paper's number


def read_run(job: SuiteJob) -> Run:
    """The run of a finished job. Its score is the mean of the evaluations that its plan averages."""
    directory, plan = RunDirectory.open(job.directory, read_only=True), job.plan
    evaluations = [row for row in directory.read_jsonl("eval") if row.get("evaluation/score") is not None]
    scores = {row["step"]: float(row["evaluation/score"]) for row in evaluations}
    missing = [step for step in (*plan.before, *plan.averaged) if step not in scores]
    if missing:
        raise RunError(f"{job.directory} has no score at step {missing[0]}: it cannot be in the table")
    facts = directory.read_environment().get("dataset")
    if facts is None:
        raise RunError(f"{directory.environment} does not say what the run was trained on: it cannot be in the table")
    info = facts.get("info") or {}
    regenerated = info.get("regenerated")
    kind = "of unknown origin" if regenerated is None else "regenerated" if regenerated else "official"
    name = Path(info["file"]).stem if info.get("file") else facts["source"].partition(":")[2]
    data = Data(name, kind, facts["transitions"], info.get("file_sha256") or facts["sha256"])
    before = scores[plan.steps] if plan.before else None
    score = float(np.mean([scores[step] for step in plan.averaged]))
    counts = [row.get("evaluation/n") or 0 for row in evaluations if row["step"] in plan.averaged]
    episodes = sum(counts) if mean_of(evaluations) == SUCCESS else 0
    return Run(job, score, before, unit_of(job.suite_task.id, evaluations), data, facts["sha256"], episodes)


def units(jobs: Iterable[SuiteJob], runs: Iterable[Run]) -> dict[str, str]:
    """The unit of each task's scores."""
    unit_by_task: dict[str, str] = {}
    for run in runs:
        known = unit_by_task.setdefault(run.job.task, run.unit)
        unit_by_task[run.job.task] = run.unit if run.unit == known else OTHER
    return {job.task: unit_of(job.suite_task.id) for job in jobs} | unit_by_task


def check_same_data(runs: Iterable[Run]) -> None:
    """Raise an error if two runs on one task were trained on different data."""
    first: dict[str, Run] = {}
    for run in runs:
        other = first.setdefault(run.job.task, run)
        if other.content != run.content:
            raise RunError(
                f"the runs in {other.job.directory} and {run.job.directory} were trained on different data: "
                "they cannot be compared"
            )


def summarise(jobs: Sequence[SuiteJob], runs: Sequence[Run], baseline: str) -> list[Line]:
    """The lines of the table. Tasks and methods without a run are left out, unless there are no runs at all."""
    check_same_data(runs)
    shown, unit_of = [run.job for run in runs] or jobs, units(jobs, runs)
    variants = {job.variant.label: job for job in jobs if job.variant in [each.variant for each in shown]}
    scores, before, episodes = (
        {label: _by_task(runs, label, name) for label in {*variants, baseline}}
        for name in ("score", "before", "episodes")
    )

    def line(level: str, category: str, task: str, label: str, members: list[str]) -> Line:
        after, earlier = (_only(each[label], members) for each in (scores, before))
        unit = unit_of[members[0]] if len({unit_of[name] for name in members}) == 1 else ""
        row = Line(level, category, task, label, unit)
        if unit:
            shared, job = [name for name in members if name in after] or members, variants[label]
            row = replace(row, paper=_reported(job, category, shared), same_code=_has_same_code(job, shared))
        if not after:
            return row
        both = [name for name in after if name in scores[baseline]] if label != baseline else []
        ours, theirs = ([list(each[name].values()) for name in both] for each in (after, scores[baseline]))
        better = probability_of_improvement(ours, theirs) if both else None
        row = replace(row, runs=sum(map(len, after.values())), tasks=len(after), better=better)
        if not unit:
            return row
        (mean, std), (first, first_std) = map(_mean_and_std, (after, earlier))
        counts = [list(episodes[label][name].values()) for name in after]
        iqm = interquartile_mean([list(each.values()) for each in after.values()], episodes=counts)
        return replace(row, mean=mean, std=std, before=first, before_std=first_std, iqm=iqm)

    groups: dict[str, list[str]] = {}
    for task in dict.fromkeys(job.task for job in jobs if job.task in {each.task for each in shown}):
        groups.setdefault(_category(next(iter(variants.values())), task), []).append(task)
    lines = []
    for category, members in groups.items():
        for label in variants:
            lines += [line("task", category, task, label, [task]) for task in members]
            lines.append(line("category", category, "", label, members))
    names = [task for members in groups.values() for task in members]
    return lines + ([line("all", "all", "", label, names) for label in variants] if len(groups) > 1 else [])


def _by_task(runs: Sequence[Run], label: str, name: str) -> dict[str, dict[int, float]]:
    """A number of a variant's runs by task and seed; runs without it are left out."""
    values: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.job.variant.label == label and getattr(run, name) is not None:
            values.setdefault(run.job.task, {})[run.job.seed] = getattr(run, name)
    return values


def _only(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _category(job: SuiteJob, task: str) -> str:
    """The paper's category of a task. The tasks of an ablation are one category, and so are a user's own."""
    row = tasks.find(task, job.suite.setting)
    return row.category if row and not job.variant.paper else job.suite.name


def _reported(job: SuiteJob, category: str, members: list[str]) -> Any:
    """The paper's number for these tasks: the printed one for a task or a whole category, else the mean."""
    if len(members) == 1:
        return job.variant.reported(members[0], job.suite.setting)
    count, numbers = tasks.CATEGORIES.get(category, (0, {}))
    if job.suite.setting == "offline" and count == len(members) and job.variant.method in numbers:
        return numbers[job.variant.method]
    reported = [job.variant.reported(task, job.suite.setting) for task in members]
    if None in reported:
        return None
    if job.suite.setting == "online":
        return tuple(Reported(float(np.mean([pair[k].mean for pair in reported])), None) for k in (0, 1))
    return Reported(float(np.mean([each.mean for each in reported])), None)


def _has_same_code(job: SuiteJob, members: list[str]) -> bool:
    """Whether the preset has the update of the code behind the paper's numbers for these tasks.

    A number without a spread was copied from earlier work, which had other code.
    """
    variant = job.variant
    changed = variant.options or variant.paper or job.suite_task.options.get(variant.method)
    reported = [variant.reported(task, job.suite.setting) for task in members]
    first = [each if each is None or isinstance(each, Reported) else each[0] for each in reported]
    measured = all(each is not None and each.std is not None for each in first)
    return measured and not changed and variant.preset == algos.get(variant.method).parity


def _mean_and_std(runs: dict[str, dict[int, float]]) -> tuple[float | None, float | None]:
    """Mean over tasks of the means over seeds; standard deviation over common seeds of the means over tasks."""
    if not runs:
        return None, None
    seeds = set.intersection(*map(set, runs.values()))
    by_seed = [float(np.mean([scores[seed] for scores in runs.values()])) for seed in seeds]
    mean = float(np.mean([np.mean(list(scores.values())) for scores in runs.values()]))
    return mean, float(np.std(by_seed, ddof=1)) if len(by_seed) > 1 else None


def to_row(line: Line) -> dict[str, Any]:
    """A line as one flat row for CSV and JSON. Unknown values are None."""
    names = ("level", "category", "task", "method", "unit", "mean", "std", "before", "before_std", "runs", "tasks")
    row = {name: getattr(line, name) for name in names}
    for name, estimate in (("iqm", line.iqm), ("better", line.better)):
        parts = estimate if estimate else (math.nan,) * 3
        values = [value if math.isfinite(value) else None for value in parts]
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    before, after = (None, line.paper) if line.paper is None or isinstance(line.paper, Reported) else line.paper
    row |= {"paper": after.mean if after else None, "paper_std": after.std if after else None}
    same_code = line.same_code if line.paper else None
    return row | {"paper_before": before.mean if before else None, "paper_same_code": same_code}
