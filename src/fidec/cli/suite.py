"""`fidec suite run | table | report | list`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fidec.bench.suites import SCALES, SUITES, Scale, Suite, find_suite
from fidec.cli.parsing import ExecutorArgs, import_from_here, print_json, print_table, request, subcommands
from fidec.errors import ConfigError, RunError
from fidec.store.rundir import REPORT

if TYPE_CHECKING:
    from fidec.bench.jobs import SuiteJob


@dataclass(frozen=True)
class SuiteArgs:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Suite (`fidec suite list` lists them), or the path of a TOML file in the layout of the built-in ones."""
    out: Path | None = None
    """Directory for runs and table; by default runs/NAME, or runs/NAME-small, and suite-NAME for suites with a size
    of their own."""
    algos: tuple[str, ...] = ()
    """Methods as NAME or NAME:PRESET, such as fidec:paper; by default all of the suite."""
    tasks: tuple[str, ...] = ()
    """Tasks of the suite; patterns are allowed: 'cube-single-*'. By default all."""
    seeds: tuple[int, ...] = ()
    """Seeds of training and evaluation; by default the suite's, which is 0 for all built-in suites."""
    scale: Literal["small"] | None = None
    """small: 100,000 rows, 3 layers of 128, 10,000 steps and as many online, 12 episodes an evaluation, for machines
    without an accelerator. By default the published size."""
    steps: int = 0
    """Offline updates of each method; by default the protocol's or the scale's. RLPD has none in an online suite."""
    online_steps: int = 0
    """Online suites: environment steps after the offline updates; by default the protocol's or the scale's."""


@dataclass(frozen=True)
class RunArgs(ExecutorArgs, SuiteArgs):
    """Train and evaluate every method of a suite on the same data for equal steps, then print the table.

    The same command can be given again: finished runs are skipped and interrupted ones are resumed. A method that
    fails does not stop the others. Missing data is made first, if fidec can make it.
    """

    rows: int = 0
    """Rows of data to make; by default the suite's or the scale's."""
    data_dir: Path | None = None
    """Where the data is, or is made; by default the cache, and OUT/data for suites with a size and at a scale."""
    dry_run: bool = False
    """Print the commands and their expected time, and train nothing."""


@dataclass(frozen=True)
class TableArgs(SuiteArgs):
    """Print the table of the suite's finished runs, with the paper's numbers in brackets."""

    format: Literal["md", "tex", "csv", "json"] = "md"
    """Markdown, TeX (booktabs), comma-separated values or JSON."""
    baseline: str = ""
    """The method that others are compared with; by default fql, else the first method of the table."""


@dataclass(frozen=True)
class ReportArgs(SuiteArgs):
    """Write one HTML page: the suite's table, and what `fidec report` says about its runs, finished or not."""

    to: Path | None = None
    """The file to write; by default report.html in the directory of the runs."""


@dataclass(frozen=True)
class ListArgs:
    """List the suites: the built-in ones and those of installed packages."""

    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    commands = {
        "run": (RunArgs, _run, "train and evaluate every method of a suite, then print the table"),
        "table": (TableArgs, _table, "print the table of the finished runs"),
        "report": (ReportArgs, _report, "write an HTML page about the runs, also while they go on"),
        "list": (ListArgs, _list, "list the suites"),
    }
    return subcommands("fidec suite", commands, argv)


def _list(args: ListArgs) -> int:
    suites = [suite for _, suite in SUITES.entries()]
    if args.json:
        labels = {suite.name: [variant.label for variant in suite.variants] for suite in suites}
        print_json(
            [{"name": s.name, "summary": s.summary, "tasks": s.ids, "methods": labels[s.name]} for s in suites]
        )
    else:
        print_table(("suite", "tasks", "what it is"), [(s.name, len(s.tasks), s.summary) for s in suites])
    return 0


def _size(args: SuiteArgs) -> tuple[Suite, Scale | None, Path]:
    """The suite, its scale and its directory."""
    suite = find_suite(args.name)
    if suite.scale is not None and args.scale is not None:
        raise ConfigError(f"{suite} has a size of its own: leave --scale out")
    if suite.scale is not None:
        return suite, suite.scale, args.out or Path(f"suite-{suite.name}")
    scale = SCALES[args.scale] if args.scale else None
    return suite, scale, args.out or Path("runs") / (suite.name + (f"-{scale.name}" if scale else ""))


def _jobs(args: SuiteArgs, data_dir: Path | None = None) -> list[SuiteJob]:
    from fidec.bench.jobs import jobs

    suite, scale, out = _size(args)
    return jobs(
        suite,
        out=out,
        data_dir=data_dir or (out / "data" if scale else None),
        scale=scale,
        words=args.algos,
        patterns=args.tasks,
        seeds=args.seeds,
        steps=args.steps,
        online_steps=args.online_steps,
    )


def _run(args: RunArgs) -> int:
    from fidec.bench.schedule import dry_run, run_suite

    wanted = request(args)
    if args.rows < 0:
        raise ConfigError(f"--rows must be at least 1, or 0 for the suite's or the scale's, not {args.rows}")
    import_from_here()
    _, scale, out = _size(args)
    jobs = _jobs(args, args.data_dir)
    if args.dry_run:
        return dry_run(jobs)
    return run_suite(jobs, scale, out, wanted, rows=args.rows, on=args.on)


def _table(args: TableArgs) -> int:
    from fidec.bench import table

    suite, scale, out = _size(args)
    report = table.report(_jobs(args), scale, args.baseline)
    if not report.runs and not any(line.paper for line in report.lines):
        raise RunError(f"no run of {suite} in {out} is finished with a score: there is nothing to print")
    if args.format == "json":
        print_json(table.to_json(report))
    else:
        print(table.FORMATS[args.format](report))
    return 0


def _report(args: ReportArgs) -> int:
    from fidec.bench.table import write_page

    _, scale, out = _size(args)
    print(write_page(_jobs(args), scale, args.to or out / REPORT))
    return 0
