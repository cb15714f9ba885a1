"""The comparison that decides on the preset nats: `python -m benchmarks.trust [--tasks PATTERN ...] [--judge]`.

Trains the suite `trust` (finished runs are kept), plays clones and policies with and without their noise, audits the
policies, adds the scores of all episodes to a file, and prints the four conditions of docs/trust.md for all tasks of
that file. So the tasks can be run on several machines and days.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.bench.jobs import SuiteJob, jobs
from fidec.bench.suites import find_suite
from fidec.cli.audit import main as audit
from fidec.cli.evaluate import main as evaluate
from fidec.cli.parsing import parse, print_table
from fidec.cli.suite import main as suite
from fidec.envs.factory import factory_of
from fidec.errors import RunError
from fidec.plots import BLUE, GREEN, GREY, INK, ORANGE, new_figure, save_figure, style_axes
from fidec.stats import (
    Difference,
    Interval,
    interquartile_mean,
    nested_mean,
    probability_of_improvement,
    success_difference,
)
from fidec.store.files import atomic_write
from fidec.store.rundir import AUDIT, RunDirectory

CANDIDATE = "fidec:nats"
CLONES = ("bc", "flow_bc", "flow_bc noise 0")
RIVALS = ("deflow", "fql", "iql")
FILE = Path(__file__).with_suffix(".jsonl")
LIKELY, LOOSE = 0.75, 1.5  # P(better) over each rival, and audited KL by the budget
STATES, SAMPLES = "96", "24"  # of an audit

Scores = dict[str, dict[int, list[float]]]  # by policy and seed, one number an episode
Distances = dict[str, dict[int, float]]  # by policy and seed: the mean audited KL over the budget


class Results(NamedTuple):
    """What was measured on one task."""

    scores: Scores
    kl: Distances


@dataclass(frozen=True)
class TrustArgs:
    """Run the suite trust, measure its policies, and say which conditions of docs/trust.md hold."""

    tasks: tuple[str, ...] = ()
    """Tasks of the suite; patterns are allowed. By default all."""
    out: Path = Path("suite-trust")
    """Directory of the runs."""
    results: Path = FILE
    """File with the scores of all tasks so far. Tasks that are run are replaced in it."""
    workers: int = 2
    """Processes in parallel."""
    judge: bool = False
    """Only print the conditions for the tasks of the file."""
    figure: Path | None = None
    """Also draw the scores of the file as a PNG."""


def main(argv: list[str] | None = None) -> list[Condition]:
    args = parse(TrustArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.trust")
    results = read_results(args.results)
    if not args.judge:
        chosen = ["--tasks", *args.tasks] if args.tasks else []
        suite(["run", "trust", "--out", str(args.out), "--workers", str(args.workers), *chosen])
        found = jobs(find_suite("trust"), out=args.out, data_dir=args.out / "data", patterns=args.tasks)
        for task in dict.fromkeys(job.task for job in found):
            own = [job for job in found if job.task == task]
            if all((job.directory / "run.json").exists() and job.state() == "done" for job in own):
                results[task] = measure(own)
                write_results(args.results, results)
            else:
                print(f"{task}: not all of its runs are finished, so it is left out", file=sys.stderr)
    if not results:
        raise RunError(f"{args.results} has no task: run some, without --judge")
    if args.figure is not None:
        print(draw(results, args.figure))
    print_table(*table(results))
    conditions = judge(results)
    print_table(("condition", "holds", "measured"), [(each.name, each.word, each.text) for each in conditions])
    return conditions


def read_results(path: Path) -> dict[str, Results]:
    """The file has a line for each policy, task and seed."""
    results: dict[str, Results] = {}
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
        scores, kl = results.setdefault(row["task"], Results({}, {}))
        scores.setdefault(row["policy"], {})[row["seed"]] = row["scores"]
        if "kl_by_budget" in row:
            kl.setdefault(row["policy"], {})[row["seed"]] = row["kl_by_budget"]
    return results


def write_results(path: Path, results: Mapping[str, Results]) -> None:
    lines = []
    for task, (scores, kl) in results.items():
        for policy, runs in scores.items():
            for seed, episodes in runs.items():
                row = {"task": task, "policy": policy, "seed": seed, "scores": episodes}
                ratio = kl.get(policy, {}).get(seed)
                lines.append(json.dumps(row if ratio is None else row | {"kl_by_budget": ratio}))
    atomic_write(path, "\n".join([*lines, ""]))


# --- measurements ---------------------------------------------------------------------------------------------------


def measure(own: Sequence[SuiteJob]) -> Results:
    """Scores of every episode and audited distances of the finished runs of one task."""
    results = Results({}, {})
    for job in own:
        label = job.variant.label
        rows = RunDirectory.open(job.directory, read_only=True).read_jsonl("episodes")
        _add(results, label, job, [row for row in rows if row["step"] == job.plan.total])
        if label in (CANDIDATE, "flow_bc"):
            for cell in _cells(job):
                if cell["strength"] == 0 or cell["noise"] == 0:
                    clone = " clone" * (cell["strength"] == 0)
                    _add(results, f"{label}{clone} noise {cell['noise']:g}", job, cell["episodes"])
        if label == CANDIDATE:
            results.kl.setdefault(label, {})[job.seed] = _distance(job)
    return results


def _add(results: Results, label: str, job: SuiteJob, rows: Iterable[dict[str, Any]]) -> None:
    """The scores of one evaluation. A failed episode has none, and would break the pairs."""
    factory = factory_of(job.suite_task.id, None)
    assert factory is not None
    scored = (factory.score(row) for row in rows if row["status"] == "ok")
    values = [value for value in scored if value is not None]
    if len(values) != job.plan.eval_episodes:
        raise RunError(f"{job.directory}: {label} has {len(values)} of {job.plan.eval_episodes} episodes")
    results.scores.setdefault(label, {})[job.seed] = [round(value, 2) for value in values]


def _cells(job: SuiteJob) -> list[dict[str, Any]]:
    """The policy with and without its noise, and its clone."""
    cells = []
    for noise, strength in product((0, 1), (0, 1) if job.variant.method == "fidec" else (1,)):
        output = StringIO()
        with redirect_stdout(output):
            dials = ["--noise", str(noise), "--strength", str(strength)]
            evaluate([str(job.directory), *dials, "--episodes", str(job.plan.eval_episodes), "--json"])
        (episodes,) = json.loads(output.getvalue())["episodes"].values()
        cells.append({"noise": noise, "strength": strength, "episodes": episodes})
    return cells


def _distance(job: SuiteJob) -> float:
    path = job.directory / AUDIT / "audit.json"
    if not path.exists():
        audit([str(job.directory), "--states", STATES, "--samples", SAMPLES])
    result = json.loads(path.read_text())
    return round(result["kl"]["mean"] / result["penalty"]["budget"], 4)


# --- conditions -----------------------------------------------------------------------------------------------------


class Condition(NamedTuple):
    name: str
    holds: bool
    text: str

    @property
    def word(self) -> str:
        return "yes" if self.holds else "no"


def judge(results: Mapping[str, Results]) -> list[Condition]:
    """The four conditions, in the order of docs/trust.md."""
    conditions = []
    for task, each in results.items():
        clone = max(CLONES, key=lambda name: mean(each.scores[name]))
        gain = paired(each.scores[clone], each.scores[CANDIDATE])
        text = f"{gain.mean:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}] against {clone}, {gain.n} pairs of episodes"
        conditions.append(Condition(f"{task}: not below the better clone", gain.high >= 0, text))
    everywhere = [name for name in common(results) if " clone " not in name]
    middles = {name: interquartile_mean(of_tasks(results, name)) for name in everywhere}
    best = max(middles, key=lambda name: middles[name].value)
    text = ", ".join(f"{name} {each.value:.1f}" for name, each in middles.items())
    conditions.append(Condition("best interquartile mean", best == CANDIDATE, text))
    for rival in RIVALS:
        better = probability_of_improvement(of_tasks(results, CANDIDATE), of_tasks(results, rival))
        text = f"{better.value:.2f} [{better.low:.2f}, {better.high:.2f}]"
        holds = better.value > LIKELY and better.low > 0.5
        conditions.append(Condition(f"P(better than {rival}) above {LIKELY}", holds, text))
    for task, each in results.items():
        ratios = list(each.kl[CANDIDATE].values())
        text = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        conditions.append(
            Condition(f"{task}: audited KL / budget at most {LOOSE}", bool(np.mean(ratios) <= LOOSE), text)
        )
    return conditions


def mean(runs: Mapping[int, Sequence[float]]) -> float:
    return float(np.mean([np.mean(episodes) for episodes in runs.values()]))


def paired(before: Mapping[int, Sequence[float]], after: Mapping[int, Sequence[float]]) -> Difference:
    """The difference between runs with the same seed, whose episodes start alike."""
    pairs = [np.subtract(after[seed], before[seed]) for seed in after if seed in before]
    if {value for runs in (before, after) for run in runs.values() for value in run} <= {0.0, 100.0}:
        interval = Interval(*(100 * end for end in success_difference([each / 100 for each in pairs])))
    else:
        interval = nested_mean(pairs)
    return Difference(float(np.mean([each.mean() for each in pairs])), *interval, sum(map(len, pairs)))


def common(results: Mapping[str, Results]) -> list[str]:
    """The policies that all tasks have."""
    return [name for name in next(iter(results.values())).scores if all(name in r.scores for r in results.values())]


def of_tasks(results: Mapping[str, Results], name: str) -> list[list[float]]:
    """The runs' scores for each task."""
    return [[float(np.mean(episodes)) for episodes in each.scores[name].values()] for each in results.values()]


