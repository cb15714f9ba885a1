"""`fidec eval`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec.cli.parsing import import_from_here, interval, parse, print_json, print_table
from fidec.errors import ConfigError, EnvError
from fidec.store.rundir import COMPARISON
from fidec.train.acting import OF_A_CALL, ActOptions


@dataclass(frozen=True, kw_only=True)
class EvalArgs(ActOptions):
    """Evaluate the policy of a run (or a policy directory) on seeded episodes of its environment.

    With the run's own number of episodes, processes and seed this repeats the run's last evaluation exactly. Without
    a valid episode the exit code is 1.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directory, or a policy directory; also the URL of one (s3://bucket/runs/x)."""
    episodes: int = 50
    """Number of episodes."""
    base: bool = False
    """Also evaluate the behaviour flow before refinement, on the same episodes and the same noise. Only for methods
    that refine one."""
    seed: int | None = None
    """Seed of the episodes. By default the run's, with the episodes of its last evaluation (--eval-seeds)."""
    envs: int = 0
    """Environment processes; 0 takes the run's number."""
    task: str | None = None
    """Evaluate in the environment of this task; by default in the run's environment."""
    env: str | None = None
    """Evaluate in this Gymnasium environment, such as Pendulum-v1 or my_package:MyEnv-v0."""
    scale_actions: bool = False
    """Stretch the action bounds of the policy's data to those of the environment, if they differ, also if the policy
    was not trained with this option."""
    video: Path | None = None
    """Also write an mp4 of the first three episodes."""
    json: bool = False
    """Print summaries and one row per episode as JSON."""


def main(argv: list[str]) -> int:
    from fidec.envs.video import check_video
    from fidec.train.evaluation import PolicyEvaluation, save_result, without_result

    args = parse(EvalArgs, argv, "fidec eval")
    if args.episodes < 1 or args.envs < 0:
        raise ConfigError("--episodes must be at least 1, --envs not negative")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    if args.video is not None:
        check_video(args.video)
    import_from_here()
    where: dict[str, Any] = {"task": args.task, "env": args.env, "scale_actions": args.scale_actions}
    evaluation = PolicyEvaluation.of(args.directory, ActOptions.of(args), seed=args.seed, envs=args.envs, **where)
    result = evaluation.evaluate(args.episodes, base=args.base)
    reason = without_result(result["episodes"])
    # Only what was played in the run's own environment is a result of the run.
    if args.base and reason is None and args.task is None and args.env is None:
        problem = save_result(args.directory, COMPARISON, result)
        if problem is not None:
            print(f"fidec eval: {problem}", file=sys.stderr)
    if not args.json:
        print_comparison(result)
    if args.video is not None:
        problem = evaluation.record(args.video, episodes=min(3, args.episodes))
        result["video"] = str(args.video) if problem is None else None
        if problem is not None:
            print(f"fidec eval: {problem}", file=sys.stderr)
        elif not args.json:
            print(f"video: {args.video}")
    if args.json:
        print_json(result)
    if reason is not None:
        raise EnvError(reason)
    return 0


def print_comparison(result: dict[str, Any]) -> None:
    """A short table with intervals."""
    factors = [f", {name} {result[name]:g}" for name in OF_A_CALL if result.get(name, 1) != 1]
    print(f"{result['environment']}, step {result['step']}, seed {result['seed']}{''.join(factors)}")
    if "note" in result:
        print(result["note"])
    columns = ["policy", "success", "return", "length", "episodes", "failed"]
    columns += ["normalised score"] if "note" in result else []  # neither the success nor the return; D4RL has one
    rows = []
    for kind in ("base", "refined", "policy"):
        if summary := result.get(kind):
            scores = interval(summary, "success"), interval(summary, "return"), f"{summary['length'] or 0:.0f}"
            normalised = "-" if summary["score"] is None else f"{summary['score']:.1f}"
            row = [kind, *scores, summary["n"], summary["n_failed"], normalised]
            rows.append(row[: len(columns)])
    print_table(columns, rows)
    gain = result.get("gain")
    if gain is not None and gain["mean"] is not None:
        ends = "" if gain["low"] is None else f" [{gain['low']:+.2f}, {gain['high']:+.2f}]"
        print(f"gain in {gain['of']}, paired: {gain['mean']:+.2f}{ends}")
