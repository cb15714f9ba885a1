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

if TYPE_CHECKING:
    from fidec.train.assess import Assessment


@dataclass(frozen=True)
class EvalArgs:
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
    candidates: int | None = None
    """Actions drawn for each observation, of which the critic picks the best; by default the run's number."""
    noise: float = 1.0
    """Factor of the policy's random draws: 1 acts as published, 0 without noise."""
    strength: float = 1.0
    """Factor of the displacement of a refined policy: 1 acts as published, 0 as the base policy. Only for methods
    that move a base action (fidec, deflow, fidec_closed_form)."""
    replan: int | None = None
    """For policies that choose chunks of actions: steps that are played before the next chunk is chosen. By default
    as in training."""
    ensemble: float | None = None
    """With --replan below the length of a chunk: the mean of all chunks that have the step, with the weights
    exp(-m i) for this m, i = 0 for the oldest chunk. By default as in training."""
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
    from fidec.train.assess import Assessment, without_result

    args = parse(EvalArgs, argv, "fidec eval")
    counts = [count for count in (args.episodes, args.candidates, args.replan) if count is not None]
    if min(counts) < 1 or args.envs < 0:
        raise ConfigError("--episodes, --candidates and --replan must be at least 1, --envs not negative")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    check_ladder(args)
    if args.video is not None:
        check_video(args.video)
    import_from_here()
    assessment = Assessment.of(
        args.directory,
        task=args.task,
        env=args.env,
        seed=args.seed,
        envs=args.envs,
        candidates=args.candidates,
        noise=args.noise,
        strength=args.strength,
        replan=args.replan,
        ensemble=args.ensemble,
        scale_actions=args.scale_actions,
    )
    if args.ladder:
        return play_ladder(args, assessment)
    result = assessment.evaluate(args.episodes, base=args.base)
    reason = without_result(result["episodes"])
    if args.base and reason is None:
        _keep(args, COMPARISON, result)
    if not args.json:
        print_comparison(result)
    if args.video is not None:
        problem = assessment.record(args.video, episodes=min(3, args.episodes))
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


def _keep(args: EvalArgs, name: str, result: dict[str, Any]) -> None:
    """Store a result of the run's own environment with the run."""
    from fidec.train.assess import keep

    if args.task is None and args.env is None and (reason := keep(args.directory, name, result)) is not None:
        print(f"fidec eval: {reason}", file=sys.stderr)


def check_ladder(args: EvalArgs) -> None:
    """Raise for options that only a ladder has, or that a ladder does not have."""
    own = {"--noises": args.noises, "--strengths": args.strengths, "--figure": args.figure}
    for option, value in own.items():
        if value is not None and not args.ladder:
            raise ConfigError(f"{option} is for a ladder: add --ladder, or leave it out")
        if value == ():
            raise ConfigError(f"{option} needs at least one number")
    others = {
        "--base": (args.base, "strength 0 is the base policy"),
        "--noise": (args.noise != 1, "give --noises"),
        "--strength": (args.strength != 1, "give --strengths"),
        "--video": (args.video is not None, "record one cell with --noise and --strength"),
    }
    for option, (given, advice) in others.items():
        if given and args.ladder:
            raise ConfigError(f"{option} cannot be given with --ladder: {advice}")


def play_ladder(args: EvalArgs, assessment: Assessment) -> int:
    from fidec.console import Progress
    from fidec.report.figures import draw_ladder
    from fidec.store import files
    from fidec.store.rundir import check_links
    from fidec.train.assess import without_result
    from fidec.train.ladder import cells_of, ladder

    cells = cells_of(assessment, args.noises, args.strengths)
    path = args.figure or args.directory / "ladder.png"
    if args.figure is None:
        check_links(args.directory)
    with files.writing(path, "the figure"):  # before the episodes, so that a bad path fails at once
        path.parent.mkdir(parents=True, exist_ok=True)
    with Progress(len(cells) * args.episodes, unit="episode") as progress:
        result = ladder(assessment, args.episodes, cells, lambda _: progress.advance())
    names = [f"noise {cell['noise']:g}, strength {cell['strength']:g}" for cell in result["cells"]]
    reason = without_result(dict(zip(names, [cell["episodes"] for cell in result["cells"]], strict=True)))
    result["figure"] = str(draw_ladder(result, path))
    if reason is None:
        _keep(args, LADDER, result)
    if args.json:
        print_json(result)
    else:
        print_ladder(result)
        print(f"figure: {path}")
    return end(reason)


def print_ladder(result: dict[str, Any]) -> None:
    """A row for each cell, with intervals and the paired difference."""
    print_facts(result, "" if result["candidates"] == 1 else f", {result['candidates']} candidates")
    columns = [
        "noise",
        "strength",
        "success",
        "return",
        "episodes",
        "failed",
        f"{result['of']} against {result['against']}",
    ]
    rows = []
    for cell in result["cells"]:
        s, gain = cell["summary"], cell["gain"]
        difference = "-" if gain is None else (signed(gain) or "-")
        rows.append([f"{cell['noise']:g}", f"{cell['strength']:g}", interval(s, "success"), interval(s, "return")])
        rows[-1] += [s["n"], s["n_failed"], difference]
        if "note" in result:
            rows[-1].append("-" if s["score"] is None else f"{s['score']:.1f}")
    print_table([*columns, "normalised score"] if "note" in result else columns, rows)
    print("differences are paired: the same episodes with the same random numbers")


def print_facts(result: dict[str, Any], more: str) -> None:
    print(f"{result['environment']}, step {result['step']}, seed {result['seed']}{more}")
    if "note" in result:
        print(result["note"])


def signed(gain: dict[str, Any]) -> str:
    """A paired difference with its interval; empty if there is no pair."""
    if gain["mean"] is None:
        return ""
    return f"{gain['mean']:+.2f}" + ("" if gain["low"] is None else f" [{gain['low']:+.2f}, {gain['high']:+.2f}]")


def print_comparison(result: dict[str, Any]) -> None:
    """A short table with intervals."""
    factors = [f", {name} {result[name]:g}" for name in ("noise", "strength") if result.get(name, 1) != 1]
    print_facts(result, "".join(factors))
    rows = []
    for kind in ("base", "refined", "policy"):
        if kind not in result:
            continue
        s = result[kind]
        rows.append(
            [kind, interval(s, "success"), interval(s, "return"), f"{s['length'] or 0:.0f}", s["n"], s["n_failed"]]
        )
        if "note" in result:  # D4RL's score is neither the success nor the return
            rows[-1].append("-" if s["score"] is None else f"{s['score']:.1f}")
    columns = ("policy", "success", "return", "length", "episodes", "failed")
    print_table((*columns, "normalised score") if "note" in result else columns, rows)
    if "gain" in result and (text := signed(result["gain"])):
        print(f"gain in {result['gain']['of']}, paired: {text}")
