"""`fidec tune`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fidec.cli.parsing import import_from_here, print_json, split_args
from fidec.errors import ConfigError


@dataclass(frozen=True)
class TuneArgs:
    """Train several budgets of FiDec on one behaviour flow, then choose among them with a few real episodes.

    All other options are those of `fidec train`, such as --task, --data, --env, --steps or --algo.hidden. The flow is
    trained first, for --flow-updates (by default as many as --steps), or is that of --flow RUN. Each budget is a run
    of its own, OUT/budget-X/seedNNN. Nothing is evaluated while they train, unless --eval-interval is given. Then the
    runs are compared as by `fidec select`, whose result goes to OUT/selection.json. The same command can be given
    again: finished runs are skipped and interrupted ones are resumed.
    """

    out: Path
    """Directory of the runs."""
    budgets: tuple[float, ...] = ()
    """Sizes of the trust region, --algo.budget, in the unit of the constraint. By default 0.05 0.1 0.2 0.4 nats, or
    0.1, 1, 10 and 100 times the method's own."""
    episodes: int = 60
    """Episodes of the choice, in all."""
    noises: tuple[float, ...] = (0.0, 1.0)
    """As in `fidec select`."""
    strengths: tuple[float, ...] = (0.0, 1.0)
    """As in `fidec select`."""
    workers: int = 1
    """Runs in parallel processes; each gets its share of the cores."""
    json: bool = False
    """Print the result as JSON."""


def main(argv: list[str]) -> int:
    args, given = split_args(TuneArgs, argv, "fidec tune")
    from fidec.bench import tune
    from fidec.cli.select import print_selection, select
    from fidec.cli.train import read_args
    from fidec.train.selection import check_episodes

    if min(args.workers, args.episodes) < 1:
        raise ConfigError("--workers and --episodes must be at least 1")
    import_from_here()
    config = tune.read(read_args(given, "fidec tune")[0], given)
    budgets = args.budgets or tune.default_budgets(config.options, config.algo)
    if config.env_name is not None:  # before anything is trained
        check_episodes(tune.candidates(budgets, args.noises, args.strengths), args.episodes)
    runs = tune.train(config, budgets, args.out, args.workers)
    if config.env_name is None:
        command = tune.select_command(runs, args.episodes)
        if args.json:
            print_json({"runs": [str(run) for run in runs], "select": command})
        else:
            print("There is no environment, so nobody can say which budget is best: values of a critic do not rank")
            print(f"policies. In an environment, also a real one with a Gymnasium interface:\n{command}")
        return 0
    out = args.out / "selection.json"
    result = select(runs, args.episodes, args.noises, args.strengths, seed=config.seed, out=out)
    if args.json:
        print_json(result)
    else:
        print_selection(result)
        print(f"selection: {out}")
    return 0
