"""`fidec demo`: from nothing to a refined policy on a real task, with the pictures to see it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidec.cli.evaluate import print_comparison
from fidec.cli.output import parse
from fidec.errors import EnvError

# Chosen by measurement for ten minutes on two cores; README says what they give. The discount is shorter than
# the benchmark's 0.99, since the critic must fall to about -1 / (1 - discount) before it ranks anything.
TASK = "cube-single-play-singletask-task2-v0"
OPTIONS: dict[str, Any] = {"hidden": (128, 128, 128), "discount": 0.97, "learning_rate": 1e-3}


@dataclass(frozen=True)
class DemoArgs:
    """Make OGBench data, train FiDec on it, compare it with the behaviour it started from, draw the result.

    An interrupted demo goes on where it stopped when it is called again.
    """

    out: Path = Path("demo-run")
    """Run directory."""
    rows: int = 100_000
    """Rows of data to make."""
    steps: int = 20_000
    """Updates."""
    episodes: int = 50
    """Evaluation episodes."""
    seed: int = 0
    """Seed of data, training and evaluation."""
    data_dir: Path | None = None
    """Where the data goes; by default the cache directory."""


def main(argv: list[str]) -> int:
    args = parse(DemoArgs, argv, "fidec demo")
    from fidec.report.curves import draw_curves
    from fidec.train.assess import Assessment

    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:4.0f} s] {text}", file=sys.stderr)

    say(f"1/4  data for {TASK}: {args.rows} rows by OGBench's scripted oracle")
    _make_data(args)
    say(f"2/4  FiDec, {args.steps} updates")
    _train(args)
    say(f"3/4  base and refined policy on the same {args.episodes} episodes")
    assessment = Assessment.of(args.out)
    result = assessment.evaluate(args.episodes, base=True)
    (args.out / "comparison.json").write_text(json.dumps(result, indent=2))
    say("4/4  pictures")
    written = [draw_curves(args.out, args.out / "curves.png", result)]
    try:
        assessment.record(args.out / "videos" / "refined.mp4")
        written.append(args.out / "videos" / "refined.mp4")
    except EnvError as error:
        say(str(error))
    say("done")
    print_comparison(result)
    for path in written:
        print(path)
    return 0


def _make_data(args: DemoArgs) -> None:
    from fidec.data.cache import data_dir
    from fidec.data.make import make_dataset

    workers = os.cpu_count() or 1
    make_dataset(TASK, args.rows, directory=data_dir(args.data_dir), seed=args.seed, workers=workers)


def _train(args: DemoArgs) -> None:
    from fidec.train.config import RunConfig, resolve_options
    from fidec.train.run import resume, train

    if (args.out / "run.json").exists():
        resume(args.out)
        return
    options, _ = resolve_options("fidec", "recommended", TASK, **OPTIONS)
    config = RunConfig(
        task=TASK,
        options=options,
        steps=args.steps,
        seed=args.seed,
        out=args.out,
        data_dir=args.data_dir,
        eval_interval=max(args.steps // 4, 1),
        eval_episodes=10,
        checkpoint_interval=5_000,
    )
    train(config)
