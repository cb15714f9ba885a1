"""`fidec suite run | table | curves | list`."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fidec.bench.scale import SCALES, Scale
from fidec.bench.suites import SUITES, Suite
from fidec.cli import choose
from fidec.cli.output import parse, print_json, print_table
from fidec.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fidec.bench.jobs import Job

COMMANDS = {
    "run": "train and evaluate every method of a suite, then print the table",
    "table": "the table of the runs that are finished",
    "curves": "their learning curves as a picture",
    "list": "list the suites",
}


@dataclass(frozen=True)
class WhichArgs:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Suite; `fidec suite list` lists them."""
    out: Path | None = None
    """Directory for runs and table; by default runs/NAME, or runs/NAME-small, and suite-demo for the demo."""
    algos: tuple[str, ...] = ()
    """Methods as NAME or NAME:PRESET, such as fidec:paper; by default all of the suite."""
    tasks: tuple[str, ...] = ()
    """Tasks of the suite, patterns allowed: 'cube-single-*'; by default all."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of training and evaluation."""
    scale: Literal["small"] | None = None
    """small: 100,000 rows, 3 layers of 128, 10,000 steps and as many online, 12 episodes an evaluation, for machines
    without an accelerator (docs/suites.md). By default the published size."""
    steps: int = 0
    """Offline updates of each method; by default the protocol's or the scale's. RLPD has none in an online suite."""
    online_steps: int = 0
    """Online suites: environment steps after them; by default the protocol's or the scale's."""


@dataclass(frozen=True)
class RunArgs(WhichArgs):
    """Train and evaluate every method of a suite on the same data for equal steps, then print the table.

    Finished runs are skipped and interrupted ones resumed when the same command is given again. A method that fails
    does not stop the others. Data that is missing is made first, where fidec has a maker.
    """

    workers: int = 1
    """Runs side by side; each gets its share of the cores."""
    rows: int = 0
    """Rows of data to make; by default the suite's or the scale's."""
    data_dir: Path | None = None
    """Where the data lies or is made; by default the cache, and OUT/data for the demo and at a scale."""
    sources: tuple[str, ...] = ()
    """Other data for some tasks, as TASK=SOURCE: 'door-*=hdf5:door.hdf5'."""
    dry_run: bool = False
    """Print the commands and what they will cost, and train nothing."""
    measure: bool = False
    """With --dry-run: time the updates of methods that no finished run tells the speed of."""


@dataclass(frozen=True)
class TableArgs(WhichArgs):
    """Print the table of the suite's finished runs, the paper's numbers in brackets beside ours."""

    format: Literal["md", "tex", "csv", "json"] = "md"
    """Markdown, TeX (booktabs), comma-separated values or JSON."""
    baseline: str = ""
    """The method that others improve on; by default fql, or deflow where that is not in the suite."""


@dataclass(frozen=True)
class CurvesArgs(WhichArgs):
    """Draw the scores of the suite's finished runs over their steps: a panel a task, a line a method."""

    to: Path | None = None
    """The PNG to write; by default curves.png in the directory of the runs."""


@dataclass(frozen=True)
class ListArgs:
    """List the suites."""

    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    lines = [f"  {name:<6} {text}" for name, text in COMMANDS.items()]
    chosen = choose(COMMANDS, argv, "fidec suite", "\n".join(["usage: fidec suite COMMAND ...", "", *lines]))
    if isinstance(chosen, int):
        return chosen
    command, rest = chosen
    if command == "list":
        return _list(parse(ListArgs, rest, "fidec suite list"))
    if command == "table":
        return _table(parse(TableArgs, rest, "fidec suite table"))
    if command == "curves":
        return _curves(parse(CurvesArgs, rest, "fidec suite curves"))
    return _run(parse(RunArgs, rest, "fidec suite run"))


def _list(args: ListArgs) -> int:
    if args.json:
        print_json(
            [
                {
                    "name": suite.name,
                    "summary": suite.summary,
                    "tasks": suite.tasks,
                    "methods": [variant.label for variant in suite.variants],
                }
                for suite in SUITES.values()
            ]
        )
    else:
        rows = [(suite.name, len(suite.tasks), suite.summary) for suite in SUITES.values()]
        print_table(("suite", "tasks", "what it is"), rows)
    return 0


def _find(name: str) -> Suite:
    if name not in SUITES:
        close = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there is {', '.join(SUITES)}"
        raise ConfigError(f"there is no suite {name!r}{hint}")
    return SUITES[name]


def _which(args: WhichArgs) -> tuple[Suite, Scale | None, Path]:
    """The suite, its size and its directory."""
    suite = _find(args.name)
    if suite.scale is not None and args.scale is not None:
        raise ConfigError(f"suite {suite.name!r} has a size of its own: leave --scale out")
    if suite.scale is not None:
        return suite, suite.scale, args.out or Path(f"suite-{suite.name}")
    scale = SCALES[args.scale] if args.scale else None
    return suite, scale, args.out or Path("runs") / (suite.name + (f"-{scale.name}" if scale else ""))


def _jobs(args: WhichArgs, data_dir: Path | None = None, sources: tuple[str, ...] = ()) -> list[Job]:
    from fidec.bench.jobs import jobs

    suite, scale, out = _which(args)
    pairs = {}
    for word in sources:
        pattern, _, source = word.partition("=")
        if not source:
            raise ConfigError(f"--sources {word}: expected TASK=SOURCE, such as 'door-*=hdf5:door.hdf5'")
        suite.choose_tasks((pattern,))
        pairs[pattern] = source
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
        sources=pairs,
    )


def _run(args: RunArgs) -> int:
    from fidec.bench import run as suite_run

    if args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {args.workers}")
    if args.rows < 0:
        raise ConfigError(f"--rows must be at least 1, or 0 for the suite's or the scale's, not {args.rows}")
    _, scale, out = _which(args)
    jobs = _jobs(args, args.data_dir, args.sources)
    if args.dry_run:
        return suite_run.dry_run(jobs, args.measure)
    return suite_run.run(jobs, scale, out, workers=args.workers, rows=args.rows)


def _table(args: TableArgs) -> int:
    from fidec.bench import table as suite_table

    _, scale, out = _which(args)
    print(suite_table.render(_jobs(args), scale, out, args.format, args.baseline))
    return 0


def _curves(args: CurvesArgs) -> int:
    from fidec.bench import table as suite_table
    from fidec.bench.curves import draw_suite

    suite, scale, out = _which(args)
    runs = suite_table.finished(_jobs(args))
    if not runs:
        raise RunError(f"no run of suite {suite.name!r} in {out} is finished yet: there is nothing to draw")
    print(draw_suite(runs, args.to or out / "curves.png", suite_table.title(suite, scale)))
    return 0
