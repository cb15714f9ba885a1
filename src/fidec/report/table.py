"""A table of single runs, read from their directories."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fidec.errors import RunError
from fidec.store.rundir import RunDirectory

COLUMNS = (
    "method",
    "options",
    "seed",
    "evaluations",
    "success",
    "low",
    "high",
    "score",
    "n",
    "ms_per_update",
    "steps",
)


def row(path: Path, label: str, options: str = "", ms_per_update: float | None = None) -> dict[str, Any]:
    """The results of a finished run: of its last evaluation, and the success of every evaluation by step."""
    directory = RunDirectory.open(path, read_only=True)
    status = directory.read_status() or {}
    if status.get("state") != "done":
        raise RunError(f"{path} is not a finished run")
    evaluations = directory.read_jsonl("eval")
    last = evaluations[-1] if evaluations else {}
    names = {"success": "success", "low": "success_low", "high": "success_high", "score": "score", "n": "n"}
    return {
        "method": label,
        "options": options,
        "seed": directory.read_config()["seed"],
        "evaluations": {event["step"]: event["evaluation/success"] for event in evaluations},
        **{name: last.get(f"evaluation/{key}") for name, key in names.items()},
        "ms_per_update": ms_per_update,
        "steps": last.get("step", status["step"]),
        "data": directory.read_environment()["dataset"]["sha256"],
    }


def cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table as text; the first row is the header. Without any success it has the scores instead."""
    seeds = len({row["seed"] for row in rows}) > 1
    success = any(row["success"] is not None for row in rows)
    results = ["success", "95 % interval"] if success else ["score"]
    table = [["method", *(["seed"] if seeds else []), "own options", *results, "ms/update"]]
    for row in rows:
        interval = f"{_number(row['low'])} to {_number(row['high'])}"
        results = [_number(row["success"]), interval] if success else [_number(row["score"])]
        seed = [str(row["seed"])] if seeds else []
        table.append([row["method"], *seed, row["options"], *results, _number(row["ms_per_update"], 1)])
    return table


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the header."""
    header, *body = rows
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body))


def comma_separated(rows: Sequence[dict[str, Any]]) -> str:
    """CSV with a header; the evaluations are one cell of step:success."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        curve = " ".join(f"{step}:{value}" for step, value in row["evaluations"].items())
        writer.writerow([curve if name == "evaluations" else row[name] for name in COLUMNS])
    return text.getvalue()
