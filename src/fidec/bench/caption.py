"""The caption of a suite's table: what was run, on which data, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Sequence

from fidec import tasks
from fidec.bench.scores import Line, Run
from fidec.bench.suite import Scale, Suite, published_plan
from fidec.report.runs import SUCCESS

OTHER_CODE = "†"  # marks a number of the paper


def caption(suite: Suite, runs: Sequence[Run], lines: Sequence[Line], scale: Scale | None) -> str:
    online = suite.setting == "online"
    if not runs:
        phases = " before → after the online phase" if online else ""
        cells = f"No run of ours is finished yet. Cells: ours (the paper's{phases})."
        return " ".join(filter(None, [cells, _other_code(lines)]))
    seeds = sorted({run.job.seed for run in runs})
    kinds = sorted({run.data.kind for run in runs})
    count = len({run.job.task for run in runs})
    over, after = " and seeds" if len(seeds) > 1 else "", ", after the online phase" if online else ""
    units = dict.fromkeys(line.unit for line in lines if line.task)
    parts = [
        _protocol(runs, scale),
        f"Data {' and '.join(kinds)}{', not the official files' * (kinds == ['regenerated'])}.",
        f"{count} of the suite's {len(suite.tasks)} tasks have runs; seeds {_numbers(seeds)}; {_length(runs)}.",
        f"Score: {_score_rule(runs)}, "
        + (f"{SUCCESS} unless the row of a task names another unit." if len(units) > 1 else f"{next(iter(units))}."),
        "Tasks with different units have no common mean and no common IQM." if len(units) > 1 else "",
        f"Cells: ours{', before → after the online phase' * online}, mean ± std over seeds"
        + (" (the paper's in brackets)." if _has_reported(runs) else "."),
        _other_code(lines),
        _note(runs),
        f"IQM: interquartile mean over tasks{over}{after}."
        if any(line.iqm and line.runs > 1 for line in lines if not line.task)
        else "",
        "Intervals: 95 %, stratified bootstrap over seeds; of success also the chance of the episodes."
        if len(seeds) > 1
        else "One seed has no spread and no interval.",
    ]
    return " ".join(filter(None, parts))


def _other_code(lines: Sequence[Line]) -> str:
    """What the mark on a number of the paper means."""
    if all(line.same_code for line in lines if line.paper):
        return ""
    return f"{OTHER_CODE}: a number of code that was not released, or whose update our preset does not have."


def _note(runs: Sequence[Run]) -> str:
    """What a reader has to know about the environments."""
    if not any((row := tasks.find(run.job.task)) and row.benchmark == "d4rl" for run in runs):
        return ""
    from fidec.envs.families.d4rl import note

    return f"{note()}."


def _has_reported(runs: Sequence[Run]) -> bool:
    return any(run.job.variant.reported(run.job.task, run.job.suite.setting) for run in runs)


def _length(runs: Sequence[Run]) -> str:
    plans = [run.job.plan for run in runs]
    offline = _numbers(sorted({plan.steps for plan in plans if plan.steps}))
    online = _numbers(sorted({plan.online_steps for plan in plans if plan.online_steps}))
    if not online:
        return f"{offline} steps"
    without = sorted({run.job.variant.label for run in runs if not run.job.plan.steps})
    phases = f"{offline} offline + {online} online steps" if offline else f"{online} online steps"
    return phases + (f", {' and '.join(without)} without an offline phase" if without and offline else "")


def _score_rule(runs: Sequence[Run]) -> str:
    plans = [run.job.plan for run in runs]
    episodes = _numbers(sorted({plan.eval_episodes for plan in plans}))
    if any(plan.online_steps for plan in plans):
        return (
            "as published, single evaluations at the end of the offline phase (before) and at the end of the run "
            f"(after), of {episodes} episodes each"
        )
    counts = sorted({len(plan.averaged) for plan in plans})
    averaged = " or ".join("the last evaluation" if n == 1 else f"the last {n} evaluations" for n in counts)
    return f"mean of {averaged} of {episodes} episodes"


def _protocol(runs: Sequence[Run], scale: Scale | None) -> str:
    """Whether the runs follow the published protocol. A user's own tasks have none."""
    plans = [run.job.plan for run in runs]
    if scale is not None:
        same = all(plan == scale.plan() for plan in plans)
        size = scale.summary if same else scale.summary.replace(f"{scale.steps:,} steps", "steps")
        if all(run.job.suite_task.id is None for run in runs):
            return f"Size: {size}." if size else ""
        how = f"Reduced scale ({size})" if size else "Reduced scale"
    else:
        rows = [tasks.find(run.job.task, run.job.suite.setting) for run in runs]
        published = [published_plan(row, run.job.variant.method) for row, run in zip(rows, runs, strict=True) if row]
        if plans == published:
            return "The published protocol."
        longer = any(plan.total > other.total for plan, other in zip(plans, published, strict=False))
        how = f"{'Another length' if longer else 'Shortened'}: {_length(runs)}"
    orientation = ": the paper's numbers are for orientation only" if _has_reported(runs) else ""
    return f"{how}, not the published protocol{orientation}."


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)
