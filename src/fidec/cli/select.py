"""`fidec select`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec.cli.parsing import import_from_here, parse, print_json, print_table
from fidec.errors import ConfigError


@dataclass(frozen=True)
class SelectArgs:
    """Choose among policies with a few real episodes: a bandit plays more of those that look better.

    Candidates are the base policy of each run (the clone) and its refined policy, at several noises and strengths.
    The k-th episode of every candidate has the same seed, so that differences are paired.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run directories or policy directories, or their URLs, for one environment."""
    episodes: int = 60
    """Episodes in all, at least one for each candidate."""
    noises: tuple[float, ...] = (0.0, 1.0)
    """Factors of the policies' random draws (`fidec eval --noise`)."""
    strengths: tuple[float, ...] = (0.0, 0.3, 1.0)
    """Factors of the displacement (`fidec eval --strength`), for methods that have one. 0, the base policy, is always
    a candidate."""
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
    if not args.runs:
        raise ConfigError("name the directory of at least one run or policy")
    if min(args.episodes, args.envs) < 1:
        raise ConfigError("--episodes and --envs must be at least 1")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    import_from_here()
    result = select(
        args.runs,
        args.episodes,
        args.noises,
        args.strengths,
        seed=args.seed,
        envs=args.envs,
        task=args.task,
        env=args.env,
        scale_actions=args.scale_actions,
        out=args.out,
    )
    if args.json:
        print_json(result)
    else:
        print_selection(result)
    return 0


def select(
    runs: Sequence[Path],
    episodes: int,
    noises: Sequence[float],
    strengths: Sequence[float],
    *,
    seed: int,
    envs: int = 1,
    task: str | None = None,
    env: str | None = None,
    scale_actions: bool = False,
    out: Path | None = None,
) -> dict[str, Any]:
    """Play the episodes with progress on stderr, and write the result to `out`."""
    from fidec.console import Progress
    from fidec.store import files
    from fidec.train.evaluation import PolicyEvaluation
    from fidec.train.selection import candidates_of, check_episodes, check_sources, choose

    where: dict[str, Any] = {"task": task, "env": env, "scale_actions": scale_actions}
    sources = [PolicyEvaluation.of(run, seed=seed, **where) for run in dict.fromkeys(runs)]
    check_sources(sources)
    arms = candidates_of(sources, noises, strengths)
    if text := check_episodes(len(arms), episodes, envs):
        print(text, file=sys.stderr)
    with Progress(episodes, unit="episode") as progress:
        result = choose(arms, episodes, seed=seed, envs=envs, report=progress.update)
    if out is not None:
        with files.writing(out, "the selection"):
            out.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(out, result)
    return result


def print_selection(result: dict[str, Any]) -> None:
    """The candidates, the recommendation against the episodes spent, and what to do."""
    from fidec.train.selection import number

    arms = result["arms"]
    print(f"{result['environment']}, seed {result['seed']}, {result['episodes']} episodes")
    if "note" in result:
        print(result["note"])
    rows = []
    for index, arm in enumerate(arms):
        clone = " (clone)" if arm["clone"] else ""
        strength = "-" if arm["strength"] is None else f"{arm['strength']:g}"
        cells = [f"{index}{clone}", arm["run"], f"{arm['noise']:g}", strength, arm["episodes"], number(arm)]
        difference = arm["difference"]
        rows.append([*cells, "-" if difference is None else f"{number(difference, '+')} ({difference['n']})"])
    columns = ("candidate", "run", "noise", "strength", "episodes", result["of"], "difference to the clone (pairs)")
    print_table(columns, rows)
    print()
    history = result["history"]
    last = sorted({max(1, len(history) * part // 6) for part in range(1, 7)})
    shown = [history[position - 1] for position in last]
    means = ["-" if moment["mean"] is None else f"{moment['mean']:.2f}" for moment in shown]
    table = [[m["episodes"], m["arm"], mean] for m, mean in zip(shown, means, strict=True)]
    print_table(("after episodes", "recommended", f"its {result['of']} so far"), table)
    print()
    print("\n".join(result["sentences"]))
