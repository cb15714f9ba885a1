"""`fidec demo`: from nothing to a refined policy on a real task, with the pictures to see it."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fidec.bench.suites import DEMO, DEMO_SCALE
from fidec.cli.evaluate import print_comparison
from fidec.cli.output import parse
from fidec.errors import ConfigError, EnvError

TASK, OPTIONS = DEMO.tasks[0], DEMO_SCALE.options


@dataclass(frozen=True)
class DemoArgs:
    """Make OGBench data, train FiDec on it, compare it with the behaviour it started from, draw the result.

    An interrupted demo goes on where it stopped when it is called again.
    """

    out: Path = Path("demo-run")
    """Directory for the data, the run and the pictures."""
    rows: int = DEMO_SCALE.rows
    """Rows of data to make."""
    steps: int = DEMO_SCALE.steps
    """Updates."""
    episodes: int = 50
    """Evaluation episodes."""
    seed: int = 0
    """Seed of data, training and evaluation."""


def main(argv: list[str]) -> int:
    args = parse(DemoArgs, argv, "fidec demo")
    from fidec.make import make_dataset
    from fidec.report.curves import draw_curves
    from fidec.store.files import write_json
    from fidec.train.assess import Assessment

    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:4.0f} s] {text}", file=sys.stderr, flush=True)

    say(f"1/4  data for {TASK}: {args.rows} rows by OGBench's scripted oracle")
    workers = os.cpu_count() or 1
    make_dataset(TASK, args.rows, directory=args.out / "data", seed=args.seed, workers=workers)
    say(f"2/4  FiDec, {args.steps} updates")
    run = _train(args)
    say(f"3/4  base and refined policy on the same {args.episodes} episodes")
    assessment = Assessment.of(run)
    result = assessment.evaluate(args.episodes, base=True)
    write_json(args.out / "comparison.json", result)
    say("4/4  pictures")
    written = [args.out / "comparison.json", draw_curves(run, args.out / "curves.png", result)]
    try:
        assessment.record(args.out / "refined.mp4")
        written.append(args.out / "refined.mp4")
    except EnvError as error:  # no headless OpenGL: one sentence, and the rest stands
        say(str(error))
    say("done")
    print_comparison(result)
    print(*written, sep="\n")
    return 0


def _train(args: DemoArgs) -> Path:
    """The run directory, trained now, resumed, or there already."""
    from fidec.store.rundir import RunDirectory
    from fidec.train.config import RunConfig, resolve, resolve_options
    from fidec.train.run import resume, train

    config = resolve(
        RunConfig(
            task=TASK,
            options=resolve_options("fidec", "recommended", TASK, **OPTIONS),
            steps=args.steps,
            seed=args.seed,
            out=args.out / "run",
            data_dir=args.out / "data",
            log_interval=500,
            eval_interval=max(args.steps // 3, 1),
            eval_episodes=20,
            checkpoint_interval=5_000,
        )
    )
    assert config.out is not None
    if not (config.out / "config.json").exists():
        return train(config, overwrite=True).directory
    stored = RunConfig.from_json(RunDirectory.open(config.out, read_only=True).read_config())
    if dataclasses.replace(stored, out=config.out, data_dir=config.data_dir) != config:
        raise ConfigError(f"{args.out} holds a demo with other settings: remove it, or choose another --out")
    return resume(config.out).directory
