"""The table of a suite's finished runs, in any format."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fidec import tasks
from fidec.bench import render as rendering
from fidec.bench import scores as benchmark
from fidec.bench.jobs import Job
from fidec.bench.scale import Scale, benchmark_plan
from fidec.bench.suites import Suite
from fidec.errors import ConfigError, FidecError, RunError
from fidec.report import table
from fidec.store import files


def render(jobs: Sequence[Job], scale: Scale | None, out: Path, form: str, baseline: str = "") -> str:
    """The table as text; of a suite with one task it is the comparison with costs."""
    if len(jobs[0].suite.tasks) == 1:
        return _comparison([job for job in jobs if _is_done(job)], jobs[0].suite.name, out, form)
    runs = finished(jobs)
    report = _report(jobs, runs, scale, baseline)
    if form == "md":
        return rendering.markdown(report)
    if form == "tex":
        return rendering.tex(report)
    if form == "csv":
        return rendering.comma_separated(report).rstrip()
    content = {
        "title": report.title,
        "caption": report.caption,
        "baseline": report.baseline,
        "scale": scale.name if scale else None,
        "lines": [benchmark.plain(line) for line in report.lines],
        "runs": [
            {
                "directory": str(run.job.directory),
                "task": run.job.task,
                "method": run.job.variant.label,
                "seed": run.job.seed,
                "score": run.score,
                "before": run.before,
                "data": run.data._asdict(),
            }
            for run in runs
        ],
    }
    return json.dumps(content, indent=2, allow_nan=False)


def _is_done(job: Job) -> bool:
    """Whether its run is finished; one of other settings is left out, which is said. The table names the data."""
    try:
        return job.state(any_data=True) == "done"
    except FidecError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False


def finished(jobs: Sequence[Job]) -> list[benchmark.Run]:
    """The runs that are finished and have their scores; what is left out is said."""
    runs = []
    for job in jobs:
        try:
            runs += [benchmark.read_run(job)] if _is_done(job) else []
        except RunError as error:
            print(f"left out: {error}", file=sys.stderr)
    return runs


def title(suite: Suite, scale: Scale | None) -> str:
    return f"Suite {suite.name}" + (f" at scale {scale.name}" if scale and suite.scale is None else "")


def _report(
    jobs: Sequence[Job], runs: Sequence[benchmark.Run], scale: Scale | None, baseline: str
) -> rendering.Report:
    labels = dict.fromkeys(job.variant.label for job in jobs)
    if baseline and baseline not in labels:
        raise ConfigError(f"--baseline {baseline}: the table has {', '.join(labels)}")
    baseline = baseline or ("fql" if "fql" in labels else "deflow" if "deflow" in labels else next(iter(labels)))
    return rendering.Report(
        title=title(jobs[0].suite, scale),
        caption=_caption(jobs, runs, scale),
        lines=benchmark.summarise(jobs, runs, baseline),
        data={run.job.task: run.data for run in runs},
        baseline=baseline,
    )


def _caption(jobs: Sequence[Job], runs: Sequence[benchmark.Run], scale: Scale | None) -> str:
    """What the numbers are, and what they are not."""
    suite = jobs[0].suite
    online = suite.setting == "online"
    if not runs:
        phases = " before → after the online phase" if online else ""
        return f"No run of ours is finished yet. Cells: ours (the paper's{phases})."
    seeds = sorted({run.job.seed for run in runs})
    kinds = sorted({run.data.kind for run in runs})
    count = len({run.job.task for run in runs})
    cells = "Cells: ours, before → after the online phase" if online else "Cells: ours"
    paper = " (the paper's in brackets)" if _reported(runs) else ""
    parts = [
        _protocol(runs, scale),
        f"Data {' and '.join(kinds)}{', not the official files' * (kinds == ['regenerated'])}.",
        f"{count} of the suite's {len(suite.tasks)} tasks have runs; seeds {_words(seeds)}; {_length(runs)}.",
        _score(runs),
        f"{cells}, mean ± std over seeds{paper}.",
    ]
    if any((row := tasks.find(run.job.task)) and row.benchmark == "d4rl" for run in runs):
        from fidec.envs.families.d4rl import note

        parts.append(f"{note()}.")
    after = ", after the online phase" if online else ""
    if len(seeds) > 1:
        parts.append(
            f"IQM: interquartile mean over tasks and seeds{after}. Intervals: 95 %, stratified bootstrap over seeds."
        )
    else:
        parts.append(f"IQM: interquartile mean over tasks{after}. One seed has no spread and no interval.")
    return " ".join(parts)


def _reported(runs: Sequence[benchmark.Run]) -> bool:
    """Whether the paper has a number for any of them."""
    return any(run.job.variant.reported(run.job.task, run.job.suite.setting) for run in runs)


def _length(runs: Sequence[benchmark.Run]) -> str:
    """How long they are, in words."""
    plans = [run.job.plan for run in runs]
    offline = _words(sorted({plan.steps for plan in plans if plan.steps}))
    online = _words(sorted({plan.online_steps for plan in plans if plan.online_steps}))
    if not online:
        return f"{offline} steps"
    without = sorted({run.job.variant.label for run in runs if not run.job.plan.steps})
    phases = f"{offline} offline + {online} online steps" if offline else f"{online} online steps"
    return phases + (f", {' and '.join(without)} without an offline phase" if without and offline else "")


def _score(runs: Sequence[benchmark.Run]) -> str:
    """Which evaluations make the score."""
    plans = [run.job.plan for run in runs]
    episodes = _words(sorted({plan.eval_episodes for plan in plans}))
    if any(plan.online_steps for plan in plans):
        return (
            f"Score: as published, single evaluations, at the hand-over (before) and at the end (after), "
            f"of {episodes} episodes each, in percent."
        )
    counts = sorted({len(plan.averaged) for plan in plans})
    averaged = " or ".join("the last evaluation" if n == 1 else f"the last {n} evaluations" for n in counts)
    return f"Score: mean of {averaged} of {episodes} episodes, in percent."


def _protocol(runs: Sequence[benchmark.Run], scale: Scale | None) -> str:
    """Whether the runs are as long as the published ones, and what else they are."""
    plans = [run.job.plan for run in runs]
    if scale is not None:
        own = all(plan == scale.plan() for plan in plans)
        summary = scale.summary if own else scale.summary.replace(f"{scale.steps:,} steps", "steps")
        how = f"Reduced scale ({summary})"
    else:
        rows = [tasks.find(run.job.task, run.job.suite.setting) for run in runs]
        published = [benchmark_plan(row, run.job.variant.method) for row, run in zip(rows, runs, strict=True) if row]
        if plans == published:
            return "The published protocol."
        longer = any(plan.total > other.total for plan, other in zip(plans, published, strict=False))
        how = f"{'Another length' if longer else 'Shortened'}: {_length(runs)}"
    orientation = ": the paper's numbers are for orientation only" if _reported(runs) else ""
    return f"{how}, not the published protocol{orientation}."


def _words(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


# --- one task: the comparison with costs --------------------------------------------------------------------------


def _timing(out: Path) -> Path:
    return out / "timing.json"


def measure(jobs: Sequence[Job], out: Path) -> None:
    """Time the updates of the finished runs' methods in one process, unless that was done."""
    from fidec.bench.timing import milliseconds
    from fidec.train.policy import load_policy

    done = files.read_json(_timing(out)) if _timing(out).exists() else {}
    policies = {job.variant.method: load_policy(job.directory) for job in jobs if job.state() == "done"}
    if set(policies) <= set(done):
        return
    spec = next(iter(policies.values())).spec
    files.write_json(_timing(out), milliseconds({name: p.options for name, p in policies.items()}, spec))


def _comparison(done: Sequence[Job], suite: str, out: Path, form: str) -> str:
    costs = files.read_json(_timing(out)) if _timing(out).exists() else {}
    rows: list[dict[str, Any]] = [table.row(job.directory, costs.get(job.variant.method)) for job in done]
    if len({each.pop("data") for each in rows}) > 1:
        raise RunError(f"the runs in {out} were not trained on the same data: they do not compare")
    if form == "json":
        return json.dumps(rows, indent=2, allow_nan=False)
    if form == "csv":
        return table.comma_separated(rows).rstrip()
    if not rows:
        raise RunError(f"no run of suite {suite!r} in {out} is finished yet")
    own = {job.variant.method: job.variant.options for job in done}
    settings = {name: ", ".join(f"`{key}` {value}" for key, value in own[name].items()) for name in own}
    return (table.tex if form == "tex" else table.markdown)(rows, settings)
