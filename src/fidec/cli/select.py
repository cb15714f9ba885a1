"""`fidec select`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec.cli.parsing import import_from_here, parse, print_json, print_table
from fidec.errors import ConfigError


@dataclass(frozen=True)
class SelectArgs:
    """Choose among policies with a few real episodes: a bandit plays more of those that look better.

    It chooses among the base policy of each run (the clone) and its refined policy, with every combination of
    --noises, --strengths and --candidates. The k-th episode of every policy has the same seed, so that differences
    are paired.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run directories or policy directories, or their URLs, for one environment. A directory of runs, such as that of
    a sweep, stands for all runs below it."""
    episodes: int = 60
    """Episodes in all, at least one for each policy."""
    noises: tuple[float, ...] = ()
    """Factors of the policies' random draws (`fidec eval --noise`). By default 0, 1, and that of the run."""
    strengths: tuple[float, ...] = (0.0, 0.3, 1.0)
    """Factors of the displacement (`fidec eval --strength`), for methods that have one. 0, the base policy, always
    takes part."""
    candidates: tuple[int, ...] = ()
    """Numbers of actions from which the critic picks one (`fidec eval --candidates`), for methods that can choose. By
    default that of the run."""
    seed: int = 0
    """Seed of the episodes. The same seed gives the same choice."""
    envs: int = 1
    """Environment processes. With several, each decision of the bandit is for that many episodes at once."""
    task: str | None = None
    """Play in the environment of this task; by default in the runs' own."""
    env: str | None = None
    """Play in this Gymnasium environment, such as Pendulum-v1 or my_package:MyEnv-v0."""
    scale_actions: bool = False
    """Stretch the action bounds of the policies' data to those of the environment (`fidec eval --scale-actions`)."""
    out: Path | None = None
    """Also write the result to this file, as JSON."""
    json: bool = False
    """Print the result as JSON, with the score of every episode."""


def main(argv: list[str]) -> int:
    args = parse(SelectArgs, argv, "fidec select")
    from fidec.console import Progress
    from fidec.store import files
    from fidec.store.rundir import runs_below
    from fidec.train.evaluation import PolicyEvaluation
    from fidec.train.selection import arms_of, check_episodes, check_sources, choose

    if not args.runs:
        raise ConfigError("name the directory of at least one run or policy")
    if min(args.episodes, args.envs) < 1:
        raise ConfigError("--episodes and --envs must be at least 1")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    import_from_here()
    where: dict[str, Any] = {"task": args.task, "env": args.env, "scale_actions": args.scale_actions}
    runs = dict.fromkeys(run for path in args.runs for run in runs_below(path) or [path])
    sources = [PolicyEvaluation.of(run, seed=args.seed, **where) for run in runs]
    check_sources(sources)
    arms = arms_of(sources, args.noises, args.strengths, args.candidates)
    if text := check_episodes(len(arms), args.episodes, args.envs):
        print(text, file=sys.stderr)
    with Progress(args.episodes, unit="episode") as progress:
        result = choose(arms, args.episodes, seed=args.seed, envs=args.envs, report=progress.update)
    if args.out is not None:
        with files.writing(args.out, "the selection"):
            args.out.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(args.out, result)
    if args.json:
        print_json(result)
    else:
        print_selection(result)
    return 0


def print_selection(result: dict[str, Any]) -> None:
    """The policies, the recommendation against the episodes spent, and what to do."""
    from fidec.train.selection import number

    print(f"{result['environment']}, seed {result['seed']}, {result['episodes']} episodes")
    if "note" in result:
        print(result["note"])
    rows = []
    for index, arm in enumerate(result["arms"]):
        clone = " (clone)" if arm["clone"] else ""
        strength = "-" if arm["strength"] is None else f"{arm['strength']:g}"
        difference = arm["difference"]
        paired = "-" if difference is None else f"{number(difference, '+')} ({difference['n']})"
        cells = [f"{index}{clone}", arm["run"], f"{arm['noise']:g}", strength, arm["candidates"]]
        rows.append([*cells, arm["episodes"], number(arm), paired])
    columns = ("policy", "run", "noise", "strength", "candidates", "episodes", result["of"])
    print_table((*columns, "difference to the clone (pairs)"), rows)
    print()
    history = result["history"]
    last = sorted({max(1, len(history) * part // 6) for part in range(1, 7)})
    shown = [history[position - 1] for position in last]
    means = ["-" if moment["mean"] is None else f"{moment['mean']:.2f}" for moment in shown]
    table = [[m["episodes"], m["arm"], mean] for m, mean in zip(shown, means, strict=True)]
    print_table(("after episodes", "recommended", f"its {result['of']} so far"), table)
    print()
    print("\n".join(result["sentences"]))
