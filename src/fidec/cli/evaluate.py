"""`fidec eval`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fidec.cli.parsing import import_from_here, interval, parse, print_json, print_table
from fidec.errors import ConfigError, EnvError
from fidec.store.rundir import COMPARISON, LADDER
from fidec.train.acting import DIALS, ActOptions

if TYPE_CHECKING:
    from fidec.train.evaluation import PolicyEvaluation


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
    ladder: bool = False
    """Play several factors of noise and displacement on the same episodes, and compare each with strength 0 of the
    same noise. A method without a displacement has noise alone, compared with noise 1."""
    noises: tuple[float, ...] | None = None
    """Factors of noise in a ladder; by default 0, 0.5 and 1."""
    strengths: tuple[float, ...] | None = None
    """Factors of the displacement in a ladder; by default 0.3 and 1. 0 is always played."""
    figure: Path | None = None
    """PNG of a ladder; by default DIR/ladder.png."""
    video: Path | None = None
    """Also write an mp4 of the first three episodes."""
    json: bool = False
    """Print summaries and one row per episode as JSON."""


def main(argv: list[str]) -> int:
    from fidec.envs.video import check_video
    from fidec.train.evaluation import PolicyEvaluation, without_result

    args = parse(EvalArgs, argv, "fidec eval")
    if args.episodes < 1 or args.envs < 0:
        raise ConfigError("--episodes must be at least 1, --envs not negative")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    check_ladder(args)
    if args.video is not None:
        check_video(args.video)
    import_from_here()
    where: dict[str, Any] = {"task": args.task, "env": args.env, "scale_actions": args.scale_actions}
    evaluation = PolicyEvaluation.of(args.directory, ActOptions.of(args), seed=args.seed, envs=args.envs, **where)
    if args.ladder:
        return play_ladder(args, evaluation)
    result = evaluation.evaluate(args.episodes, base=args.base)
    reason = without_result(result["episodes"])
    if args.base and reason is None:
        _save(args, COMPARISON, result)
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
    return end(reason)


def end(reason: str | None) -> int:
    """The exit code, after the output; EnvError if an evaluation has no result."""
    if reason is not None:
        raise EnvError(reason)
    return 0


def _save(args: EvalArgs, name: str, result: dict[str, Any]) -> None:
    """Store a result of the run's own environment with the run."""
    from fidec.train.evaluation import save_result

    if args.task is None and args.env is None and (reason := save_result(args.directory, name, result)) is not None:
        print(f"fidec eval: {reason}", file=sys.stderr)


def check_ladder(args: EvalArgs) -> None:
    """Raise for options that only a ladder has, or that a ladder does not have."""
    only = {"--noises": args.noises, "--strengths": args.strengths, "--figure": args.figure}
    for option, value in only.items():
        if value is not None and not args.ladder:
            raise ConfigError(f"{option} is for a ladder: add --ladder, or leave it out")
        if value == ():
            raise ConfigError(f"{option} needs at least one number")
    others = {
        "--base": (args.base, "strength 0 is the base policy"),
        "--noise": (args.noise is not None, "give --noises"),
        "--strength": (args.strength is not None, "give --strengths"),
        "--video": (args.video is not None, "record one cell with --noise and --strength"),
    }
    for option, (given, advice) in others.items():
        if given and args.ladder:
            raise ConfigError(f"{option} cannot be given with --ladder: {advice}")


def play_ladder(args: EvalArgs, evaluation: PolicyEvaluation) -> int:
    from fidec.console import Progress
    from fidec.report.figures import draw_ladder
    from fidec.store import files
    from fidec.store.rundir import check_links
    from fidec.train.evaluation import cells_of, ladder, without_result

    cells = cells_of(evaluation, args.noises, args.strengths)
    path = args.figure or args.directory / "ladder.png"
    if args.figure is None:
        check_links(args.directory)
    with files.writing(path, "the figure"):  # before the episodes, so that a bad path fails at once
        path.parent.mkdir(parents=True, exist_ok=True)
    with Progress(len(cells) * args.episodes, unit="episode") as progress:
        result = ladder(evaluation, args.episodes, cells, lambda _: progress.advance())
    names = [f"noise {cell['noise']:g}, strength {cell['strength']:g}" for cell in result["cells"]]
    reason = without_result(dict(zip(names, [cell["episodes"] for cell in result["cells"]], strict=True)))
    result["figure"] = str(draw_ladder(result, path))
    if reason is None:
        _save(args, LADDER, result)
    if args.json:
        print_json(result)
    else:
        print_ladder(result)
        print(f"figure: {path}")
    return end(reason)


def print_ladder(result: dict[str, Any]) -> None:
    """A row for each cell, with intervals and the paired difference."""
    print_facts(result, "" if result["candidates"] == 1 else f", {result['candidates']} candidates")
    rows = []
    for cell in result["cells"]:
        summary, gain = cell["summary"], cell["gain"]
        factors = f"{cell['noise']:g}", f"{cell['strength']:g}"
        scores = interval(summary, "success"), interval(summary, "return"), summary["n"], summary["n_failed"]
        difference = "-" if gain is None else (signed(gain) or "-")
        rows.append([*factors, *scores, difference, *_score(result, summary)])
    columns = ("noise", "strength", "success", "return", "episodes", "failed")
    against = f"{result['of']} against {result['against']}"
    print_table((*columns, against, *_SCORE[: "note" in result]), rows)
    print("differences are paired: the same episodes with the same random numbers")


def print_facts(result: dict[str, Any], more: str) -> None:
    print(f"{result['environment']}, step {result['step']}, seed {result['seed']}{more}")
    if "note" in result:
        print(result["note"])


_SCORE = ("normalised score",)


def _score(result: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """The cell of the normalised score, which is neither the success nor the return; D4RL alone has one."""
    if "note" not in result:
        return []
    return ["-" if summary["score"] is None else f"{summary['score']:.1f}"]


def signed(gain: dict[str, Any]) -> str:
    """A paired difference with its interval; empty if there is no pair."""
    if gain["mean"] is None:
        return ""
    return f"{gain['mean']:+.2f}" + ("" if gain["low"] is None else f" [{gain['low']:+.2f}, {gain['high']:+.2f}]")


def print_comparison(result: dict[str, Any]) -> None:
    """A short table with intervals."""
    factors = [f", {name} {result[name]:g}" for name in DIALS if result.get(name, 1) != 1]
    print_facts(result, "".join(factors))
    rows = []
    for kind in ("base", "refined", "policy"):
        if summary := result.get(kind):
            scores = interval(summary, "success"), interval(summary, "return"), f"{summary['length'] or 0:.0f}"
            rows.append([kind, *scores, summary["n"], summary["n_failed"], *_score(result, summary)])
    columns = ("policy", "success", "return", "length", "episodes", "failed")
    print_table((*columns, *_SCORE[: "note" in result]), rows)
    if "gain" in result and (text := signed(result["gain"])):
        print(f"gain in {result['gain']['of']}, paired: {text}")