def table(results: Mapping[str, Results]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: a policy a row, a task a column, the score of every seed."""
    names = dict.fromkeys(name for each in results.values() for name in each.scores)
    scored = {name: [each.scores.get(name, {}) for each in results.values()] for name in names}
    cells = {
        name: [" ".join(f"{np.mean(e):.0f}" for e in runs.values()) for runs in own] for name, own in scored.items()
    }
    return ("policy", *results), [(name, *own) for name, own in cells.items()]


def draw(results: Mapping[str, Results], path: Path) -> Path:
    """One panel a task: a row for each policy, a dot for each seed, a bar at their mean."""
    names = list(dict.fromkeys(name for each in results.values() for name in each.scores if " clone " not in name))
    figure = new_figure(max(7.5, 3.0 + 2.2 * len(results)), 1.2 + 0.28 * len(names))
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for panel, (task, each) in zip(panels, results.items(), strict=True):
        for row, name in enumerate(names):
            runs = [float(np.mean(episodes)) for episodes in each.scores.get(name, {}).values()]
            colour = BLUE if name.startswith(CANDIDATE) else GREEN if name in CLONES else ORANGE
            panel.plot(runs, [row] * len(runs), "o", color=colour, markersize=4, alpha=0.6, linestyle="none")
            panel.plot([np.mean(runs)] if runs else [], [row] if runs else [], "|", color=colour, markersize=13)
        panel.axvline(max(mean(each.scores[name]) for name in CLONES), color=GREY, linewidth=1, linestyle="--")
        panel.set_title(
            task.replace("-singletask-", " ").replace("-v0", "").replace("-v1", ""), fontsize=8, color=INK
        )
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.tick_params(labelsize=8)
        style_axes(panel)
    panels[0].set_yticks(range(len(names)), names)
    text = "success in percent or normalised score; dots are seeds, bars their mean; dashed: the better clone"
    figure.supxlabel(text, fontsize=8, color=GREY)
    return save_figure(figure, path)


if __name__ == "__main__":
    main()
