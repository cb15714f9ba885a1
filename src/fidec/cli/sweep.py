"""`fidec sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fidec.cli.parsing import ExecutorArgs, import_from_here, request, split_args
from fidec.errors import RunError


@dataclass(frozen=True, kw_only=True)
class SweepArgs(ExecutorArgs):
    """Train every combination of methods, listed values of options, and seeds; then compare them.

    All other options are those of `fidec train`, such as --task, --data, --config, --steps or --algo.hidden, and are
    the same for all runs. Each run has its own directory, OUT/METHOD-PRESET-VALUES/seedNNN. The same command can be
    given again: finished runs are skipped and interrupted ones are resumed. A run that fails does not stop the
    others. At the end the finished runs are compared, as by `fidec compare OUT`.
    """

    out: Path
    """Directory of the runs."""
    algos: tuple[str, ...] = ()
    """Methods as NAME or NAME:PRESET, such as fidec:paper; by default that of --algo or --config."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of training and evaluation."""
    vary: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """An option and its values: --vary algo.budget=0.01,0.03. Values with several numbers have blanks: --vary
    'algo.hidden=64 64,128 128'. Given several times, all combinations are trained."""
    dry_run: bool = False
    """Print the commands, and train nothing."""


def main(argv: list[str]) -> int:
    args, given = split_args(SweepArgs, argv, "fidec sweep")
    from fidec.bench.schedule import dry_run, run_all
    from fidec.bench.sweep import combine, sweep_jobs
    from fidec.cli.compare import print_compared, print_left_out
    from fidec.cli.train import read_args
    from fidec.report.compare import compare

    wanted = request(args)
    import_from_here()
    combinations = combine(given, args.algos, args.vary)
    jobs = sweep_jobs(lambda words: read_args(words, "fidec train")[0], combinations, args.seeds, args.out)
    if args.dry_run:
        return dry_run(jobs)
    problems = run_all(jobs, args.out, wanted, on=args.on)
    if any(job.plan.eval_interval for job in jobs):
        try:
            compared = compare([job.directory for job in jobs])
        except RunError as error:  # none is finished
            raise RunError(". ".join([*problems, str(error)])) from error
        print_compared(compared)
        print_left_out(compared)
    else:
        print("The runs have no evaluations, so there are no scores to compare.")
    if problems:
        raise RunError(". ".join(problems))
    return 0
