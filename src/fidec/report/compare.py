"""Compare finished runs: scores with intervals, paired differences, and the options in which the methods differ.

Runs that were trained for the same environment on the same data and evaluated in the same way make one comparison.
Runs that differ in their seeds only are replicates of one method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import RunError
from fidec.register import unknown
from fidec.report.charts import Chart, Line
from fidec.report.runs import RETURN, SUCCESS, RunResults, by_method, by_place, comparable, differing, read_all
from fidec.stats import Difference, Interval, nested_mean, success_difference, success_rate
from fidec.store.files import to_builtin
from fidec.store.staging import local_run
from fidec.train.config import RunConfig

_OF_EPISODES = {SUCCESS: ("success", 100.0), RETURN: ("return", 1.0)}  # scores that are means over episodes


class Entry(NamedTuple):
    """One method of a comparison."""

    name: str
    runs: list[RunResults]
    mean: float  # of the runs' last scores
    interval: Interval  # over runs and their episodes; (nan, nan) if it is not known
    episodes: int
    against: Difference | None = None  # to the baseline; None if they share no episodes
    pairs: str = ""  # what the difference was computed from


class Comparison(NamedTuple):
    """The methods that were trained for one environment on one data set. The first run stands for all of them."""

    entries: list[Entry]
    baseline: str
    options: list[str]  # in which the methods differ

    @property
    def example(self) -> RunResults:
        return self.entries[0].runs[0]


class Compared(NamedTuple):
    """All comparisons, and the paths that are in none, with the reason."""

    comparisons: list[Comparison]
    left_out: dict[Path, str]


def compare(paths: Iterable[str | Path], baseline: str = "") -> Compared:
    """Compare the runs at URLs, or among the paths and below them.

    `baseline` is the name of a method, by default the first.
    """
    runs, left_out = read_all(map(local_run, paths))
    return compare_runs(runs, baseline, left_out)


def compare_runs(
    runs: Iterable[RunResults], baseline: str = "", left_out: Mapping[Path, str] | None = None
) -> Compared:
    """Compare runs that are read already. `left_out` are the paths that could not be read."""
    chosen, others = comparable(runs)
    left_out = {**(left_out or {}), **others}
    if not chosen:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in left_out.items())
        raise RunError(f"there is no finished run with an evaluation to compare. {reasons or 'No path was given.'}")
    named = [{_name(group[0], chosen): group for group in by_method(place)} for place in by_place(chosen)]
    known = list(dict.fromkeys(name for groups in named for name in groups))
    if baseline and baseline not in known:
        raise unknown("method among these runs", baseline, known)
    return Compared([_comparison(groups, baseline) for groups in named], left_out)


def _name(run: RunResults, runs: Sequence[RunResults]) -> str:
    """The method, with the options in which runs of this method and preset differ."""
    options = run.options()
    names = differing([other for other in runs if other.method == run.method])
    return " ".join([run.method, *(f"{_short(name)}={_text(options[name])}" for name in names if name in options)])


def _comparison(groups: dict[str, list[RunResults]], baseline: str) -> Comparison:
    first = baseline if baseline in groups else next(iter(groups))
    entries = [_entry(name, runs, groups[first] if name != first else None) for name, runs in groups.items()]
    return Comparison(entries, first, differing([runs[0] for runs in groups.values()]))


def _entry(name: str, runs: list[RunResults], others: list[RunResults] | None) -> Entry:
    episodes = sum(run.scored[-1].get("evaluation/n") or 0 for run in runs)
    entry = Entry(name, runs, float(np.mean([run.score for run in runs])), _interval_of(runs), episodes)
    by_seed = {run.config.seed: run for run in others or ()}
    both = [(by_seed[run.config.seed], run) for run in runs if run.config.seed in by_seed]
    shared = [pair for pair in both if pair[0].last_episodes and _starts(pair[0]) == _starts(pair[1])]
    return entry._replace(**_against(shared)) if shared else entry


def _interval_of(runs: Sequence[RunResults]) -> Interval:
    """Of the mean: over runs and their episodes; over runs alone if the score is not a mean over episodes."""
    if len(runs) == 1 and (name := _OF_EPISODES.get(runs[0].of)):
        ends = [runs[0].scored[-1].get(f"evaluation/{name[0]}_{end}") for end in ("low", "high")]
        return Interval(*(math.nan if end is None else name[1] * end for end in ends))  # Wilson's for success
    interval_of = success_rate if runs[0].of == SUCCESS else nested_mean
    return _scaled(interval_of([_values(run) for run in runs]), runs[0])


def _against(shared: Sequence[tuple[RunResults, RunResults]]) -> dict[str, Any]:
    """The difference between runs with the same seed on the same episodes."""
    pairs = [np.subtract(_values(run, failed=True), _values(other, failed=True)) for other, run in shared]
    pairs = [values[~np.isnan(values)] for values in pairs]
    pairs = [values for values in pairs if len(values)]
    if not pairs:
        return {}
    run, count = shared[0][0], sum(map(len, pairs))
    mean = _factor(run) * float(np.mean([values.mean() for values in pairs]))
    interval_of = success_difference if run.of == SUCCESS else nested_mean
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    text = f"{count} episodes, {seeds}" if run.of in _OF_EPISODES else seeds
    return {"against": Difference(mean, *_scaled(interval_of(pairs), run), count), "pairs": text}


def _starts(run: RunResults) -> list[tuple[int, int]]:
    return [(row["episode"], row["seed"]) for row in run.last_episodes]


def _values(run: RunResults, failed: bool = False) -> list[float]:
    """The success or return of each episode, with `failed` also NaN for failed ones; else the score itself."""
    if run.of not in _OF_EPISODES:
        return [run.score]
    name = _OF_EPISODES[run.of][0]  # an episode that reports no success, where others do, is a failure
    numbers = [(row.get(name) or 0.0) if row.get("status") == "ok" else math.nan for row in run.last_episodes]
    known = [number for number in numbers if not math.isnan(number)]
    return numbers if failed else known or [run.score / _factor(run)]


def _factor(run: RunResults) -> float:
    """The score is the mean over episodes, multiplied by this."""
    return _OF_EPISODES[run.of][1] if run.of in _OF_EPISODES else 1.0


def _scaled(interval: Interval, run: RunResults) -> Interval:
    return Interval(*(_factor(run) * end for end in interval))


# --- output -----------------------------------------------------------------------------------------------------


def title(comparison: Comparison) -> str:
    """What was trained for, on which data, and how it was evaluated."""
    run = comparison.example
    data = f"data {run.data['name']} ({run.data['transitions']:,} transitions, SHA-256 {run.data['sha256'][:12]})"
    second = f", second data set with SHA-256 {run.buffer[:12]}" if run.buffer else ""
    protocol = {
        name: value for name, value in run.protocol().items() if value is not None and name != "eval_episodes"
    }
    how = "".join(f", {name} {value}" for name, value in protocol.items() if value != getattr(RunConfig(), name))
    return f"{run.config.env_name}, {data}{second}, {run.config.eval_episodes} episodes an evaluation{how}"


def table(comparison: Comparison) -> list[list[str]]:
    """Header and rows."""
    columns = ["method", comparison.example.unit, "95 % interval", "runs", "episodes"]
    rows = [
        [e.name, f"{e.mean:.1f}", _interval(e.interval, ".1f"), str(len(e.runs)), str(e.episodes)]
        for e in comparison.entries
    ]
    if len(rows) == 1:
        return [columns, *rows]
    columns += [f"against {comparison.baseline}", "95 % interval", "pairs"]
    for row, entry in zip(rows, comparison.entries, strict=True):
        gain = entry.against
        interval = "-" if gain is None else _interval(Interval(gain.low, gain.high), "+.1f")
        row += ["-"] * 3 if gain is None else [f"{gain.mean:+.1f}", interval, entry.pairs]
    return [columns, *rows]


def options_table(comparison: Comparison) -> list[list[str]]:
    """Header and rows: the values of the options in which the methods differ; empty if there are none."""
    if not comparison.options:
        return []
    rows = [[e.name, *(_value(e.runs[0], name) for name in comparison.options)] for e in comparison.entries]
    return [["method", *map(_short, comparison.options)], *rows]


def note(compared: Compared) -> str:
    """The meaning of the numbers."""
    lines = [
        "Scores are means over runs of the evaluation at the last step.",
        "Intervals are by bootstrap over runs and their episodes. Those of success are at least as wide as Wilson's "
        "for the episodes.",
    ]
    if len(compared.comparisons) > 1:
        lines.append("Runs on other data, or evaluated in another way, are in tables of their own.")
    if any(entry.against for each in compared.comparisons for entry in each.entries):
        lines.append("Differences are between runs with the same seed, whose episodes start alike.")
    return "\n".join(lines)


def to_json(compared: Compared) -> dict[str, Any]:
    return to_builtin(
        {
            "comparisons": [_comparison_json(each) for each in compared.comparisons],
            "left_out": [{"directory": str(path), "reason": reason} for path, reason in compared.left_out.items()],
        }
    )


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    run = comparison.example
    return {
        "environment": run.config.env_name,
        "data": dict(run.data),
        "unit": run.unit,
        "protocol": run.protocol(),
        "baseline": comparison.baseline,
        "methods": [
            {
                "name": e.name,
                "algo": e.runs[0].config.algo,
                "preset": e.runs[0].config.preset,
                "options": {name: e.runs[0].options().get(name) for name in comparison.options},
                "mean": e.mean,
                **e.interval._asdict(),
                "episodes": e.episodes,
                "runs": [{"directory": str(r.directory), "seed": r.config.seed, "score": r.score} for r in e.runs],
                "against": None if e.against is None else {**e.against._asdict(), "pairs": e.pairs},
            }
            for e in comparison.entries
        ],
    }


def curves(comparison: Comparison, title: str = "Learning curves") -> Chart:
    """A line for the mean over the runs of each method, at the steps that they share, and a band for their range.

    A method without an offline phase begins where the online phase of the others begins, so that the same position
    means the same number of online steps for all methods.
    """
    configs = [entry.runs[0].config for entry in comparison.entries]
    steps, online = max(config.steps for config in configs), max(config.online_steps for config in configs)
    lines, several = [], max(len(entry.runs) for entry in comparison.entries) > 1
    for entry, config in zip(comparison.entries, configs, strict=True):
        late = config.online_steps and not config.steps and steps
        shared = sorted(set.intersection(*(set(run.curve) for run in entry.runs)))
        values = np.array([[run.curve[step] for step in shared] for run in entry.runs])
        ends = (values.min(0).tolist(), values.max(0).tolist()) if len(entry.runs) > 1 else (None, None)
        name = entry.name + (" (no offline phase)" if late else "")
        lines.append(Line(name, [step + late for step in shared], values.mean(0).tolist(), *ends))
    unit = comparison.example.unit
    limits = (-3.0, 103.0) if unit == SUCCESS else None
    marks = [("online", steps)] if online and steps else []
    note = "Lines: mean over runs; bands: from the worst to the best run." if several else "One run for each line."
    return Chart(title, "step" if online else "update", unit, lines, limits=limits, marks=marks, note=note)


def draw(compared: Compared, path: str | Path) -> Path:
    """Write a PNG of the learning curves: one panel for each comparison."""
    from fidec.report.figures import draw_charts  # imports matplotlib

    charts, places = [], [str(each.example.config.env_name) for each in compared.comparisons]
    for comparison, place in zip(compared.comparisons, places, strict=True):
        run, protocol = comparison.example, ""
        if places.count(place) > 1:
            protocol = f", data {run.data['sha256'][:12]}, {run.config.eval_episodes} episodes"
        charts.append(curves(comparison, place + protocol))
    caption = next((chart.note for chart in charts if "bands" in chart.note), charts[0].note)
    return draw_charts(charts, path, title="Learning curves", caption=caption)


def _interval(interval: Interval, form: str) -> str:
    return "-" if math.isnan(interval.low) else f"[{interval.low:{form}}, {interval.high:{form}}]"


def _short(name: str) -> str:
    return name.removeprefix("algo.")


def _value(run: RunResults, name: str) -> str:
    options = run.options()
    return _text(options[name]) if name in options else "-"


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
