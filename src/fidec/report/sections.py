"""The parts of a report about one run."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fidec.report.charts import Chart, Line, draw, number
from fidec.report.concerns import Concern, concerns
from fidec.report.html import Html, join, pairs, table, tag
from fidec.report.runs import RunResults, column
from fidec.train.provenance import DEFAULT, command_of, options_of

EPISODES = 2_000  # rows of a table; a browser sorts and filters these at once


def run_section(run: RunResults, number_: int, points: int, page: Path, embed: bool, short: bool = False) -> Html:
    """Everything about one run. `page` is the file, to which links are relative.

    A `short` section has the episodes of the last evaluation, and the options that are not the default.
    """
    name = f"run{number_}"
    return tag(
        "section",
        tag("h2", run.name, id=name),
        tag("p", f"{run.directory}", class_="soft"),
        warnings(concerns(run)),
        tag("div", *(draw(chart, points) for chart in run_charts(run)), class_="charts"),
        *_comparison(run),
        *_audit(run),
        *_videos(run, page, embed),
        tag("h3", "What was trained on what"),
        pairs(_facts(run)),
        *_time(run),
        *_episodes(run, name, short),
        *_options(run, name, short),
        *_command(run),
        class_="run",
        aria_labelledby=name,
    )


def warnings(listed: Sequence[Concern]) -> Html:
    words = {"bad": "Problem: ", "warning": "Note: "}
    items = [tag("li", tag("strong", words[each.severity]), each.text, class_=each.severity) for each in listed]
    return tag("ul", *items, class_="warnings") if items else join()


# --- charts -----------------------------------------------------------------------------------------------------


def run_charts(run: RunResults) -> Iterator[Chart]:
    steps = [row["step"] for row in run.train]
    marks = [("online", run.config.steps)] if run.config.online_steps and run.config.steps else []
    x = "step" if run.config.online_steps else "update"
    of, name = run.measure
    note = f"{run.config.eval_episodes} episodes an evaluation, 95 % intervals." if run.evaluations else ""
    evaluated = [row for row in run.evaluations if row.get(f"evaluation/{of}") is not None]
    ends = [column(evaluated, f"evaluation/{of}{end}") for end in ("", "_low", "_high")]
    lines = [Line(name, [row["step"] for row in evaluated], *ends)] if evaluated else []
    explored = run.column(f"exploration/{of}")
    if any(map(math.isfinite, explored)):
        known = [(s, v) for s, v in zip(steps, explored, strict=True) if math.isfinite(v)]
        lines.append(Line("exploring", [s for s, _ in known], [v for _, v in known]))
    for kind in ("base", "refined"):
        summary: dict[str, Any] = (run.comparison or {}).get(kind) or {}
        if run.comparison and summary.get(of) is not None:
            ends = [column([summary], f"{of}{end}") for end in ("", "_low", "_high")]
            lines.append(Line(f"{kind} policy", [run.comparison.get("step", 0)], *ends))
    yield Chart(
        "Evaluation", x, name, lines, limits=(-0.03, 1.03) if of == "success" else None, marks=marks, note=note
    )

    def logged(title: str, label: str, names: dict[str, str], **how: Any) -> Chart:
        columns = {text: run.column(f"training/{key}") for key, text in names.items()}
        drawn = [Line(t, steps, v) for t, v in columns.items() if any(map(math.isfinite, v))]
        return Chart(title, x, label, drawn, marks=marks, **how)

    if run.budget is not None:
        budget, unit = run.budget
        label = "penalty in nats" if unit == "nats" else "penalty"
        yield logged("Trust region", label, {"penalty": label}, log=True, levels=[("budget", budget)])
    yield logged("Multiplier of the constraint", "multiplier", {"multiplier": "multiplier"}, log=True)
    yield logged("Values", "mean Q", {"q_data": "Q of the data's actions", "q_policy": "Q of the policy's actions"})
    losses = sorted(
        {key for row in run.train for key in row if key.startswith("training/") and key.endswith("_loss")}
    )
    names = {key.removeprefix("training/"): key.removeprefix("training/").removesuffix("_loss") for key in losses}
    positive = all(v > 0 for key in losses for v in run.column(key) if math.isfinite(v))
    yield logged("Losses", "loss", names, log=positive)


# --- words and tables ---------------------------------------------------------------------------------------------


def _facts(run: RunResults) -> Iterator[tuple[str, Any]]:
    environment = run.environment
    yield "state", f"{run.state}, step {run.step:,} of {run.config.total:,}"
    for kind, name in (("dataset", "data"), ("buffer", "second data set")):
        facts = environment.get(kind)
        if facts:
            yield name, f"{facts.get('name', '')} ({facts['source']}), {facts['transitions']:,} transitions"
            yield f"SHA-256 of the {name}", tag("code", facts["sha256"])
            findings = facts.get("findings")
            if findings is not None:
                yield f"check of the {name}", f"{len(findings)} warnings" if findings else "no warning"
    packages = environment.get("packages") or {}
    yield (
        "versions",
        ", ".join([f"Python {environment.get('python', '?')}", *(f"{n} {v}" for n, v in packages.items())]),
    )
    devices = ", ".join(map(str, environment.get("devices") or ()))
    yield (
        "machine",
        f"{environment.get('platform', '?')}, {environment.get('cpus', '?')} cores, devices {devices or '?'}",
    )
    if environment.get("started"):
        yield "started", environment["started"]
    if resumed := environment.get("resumed"):
        yield "resumed", f"{len(resumed)} times"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _time(run: RunResults) -> Iterator[Html]:
    spent = time_spent(run)
    if not spent:
        return
    total = sum(spent.values())
    rows = [[name, _seconds(value), f"{100 * value / total:.0f} %"] for name, value in spent.items()]
    yield tag("h3", "Where the time went")
    yield table(["part", "time", "share"], rows)


def time_spent(run: RunResults) -> dict[str, float]:
    """Seconds by part, from the logs of the clock. What a killed process did after its last row is not in them."""
    spent = {
        "behaviour flow": _training_seconds(run.flow_times) + _sum(run.flow_times, "compile"),
        "the flow's actions": _sum(run.times, "proposals"),
        "compilation": _sum(run.times, "compile"),
        "updates": _training_seconds(run.times),
        "evaluation (may run beside updates)": _sum(run.times, "evaluation"),
    }
    return {name: value for name, value in spent.items() if value > 0}


def _sum(rows: Sequence[dict[str, Any]], name: str) -> float:
    return sum(row.get(f"time/{name}") or 0.0 for row in rows)


def _training_seconds(rows: Sequence[dict[str, Any]]) -> float:
    """Each row has the speed since the row before; a resumed run repeats some steps, which count again."""
    seconds, before = 0.0, 0
    for row in rows:
        rate = row.get("time/steps_per_second")
        if rate:
            seconds += max(row["step"] - before, 0) / rate
            before = row["step"]
    return seconds


def interval(summary: dict[str, Any], of: str) -> str:
    """A mean with its 95 % interval."""
    mean, low, high = (summary.get(f"{of}{end}") for end in ("", "_low", "_high"))
    if mean is None:
        return "-"
    text = "{:.2f}".format if of == "success" else number
    return text(mean) + ("" if low is None or high is None else f" [{text(low)}, {text(high)}]")


def _gain(gain: dict[str, Any] | None) -> str:
    if not gain or gain["mean"] is None:
        return "-"
    ends = "" if gain["low"] is None or gain["high"] is None else f" [{gain['low']:+.3g}, {gain['high']:+.3g}]"
    return f"{gain['of']} {gain['mean']:+.3g}{ends}"


def _comparison(run: RunResults) -> Iterator[Html]:
    comparison = run.comparison
    if comparison and "base" in comparison and "refined" in comparison:
        yield tag("h3", "Base policy and refined policy")
        rows = [
            [
                kind,
                interval(comparison[kind], "success"),
                interval(comparison[kind], "return"),
                comparison[kind].get("n", "-"),
                gain,
            ]
            for kind, gain in (("base", ""), ("refined", _gain(comparison.get("gain"))))
        ]
        caption = f"Step {comparison.get('step', 0):,}, the same episodes and noise. Brackets are 95 % intervals."
        yield table(["policy", "success", "return", "episodes", "paired difference"], rows, caption)


def _audit(run: RunResults) -> Iterator[Html]:
    if run.audit:
        yield tag("h3", f"Audit at step {run.audit['step']:,}")
        yield tag("ul", *(tag("li", sentence) for sentence in run.audit["sentences"]))


def _videos(run: RunResults, page: Path, embed: bool) -> Iterator[Html]:
    if not run.videos:
        return
    yield tag("h3", "Videos")
    for path in run.videos:
        yield tag("p", path.name)
        yield tag(
            "video", controls=True, preload="metadata", src=video_source(path, page, embed), aria_label=path.name
        )


def video_source(path: Path, page: Path, embed: bool) -> str:
    """The video itself, or where it is, seen from the page."""
    if embed:
        return f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
    return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())


def _episodes(run: RunResults, name: str, short: bool) -> Iterator[Html]:
    if not run.episodes:
        return
    last = run.episodes[-1]["step"]
    shown = [row for row in run.episodes if row["step"] == last or not short][-EPISODES:]
    columns = ["step", "episode", "seed", "status", "success", "return", "length"]
    rows = [[_cell(row.get(column)) for column in columns] for row in shown]
    left_out = f" The last {len(shown):,} of {len(run.episodes):,}." if len(shown) < len(run.episodes) else ""
    yield tag("h3", "Episodes")
    all_rows = filtered(f"{name}-episodes", columns, rows, "filter episodes, for example: ok 1000")
    yield tag("details", tag("summary", f"{len(shown):,} episodes.{left_out}"), all_rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def filtered(id_: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], words: str, kind: str = "") -> Html:
    """A table with a field that filters its rows. Its columns sort."""
    field = tag("input", class_="filter", type="search", id=f"{id_}-filter", aria_controls=id_, size="40")
    label = tag("label", f"{words} ", for_=f"{id_}-filter")
    count = tag("output", f"{len(rows)} of {len(rows)} rows", class_="soft")
    return join(
        tag("p", label, field, " ", count, class_="filtering"),
        table(columns, rows, id=id_, class_=f"sortable {kind}".strip()),
    )


def _options(run: RunResults, name: str, short: bool) -> Iterator[Html]:
    options = options_of(run.config)
    changed = [option for option in options if option.source != DEFAULT]
    columns = ["option", "value", "source"]

    def rows(chosen: Any) -> list[list[str]]:
        return [[option.name, _option(option.value), option.source] for option in chosen]

    yield tag("h3", "Options")
    yield table(columns, rows(changed), "Those that are not the default", class_="words")
    if not short:
        all_rows = filtered(f"{name}-options", columns, rows(options), "filter options", "words")
        yield tag("details", tag("summary", f"all {len(options)} options"), all_rows)


def _option(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _command(run: RunResults) -> Iterator[Html]:
    command = command_of(run.config)
    yield tag("h3", "The command that makes it again")
    if command is None:
        yield tag("p", "The data was given in Python, so no command trains this run again: call fidec.fit.")
    else:
        yield tag("pre", tag("code", command), tabindex="0")
