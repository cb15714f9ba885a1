"""A suite from its missing data to its table, or only what it would cost."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fidec.bench import data as suite_data
from fidec.bench import table as suite_table
from fidec.bench.board import Board
from fidec.bench.cost import duration, estimates
from fidec.bench.jobs import Job
from fidec.bench.scale import Scale
from fidec.bench.schedule import Outcome, see_through
from fidec.errors import RunError
from fidec.store import files
from fidec.train.loop import catch_signals
from fidec.train.run import Preempted


def run(jobs: Sequence[Job], scale: Scale | None, out: Path, *, workers: int, rows: int) -> int:
    """See every job through that is not done, then print the table; an error names those that did not end well."""
    left = [job for job in jobs if job.state() != "done"]  # a run of other settings is found before anything starts
    _label(out, scale)
    with Board(jobs) as board:
        for job in jobs:
            if job not in left:
                board.ends(Outcome(job, "done", "there already"))
        without = suite_data.provide(left, scale, rows, board.say)
        for job, reason in without.items():
            board.ends(Outcome(job, "no data", f"lacks its data. {reason}"))
        with catch_signals() as signals:
            outcomes = see_through([job for job in left if job not in without], workers, board, signals)
        if signals.received is not None:
            stopped = [board.name(outcome.job) for outcome in outcomes if outcome.state == "stopped"]
            where = f"stopped in {'; '.join(stopped)}. " if stopped else ""
            raise Preempted(signals.received, f"{where}The same command goes on from there.")
    failed = [board.name(outcome.job) for outcome in outcomes if outcome.state == "failed"]
    if len(failed) + len(without) < len(jobs):
        print(_table(jobs, scale, out, board))
    problems = [f"{len(failed)} of {len(jobs)} runs failed: {'; '.join(failed)}"] if failed else []
    problems += [f"{len(without)} of {len(jobs)} runs lack their data"] if without else []
    if problems:
        raise RunError(". ".join(problems))
    return 0


def _label(out: Path, scale: Scale | None) -> None:
    """Say in the suite's directory at which scale its runs are."""
    with files.writing(out, "the suite's directory"):
        out.mkdir(parents=True, exist_ok=True)
    if scale is not None:
        files.write_json(out / "scale.json", dataclasses.asdict(scale))


def _table(jobs: Sequence[Job], scale: Scale | None, out: Path, board: Board) -> str:
    """The table, which is kept beside the runs."""
    if len(jobs[0].suite.tasks) == 1:
        board.say("what an update of each costs, measured in turn")
        suite_table.measure(jobs, out)
    text = suite_table.render(jobs, scale, out, "md")
    files.atomic_write(out / "table.md", text + "\n")
    return text


def dry_run(jobs: Sequence[Job], measure: bool) -> int:
    """The commands as a shell script, with what each will take as a comment; the sum on stderr."""
    states = {job: job.state() for job in jobs}
    left = [job for job in jobs if states[job] != "done"]
    speeds = estimates(left, [job for job in jobs if states[job] == "done"], measure)
    seconds = {job: speed.seconds(job.plan) for job, speed in speeds.items() if speed}
    for job in jobs:
        speed = speeds.get(job)
        if states[job] == "done":
            print(f"# done: {job.name}")
        elif job.busy():
            print(f"# runs now: {job.name}")
        else:
            cost = f"{duration(seconds[job])} ({speed.source})" if speed else "cost unknown"
            print(f"{shlex.join(['fidec', *job.command()])}  # {cost}")
    print(f"{len(jobs)} runs, {len(jobs) - len(left)} done", *_sum(len(left), seconds), sep="; ", file=sys.stderr)
    return 0


def _sum(left: int, seconds: dict[Job, float]) -> list[str]:
    unknown = left - len(seconds)
    parts = [f"{len(seconds)} to go will take about {duration(sum(seconds.values()))} in turn"] if seconds else []
    return parts + ([f"of {unknown} the cost is unknown: --measure times their updates"] if unknown else [])
