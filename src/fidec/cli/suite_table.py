"""The table of a suite's finished runs, in any format."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fidec import tasks
from fidec.errors import ConfigError, FidecError, RunError
from fidec.report import benchmark, table
from fidec.report import render as rendering
from fidec.tasks.scale import Scale, benchmark_plan
from fidec.train import files
from fidec.train.suite import Job


def render(jobs: Sequence[Job], scale: Scale | None, out: Path, form: str, baseline: str = "") -> str:
    """The table as text; of a suite with one task it is the comparison with costs."""
    done = [job for job in jobs if _is_done(job)]
    if len(jobs[0].suite.tasks) == 1:
        return _comparison(done, jobs[0].suite.name, out, form)
    report, runs = _report(jobs, done, scale, baseline)
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


def _report(
    jobs: Sequence[Job], done: Sequence[Job], scale: Scale | None, baseline: str
) -> tuple[rendering.Report, list[benchmark.Run]]:
    runs = []
    for job in done:
        try:
            runs.append(benchmark.read_run(job))
        except RunError as error:
            print(f"left out: {error}", file=sys.stderr)
    labels = dict.fromkeys(job.variant.label for job in jobs)
    if baseline and baseline not in labels:
        raise ConfigError(f"--baseline {baseline}: the table has {', '.join(labels)}")
    baseline = baseline or ("fql" if "fql" in labels else "deflow" if "deflow" in labels else next(iter(labels)))
    report = rendering.Report(
        title=f"Suite {jobs[0].suite.name}" + (f" at scale {scale.name}" if scale else ""),
        caption=_caption(jobs, runs, scale),
        lines=benchmark.summarise(jobs, runs, baseline),
        data={run.job.task: run.data for run in runs},
        baseline=baseline,
    )
    return report, runs


def _caption(jobs: Sequence[Job], runs: Sequence[benchmark.Run], scale: Scale | None) -> str:
    """What the numbers are, and what they are not."""
    suite = jobs[0].suite
    cells = "Cells: ours, mean ± std over seeds (the paper's in brackets)."
    if not runs:
        online = " before → after the online phase" if suite.setting == "online" else ""
        return f"No run of ours is finished yet. Cells: ours (the paper's{online})."
    seeds = sorted({run.job.seed for run in runs})
    steps = sorted({run.job.plan.steps for run in runs})
    counts = sorted({len(run.job.plan.averaged) for run in runs})
    averaged = " or ".join("the last evaluation" if n == 1 else f"the last {n} evaluations" for n in counts)
    episodes = sorted({run.job.plan.eval_episodes for run in runs})
    kinds = sorted({run.data.kind for run in runs})
    count = len({run.job.task for run in runs})
    parts = [
        _protocol(runs, scale),
        f"Data {' and '.join(kinds)}{', not the official files' * (kinds == ['regenerated'])}.",
        f"{count} of the suite's {len(suite.tasks)} tasks have runs; seeds {_words(seeds)}; {_words(steps)} steps.",
        f"Score: mean of {averaged} of {_words(episodes)} episodes, in percent.",
        cells,
    ]
    if any((row := tasks.find(run.job.task)) and row.suite == "d4rl" for run in runs):
        from fidec.envs.d4rl import note

        parts.append(f"{note()}.")
    if len(seeds) > 1:
        parts.append(
            "IQM: interquartile mean over tasks and seeds. Intervals: 95 %, stratified bootstrap over seeds."
        )
    else:
        parts.append("IQM: interquartile mean over tasks. One seed has no spread and no interval.")
    return " ".join(parts)


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
        longer = any(plan.steps > other.steps for plan, other in zip(plans, published, strict=False))
        steps = _words(sorted({plan.steps for plan in plans}))
        how = f"{'Another length' if longer else 'Shortened'}: {steps} steps"
    return f"{how}, not the published protocol: the paper's numbers are for orientation only."


def _words(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)


# --- one task: the comparison with costs --------------------------------------------------------------------------


def _timing(out: Path) -> Path:
    return out / "timing.json"


def measure(jobs: Sequence[Job], out: Path) -> None:
    """Time the updates of the finished runs' methods in one process, unless that was done."""
    from fidec.train.policy import load_policy
    from fidec.train.timing import milliseconds

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
