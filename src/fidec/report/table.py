"""A table of runs, read from their directories alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from fidec.errors import RunError
from fidec.report.tex import escape, tabular
from fidec.store.rundir import RunDirectory

COLUMNS = ("method", "seed", "evaluations", "success", "low", "high", "n", "ms_per_update", "steps")


def row(path: Path, ms_per_update: float | None = None) -> dict[str, Any]:
    """What a finished run says of itself. The success is that of the last evaluation; all are in `evaluations`."""
    directory = RunDirectory.open(path, read_only=True)
    config = directory.read_config()
    evaluations = directory.read_jsonl("eval")
    if not evaluations or (directory.read_status() or {}).get("state") != "done":
        raise RunError(f"{path} is not a finished run with an evaluation")
    last = evaluations[-1]
    return {
        "method": config["algo"],
        "seed": config["seed"],
        "evaluations": {event["step"]: event["evaluation/success"] for event in evaluations},
        "success": last["evaluation/success"],
        "low": last["evaluation/success_low"],
        "high": last["evaluation/success_high"],
        "n": last["evaluation/n"],
        "ms_per_update": ms_per_update,
        "steps": last["step"],
        "data": directory.read_environment()["dataset"]["sha256"],
    }


def markdown(rows: list[dict[str, Any]], settings: dict[str, str]) -> str:
    """A Markdown table, in the order of `rows`; `settings` says what a method was given."""
    header, *body = _cells(rows, settings)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *body))


def tex(rows: list[dict[str, Any]], settings: dict[str, str]) -> str:
    """The same for a TeX document that uses the package booktabs."""
    header, *body = [[escape(cell.replace("`", "")) for cell in cells] for cells in _cells(rows, settings)]
    return tabular(header, body)


def _cells(rows: list[dict[str, Any]], settings: dict[str, str]) -> list[list[str]]:
    seeds = len({row["seed"] for row in rows}) > 1
    header = ["method", *(["seed"] if seeds else []), "own settings", "success", "95 % interval", "ms/update"]
    lines = [header]
    for r in rows:
        lines.append(
            [
                r["method"],
                *([str(r["seed"])] if seeds else []),
                settings.get(r["method"], ""),
                _success(r["success"]),
                f"{_success(r['low'])} to {_success(r['high'])}",
                "–" if r["ms_per_update"] is None else f"{r['ms_per_update']:.1f}",
            ]
        )
    return lines


def _success(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def comma_separated(rows: list[dict[str, Any]]) -> str:
    """CSV with a header; the evaluations in one cell as step:success."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for r in rows:
        curve = " ".join(f"{step}:{value}" for step, value in r["evaluations"].items())
        writer.writerow([curve if name == "evaluations" else r[name] for name in COLUMNS])
    return text.getvalue()
