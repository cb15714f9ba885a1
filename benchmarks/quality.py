"""Seconds from data to a success rate: `python -m benchmarks.quality --data-dir DIR [--seeds 0 1 2] [--json]`.

FiDec at the demo's size, trained jointly and with the flow first, on the demo's task. The schedules take turns, seed
by seed. The seconds are those from the start of the run to the step that is evaluated: they include compilation, the
flow's own training and its proposals, and not the evaluations. A run that never reaches the rate counts with the
seconds of its whole length, and is marked.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidec.cli.demo import SCALE, TASK
from fidec.cli.parsing import parse, print_json, print_table
from fidec.console import Output
from fidec.train.config import RunConfig
from fidec.train.protocol import resolve_options
from fidec.train.run import train


@dataclass(frozen=True)
class QualityArgs:
    """Measure how long FiDec takes to a success rate, jointly and with the flow first."""

    data_dir: Path
    """Directory of the task's data, as `fidec data make` or `fidec demo` leaves it (demo-run/data)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Training seeds."""
    steps: int = SCALE.steps
    """Updates of critic and policy."""
    flow_updates: int = 10_000
    """Updates of the flow, if it is trained first."""
    rate: float = 0.5
    """The success rate to reach."""
    eval_interval: int = 2_500
    """Updates between evaluations."""
    episodes: int = 50
    """Episodes in an evaluation."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(QualityArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.quality")
    say = Output(clock=time.monotonic).print
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for seed in args.seeds:
            for name, updates in (("joint", 0), ("flow first", args.flow_updates)):
                say(f"{name}, seed {seed}")
                rows.append({"schedule": name, "seed": seed, **_measure(args, seed, updates, Path(place))})
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _measure(args: QualityArgs, seed: int, flow_updates: int, place: Path) -> dict[str, Any]:
    """Train one run; the seconds to each evaluation, and its success."""
    found: list[tuple[int, float, float]] = []
    begin, paused = time.perf_counter(), 0.0

    def note(step: int, metrics: dict[str, Any]) -> None:
        nonlocal paused
        now = time.perf_counter()
        if "evaluation/success" in metrics:
            paused += now - note.last
            found.append((step, note.last - begin - (paused - (now - note.last)), metrics["evaluation/success"]))
        note.last = now

    note.last = begin
    config = RunConfig(
        task=TASK,
        options=resolve_options("fidec", "recommended", TASK, **SCALE.options),
        steps=args.steps,
        flow_updates=flow_updates,
        seed=seed,
        out=place / f"{seed}-{flow_updates}",
        data_dir=args.data_dir,
        log_interval=args.eval_interval,  # so that the row before an evaluation is of the same step
        eval_interval=args.eval_interval,
        eval_episodes=args.episodes,
    )
    train(config, quiet=True, callback=note)
    reached = next((index for index, (_, _, success) in enumerate(found) if success >= args.rate), None)
    return {
        "success": [success for _, _, success in found],
        "updates": found[-1 if reached is None else reached][0],
        "seconds": found[-1 if reached is None else reached][1],
        "reached": reached is not None,
        "seconds_whole": found[-1][1],
    }


def _print(args: QualityArgs, rows: list[dict[str, Any]]) -> None:
    print(f"{TASK}: success every {args.eval_interval} updates, {args.episodes} episodes each, target {args.rate}")
    print_table(
        ("schedule", "seed", "success", "updates to target", "seconds to target", "seconds of all updates"),
        [
            (
                row["schedule"],
                row["seed"],
                " ".join(f"{success:.2f}" for success in row["success"]),
                f"{row['updates']}{'' if row['reached'] else ' (not reached)'}",
                f"{row['seconds']:.0f}",
                f"{row['seconds_whole']:.0f}",
            )
            for row in rows
        ],
    )
    for name in ("joint", "flow first"):
        own = [row for row in rows if row["schedule"] == name]
        print(
            f"{name}: {np.mean([row['seconds'] for row in own]):.0f} s to the target, success at the end "
            f"{np.mean([row['success'][-1] for row in own]):.2f} (means of {len(own)} seeds)"
        )


if __name__ == "__main__":
    main()
