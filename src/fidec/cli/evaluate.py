"""`fidec eval`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec.cli.output import import_from_here, interval, parse, print_json, print_table
from fidec.errors import ConfigError


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate the policy of a run (or a policy directory) on seeded episodes of its environment.

    With the run's own number of episodes, processes and seed this repeats the run's last evaluation exactly.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Run directory, or a policy directory."""
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
    seed: int | None = None
    """Seed of the episodes. By default the run's, with the episodes of its last evaluation (--eval-seeds)."""
    envs: int = 0
    """Environment processes; 0 takes the run's number."""
    task: str | None = None
    """Evaluate in the environment of this task; by default in the run's environment."""
    env: str | None = None
    """Evaluate in this Gymnasium environment, such as Pendulum-v1 or my_package:MyEnv-v0."""
    video: Path | None = None
    """Also write an mp4 of the first three episodes."""
    json: bool = False
    """Print summaries and one row per episode as JSON."""


def main(argv: list[str]) -> int:
    from fidec.envs.video import check_video
    from fidec.train.assess import Assessment

    args = parse(EvalArgs, argv, "fidec eval")
    counts = [count for count in (args.episodes, args.candidates, args.replan) if count is not None]
    if min(counts) < 1 or args.envs < 0:
        raise ConfigError("--episodes, --candidates and --replan must be at least 1, --envs not negative")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
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
    )
    result = assessment.evaluate(args.episodes, base=args.base)
    if not args.json:
        print_comparison(result)
    if args.video is not None:
        reason = assessment.record(args.video, episodes=min(3, args.episodes))
        result["video"] = str(args.video) if reason is None else None
        if reason is not None:
            print(f"fidec eval: {reason}", file=sys.stderr)
        elif not args.json:
            print(f"video: {args.video}")
    if args.json:
        print_json(result)
    return 0


def print_comparison(result: dict[str, Any]) -> None:
    """A short table with intervals."""
    factors = [f", {name} {result[name]:g}" for name in ("noise", "strength") if result.get(name, 1) != 1]
    print(f"{result['environment']}, step {result['step']}, seed {result['seed']}{''.join(factors)}")
    if "note" in result:
        print(result["note"])
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
    if "gain" in result:
        gain = result["gain"]
        if gain["mean"] is not None:
            bounds = "" if gain["low"] is None else f" [{gain['low']:+.2f}, {gain['high']:+.2f}]"
            print(f"gain in {gain['of']}, paired: {gain['mean']:+.2f}{bounds}")
