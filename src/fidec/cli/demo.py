"""`fidec demo`: make data, train FiDec on it, evaluate the policy and draw the results."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fidec.bench.suites import SUITES, Scale
from fidec.cli.evaluate import print_comparison
from fidec.cli.parsing import parse
from fidec.console import Output
from fidec.errors import ConfigError, EnvError

SUITE = SUITES.get("demo")
TASK, SCALE = SUITE.ids[0], cast(Scale, SUITE.scale)


@dataclass(frozen=True)
class DemoArgs:
    """Make OGBench data, train FiDec on it, compare the policy with its base policy, and draw the results.

    An interrupted demo continues when the same command is given again.
    """

    out: Path = Path("demo-run")
    """Directory for the data, the run, the figures and the report."""
    rows: int = 60_000
    """Rows of data to make."""
    steps: int = 10_000
    """Gradient steps of critic and policy."""
    flow_updates: int = 10_000
    """Gradient steps of the behaviour flow, which is trained first."""
    episodes: int = 50
    """Evaluation episodes."""
    seed: int = 0
    """Seed of data, training and evaluation."""


def main(argv: list[str]) -> int:
    args = parse(DemoArgs, argv, "fidec demo")
    from fidec.make import make_dataset
    from fidec.report.figures import draw_run
    from fidec.report.page import report_runs
    from fidec.store.files import write_json
    from fidec.store.rundir import COMPARISON, REPORT
    from fidec.train.evaluation import PolicyEvaluation, without_result

    say = Output(clock=time.monotonic).print
    say(f"1/4  data for {TASK}: {args.rows} rows by OGBench's scripted oracle")
    workers = os.cpu_count() or 1
    make_dataset(TASK, args.rows, directory=args.out / "data", seed=args.seed, workers=workers)
    say(f"2/4  FiDec: the behaviour flow for {args.flow_updates} updates, then the rest for {args.steps}")
    run = _train(args)
    say(f"3/4  base and refined policy on the same {args.episodes} episodes")
    evaluation = PolicyEvaluation.of(run)
    result = evaluation.evaluate(args.episodes, base=True)
    write_json(run / COMPARISON, result)
    say("4/4  figures, video and report")
    written = [draw_run(run, args.out / "curves.png")]
    reason = evaluation.record(args.out / "refined.mp4")
    if reason is None:
        written.append(args.out / "refined.mp4")
    else:  # the extra [video] or headless OpenGL is missing
        say(reason)
    videos = [path for path in written if path.suffix == ".mp4"]
    report, _ = report_runs([run], args.out / REPORT, videos=videos)
    say("done")
    print_comparison(result)
    print(*written, report, sep="\n")
    if (reason := without_result(result["episodes"])) is not None:
        raise EnvError(reason)
    return 0


def _train(args: DemoArgs) -> Path:
    """Train or resume the run; the result is its directory."""
    from fidec.store.rundir import RunDirectory
    from fidec.train.config import RunConfig
    from fidec.train.protocol import resolve_options
    from fidec.train.resolve import resolve
    from fidec.train.run import resume, train
    from fidec.train.stored import read_config

    config = resolve(
        RunConfig(
            task=TASK,
            options=resolve_options("fidec", "recommended", TASK, **SCALE.options),
            steps=args.steps,
            flow_updates=args.flow_updates,
            seed=args.seed,
            out=args.out / "run",
            data_dir=args.out / "data",
            log_interval=500,
            eval_interval=-(-args.steps // 3),  # three evaluations
            eval_episodes=20,
            checkpoint_interval=5_000,
        )
    )
    assert config.out is not None
    if not (config.out / "config.json").exists():
        return train(config).directory
    stored = read_config(RunDirectory.open(config.out, read_only=True))
    if dataclasses.replace(stored, out=config.out, data_dir=config.data_dir) != config:
        raise ConfigError(f"{args.out} holds a demo with another configuration: remove it, or choose another --out")
    return resume(config.out).directory
