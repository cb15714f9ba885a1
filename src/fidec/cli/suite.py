"""`fidec suite run | table | list`."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fidec.cli import choose
from fidec.cli.output import parse, print_json, print_table
from fidec.errors import ConfigError, RunError
from fidec.tasks.suites import SUITES, Suite

COMMANDS = {
    "run": "train and evaluate every method of a suite, then print the table",
    "table": "the table of the runs that are finished",
    "list": "list the suites",
}


@dataclass(frozen=True)
class WhichArgs:
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Suite; `fidec suite list` lists them."""
    out: Path | None = None
    """Directory for data, runs and table; by default suite-NAME."""
    algos: tuple[str, ...] = ()
    """Methods; by default all of the suite."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of training and evaluation."""
    steps: int = 0
    """Updates of each method; by default the suite's."""


@dataclass(frozen=True)
class RunArgs(WhichArgs):
    """Train and evaluate every method of a suite on the same data for equal steps, then print the table.

    Finished runs are skipped and interrupted ones resumed when the same command is given again. A method that fails
    does not stop the others.
    """

    rows: int = 0
    """Rows of data to make; by default the suite's."""
    data_dir: Path | None = None
    """Where the data lies or is made; by default OUT/data."""
    dry_run: bool = False
    """Print the commands and train nothing."""


@dataclass(frozen=True)
class TableArgs(WhichArgs):
    """Print the table of the suite's finished runs."""

    format: Literal["md", "csv", "json"] = "md"
    """Markdown, comma-separated values or JSON."""


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
    return _run(parse(RunArgs, rest, "fidec suite run"))


def _list(args: ListArgs) -> int:
    if args.json:
        print_json([{"name": s.name, "summary": s.summary, "methods": list(s.methods)} for s in SUITES.values()])
    else:
        print_table(("suite", "what it is"), [(suite.name, suite.summary) for suite in SUITES.values()])
    return 0


def _find(name: str) -> Suite:
    if name not in SUITES:
        close = difflib.get_close_matches(name, SUITES, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there is {', '.join(SUITES)}"
        raise ConfigError(f"there is no suite {name!r}{hint}")
    return SUITES[name]


def _jobs(args: WhichArgs, data_dir: Path | None = None):
    from fidec.train.suite import jobs

    suite = _find(args.name)
    out = args.out or Path(f"suite-{suite.name}")
    methods = args.algos or tuple(suite.methods)
    data_dir = data_dir or out / "data"
    return jobs(suite, out=out, data_dir=data_dir, methods=methods, seeds=args.seeds, steps=args.steps or suite.steps)


def _run(args: RunArgs) -> int:
    jobs = _jobs(args, args.data_dir)
    suite, data_dir = jobs[0].suite, jobs[0].data_dir
    if args.dry_run:
        for job in jobs:
            print(f"# {job.state()}" if job.state() == "done" else shlex.join(["fidec", *job.command()]))
        return 0
    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:5.0f} s] {text}", file=sys.stderr, flush=True)

    _make_data(suite, args.rows, data_dir, say)
    failed = _train(jobs, say)
    if len(failed) < len(jobs):
        say("what an update of each costs, measured in turn")
        _measure([job for job in jobs if job.state() == "done"])
        text = _markdown(jobs)
        (jobs[0].directory.parent / "table.md").write_text(text + "\n")
        print(text)
    if failed:
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}")
    return 0


def _train(jobs, say) -> list[str]:
    """See every job through that is not done; the names of those that failed."""
    from fidec.train import suite as running
    from fidec.train.loop import catch_signals
    from fidec.train.run import Preempted

    failed = []
    with catch_signals() as signals:
        for number, job in enumerate(jobs, 1):
            name = f"{number}/{len(jobs)} {job.algo}, seed {job.seed}"
            state = job.state()
            if state == "done":
                say(f"{name}: there already")
                continue
            say(f"{name}: {'goes on' if state != 'new' else 'starts'}; its output is in {job.log}")
            code = running.run(job, _show, signals)
            if signals.received is not None:
                raise Preempted(signals.received, f"stopped in {name}. The same command goes on from there.")
            if code == 0:
                say(f"{name}: done")
            else:
                failed.append(name)
                say(f"{name}: FAILED with exit code {code}. The end of its log:\n{running.last_lines(job.log, 5)}")
    return failed


def _make_data(suite: Suite, rows: int, directory: Path, say) -> None:
    from fidec.data.make import dataset_name, make_dataset

    if rows == 0 and (directory / f"{dataset_name(suite.task)}.npz").exists():  # the official file, perhaps
        say(f"data: {directory} has it")
        return
    rows = rows or suite.rows
    say(f"data for {suite.task}: {rows} rows by OGBench's scripted oracle")
    make_dataset(suite.task, rows, directory=directory, seed=0, workers=os.cpu_count() or 1)


def _timing(jobs) -> Path:
    return jobs[0].directory.parent / "timing.json"


def _measure(jobs) -> None:
    """Time the updates of all these methods in one process, unless that was done."""
    from fidec.train import files
    from fidec.train.policy import load_policy
    from fidec.train.timing import milliseconds

    done = files.read_json(_timing(jobs)) if _timing(jobs).exists() else {}
    policies = {job.algo: load_policy(job.directory) for job in jobs}
    if set(policies) <= set(done):
        return
    spec = next(iter(policies.values())).spec
    files.write_json(_timing(jobs), milliseconds({name: p.options for name, p in policies.items()}, spec))


def _show(line: str) -> None:
    """The job's own progress, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K  {line[:100]}", end="\r", file=sys.stderr, flush=True)


def _rows(jobs) -> list[dict]:
    from fidec.report.table import row
    from fidec.train import files

    timing = _timing(jobs)
    costs = files.read_json(timing) if timing.exists() else {}
    rows = [row(job.directory, costs.get(job.algo)) for job in jobs if job.state() == "done"]
    if len({each.pop("data") for each in rows}) > 1:
        raise RunError(
            f"the runs in {jobs[0].directory.parent} were not trained on the same data: they do not compare"
        )
    return rows


def _markdown(jobs) -> str:
    from fidec.report.table import markdown

    rows = _rows(jobs)
    if not rows:
        raise RunError(f"no run of suite {jobs[0].suite.name!r} in {jobs[0].directory.parent} is finished yet")
    own = jobs[0].suite.methods
    settings = {name: ", ".join(f"`{key}` {value}" for key, value in own[name].items()) for name in own}
    return markdown(rows, settings)


def _table(args: TableArgs) -> int:
    from fidec.report.table import comma_separated

    jobs = _jobs(args)
    if args.format == "json":
        print_json(_rows(jobs))
    elif args.format == "csv":
        print(comma_separated(_rows(jobs)), end="")
    else:
        print(_markdown(jobs))
    return 0
