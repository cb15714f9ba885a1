"""A row of the benchmark as text and as JSON values."""

from __future__ import annotations

import dataclasses
from typing import Any

from fidec.tasks import Task
from fidec.tasks.paper import Protocol, Reported


def number(reported: Any) -> str:
    """A reported number, or the two before and after the online phase."""
    if reported is None:
        return "-"
    return str(reported) if isinstance(reported, Reported) else " -> ".join(map(str, reported))


def to_json(reported: Any) -> dict[str, Any] | None:
    """The same as JSON values."""
    if reported is None:
        return None
    if isinstance(reported, Reported):
        return reported._asdict()
    before, after = reported
    return {"before": before._asdict(), "after": after._asdict()}


def short(steps: int) -> str:
    """A number of steps: 500k, 2.75M."""
    return f"{steps / 1_000_000:g}M" if steps >= 1_000_000 else f"{steps // 1_000}k"


def score(protocol: Protocol) -> str:
    """What the score is and which evaluations make it."""
    kind = "percent success" if protocol.score == "success" else "D4RL's normalised score"
    steps = [short(step) for step in (*protocol.before, *protocol.averaged)]
    if protocol.before:
        return f"{kind}, at {steps[0]} and at {steps[1]}"
    return f"{kind}, mean of {', '.join(steps)}" if len(steps) > 1 else f"{kind}, at {steps[0]}"


def protocol_rows(row: Task) -> list[list[str]]:
    """(methods, steps, evaluation, score): one line for all methods that share a protocol, exceptions first."""
    methods: dict[Protocol, list[str]] = {}
    for method in row.methods:
        methods.setdefault(row.protocol(method), []).append(method)
    usual = max(methods, key=lambda protocol: len(methods[protocol]))
    lines = []
    for protocol in sorted(methods, key=lambda protocol: protocol == usual):
        phases = [(protocol.steps, ""), (protocol.online_steps, " online")]
        steps = " + ".join(f"{short(count)}{word}" for count, word in phases if count)
        evaluation = f"every {short(protocol.eval_interval)}, {protocol.eval_episodes} episodes"
        names = "others" if protocol == usual else ", ".join(methods[protocol])
        lines.append([names, steps, evaluation, score(protocol)])
    return lines


def option_rows(row: Task) -> list[list[Any]]:
    """(method, reported, option, value, source): one line for each option, the method's name in its first line."""
    lines = []
    for method in row.methods:
        released = row.options(method, "released")
        options = []
        for name, published in row.options(method).items():
            options.append([name, published.value, published.source])
            if released[name].value != published.value:
                options.append([name, released[name].value, f"{released[name].source} (preset released)"])
        first, *others = options or [["-", "-", "-"]]
        lines += [[method, number(row.paper.get(method)), *first], *(["", "", *line] for line in others)]
    return lines


def published(row: Task) -> dict[str, Any]:
    """The published facts of a row, by method."""
    return {
        method: {
            "protocol": dataclasses.asdict(row.protocol(method)),
            "options": {
                preset: {name: dataclasses.asdict(s) for name, s in row.options(method, preset).items()}
                for preset in ("recommended", "paper", "released")
            },
            "paper": to_json(row.paper.get(method)),
        }
        for method in row.methods
    }
