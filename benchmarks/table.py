"""The long table of docs/benchmark.md: `python -m benchmarks.table [--tasks PATTERN ...] [--show]`.

Makes the data of each task, trains and evaluates its methods one after the other on one core, and adds the score of
every episode to a file. It goes on wherever rows are missing in that file.
"""

from __future__ import annotations

import io
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from fidec import tasks
from fidec.cli.parsing import parse, print_table
from fidec.console import duration
from fidec.data import OfflineDataset
from fidec.data.source import load_dataset
from fidec.data.sources.d4rl import D4RL_FILES, find_file
from fidec.envs.factory import factory_of
from fidec.envs.families import d4rl
from fidec.errors import BusyError, ConfigError, DataError, RunError
from fidec.launch import launch, usable_cores
from fidec.register import unknown
from fidec.stats import Interval, nested_mean, success_rate
from fidec.store.files import atomic_write
from fidec.store.lock import lock_open_file
from fidec.store.rundir import RunDirectory
from fidec.train.protocol import published_options
from fidec.train.resolve import seed_name
from fidec.train.stored import read_config

FILE = Path(__file__).with_suffix(".jsonl")
TASKS = (
    "cube-single-play-singletask-task5-v0",
    "cube-double-play-singletask-task4-v0",
    "scene-play-singletask-task1-v0",
    "puzzle-3x3-play-singletask-task4-v0",
    "pointmaze-medium-navigate-singletask-task4-v0",
    "antmaze-medium-navigate-singletask-task1-v0",
    "hammer-expert-v1",
    "relocate-expert-v1",
)
DESIGN = ("cube-single-play-singletask-task2-v0", "pointmaze-medium-navigate-singletask-task1-v0")
LENDER = "antmaze-large-navigate-singletask-task1-v0"  # of options to tasks that have no published ones
METHODS = ("bc", "flow_bc", "iql", "fql", "ifql", "deflow")
CLONES = ("bc", "flow_bc")
UPDATES, CLONE_UPDATES = 100_000, 50_000
EVALUATIONS = ((0.25, 20), (0.5, 20), (1.0, 50))  # the part of the updates, and episodes
ROWS = 200_000
SUCCESSES = 100  # rows of full success that a task's data needs
BONUS = {"hammer-expert-v1": 75.0, "relocate-expert-v1": 20.0}  # rewards above have the whole bonus of the goal
SETTINGS = ("--algo.hidden", "128", "128", "128", "--algo.learning-rate", "0.001")
PACKAGES = ("jax", "jaxlib", "numpy", "mujoco", "ogbench", "gymnasium-robotics")

Row = dict[str, Any]
say = partial(print, flush=True)


@dataclass(frozen=True)
class TableArgs:
    """Continue the long table of docs/benchmark.md wherever rows are missing, or show it."""

    tasks: tuple[str, ...] = ()
    """Tasks of the table; patterns are allowed. By default all, in the protocol's order."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of every method."""
    work: Path = Path("runs/table")
    """Directory of the data and of the runs."""
    rows: Path = FILE
    """File with the scores so far, to which new ones are added."""
    hands: Path | None = None
    """Directory of hammer-expert.npz and relocate-expert.npz, of which D4RL's files are made where there are none."""
    hours: float | None = None
    """Begin no task after so many hours. By default all tasks are done."""
    accept_data: bool = False
    """Add rows also to those that were measured on other data of the same task."""
    keep: bool = False
    """Keep finished runs, which are deleted otherwise when their scores are in the file."""
    show: bool = False
    """Only print the table of the file."""


class Evaluation(NamedTuple):
    updates: int
    episodes: int
    noise: float


class Cell(NamedTuple):
    """One run of the table."""

    task: str
    method: str
    seed: int

    def evaluations(self) -> list[Evaluation]:
        whole = CLONE_UPDATES if self.method in CLONES else UPDATES
        noises = (1.0, 0.0) if self.method == "flow_bc" else (1.0,)
        return [Evaluation(round(part * whole), n, noise) for part, n in EVALUATIONS for noise in noises]

    def missing(self, rows: Iterable[Row]) -> list[Evaluation]:
        """The evaluations that have no row, in their order."""
        own = {(row["updates"], row["noise"]) for row in rows if self == (row["task"], row["method"], row["seed"])}
        return [each for each in self.evaluations() if (each.updates, each.noise) not in own]


def main(argv: list[str] | None = None) -> int:
    args = parse(TableArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.table")
    rows = read_rows(args.rows)
    if args.show:
        print_table(*table(rows))
        if any(row["task"] in D4RL_FILES for row in rows):
            print(d4rl.note())
        return 0
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with alone_in(args.work.resolve()) as work:
            return run(args, work, rows)
    except KeyboardInterrupt:
        print("stopped. The same command continues.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def alone_in(work: Path) -> Iterator[Path]:
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("ab") as file:
        if not lock_open_file(file):
            raise BusyError(f"another process works in {work}: wait for it, or give another --work and --rows")
        yield work


def run(args: TableArgs, work: Path, rows: list[Row]) -> int:
    """Do all cells without rows. An error of one run does not stop the others, and is raised at the end."""
    begin, failed = time.monotonic(), []
    for task in choose(args.tasks):
        if args.hours is not None and time.monotonic() - begin > 3600 * args.hours:
            say(f"{args.hours:g} hours are over: {task} is not begun")
            break
        if any(not left(each, args.seeds, rows) for each in candidates(task)):
            continue
        data_dir = provide(task, work, args.hands)
        found = find_task(task, data_dir)
        if found is None:
            continue
        task, facts = found
        check_same_data(task, facts["data"], rows, args)
        for cell in left(task, args.seeds, rows):
            try:
                do(cell, work, data_dir, args, rows, facts)
            except RunError as error:
                print(f"{cell.task} {cell.method} seed {cell.seed}: {error}", file=sys.stderr)
                failed.append(" ".join(map(str, cell)))
    if failed:
        raise RunError(
            f"{len(failed)} runs failed, see above; the same command tries them again: {'; '.join(failed)}"
        )
    return 0


def choose(patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatch(task, pattern) for task in TASKS):
            raise unknown("task of the table", pattern, TASKS)
    return [task for task in TASKS if not patterns or any(fnmatch(task, pattern) for pattern in patterns)]


def left(task: str, seeds: Sequence[int], rows: Sequence[Row]) -> list[Cell]:
    """The cells of a task with missing rows, method by method."""
    cells = [Cell(task, method, seed) for method in METHODS for seed in seeds]
    return [cell for cell in cells if cell.missing(rows)]


# --- data -----------------------------------------------------------------------------------------------------------


def candidates(task: str) -> list[str]:
    """The task and those that take its place, one after the other, if there are too few successes in its data."""
    match = re.fullmatch(r"(.*-task)(\d)(-v0)", task)
    if match is None:
        return [task]
    head, first, tail = match[1], int(match[2]), match[3]
    every = [f"{head}{(first - 1 + more) % 5 + 1}{tail}" for more in range(5)]
    return [each for each in every if each not in DESIGN]


def find_task(task: str, data_dir: Path | None) -> tuple[str, Row] | None:
    """The first task with enough rows of full success, and what its rows say of its data."""
    for each in candidates(task):
        source = tasks.source_of(each)
        assert source is not None
        dataset = load_dataset(source, cache_dir=data_dir)
        count, transitions = successes(each, dataset), len(dataset.rewards)
        say(f"{each}: {count} of {transitions} rows are full successes; {SUCCESSES} are needed")
        if count >= SUCCESSES:
            return each, {"data": dataset.sha256, "transitions": transitions, "successes": count}
    say(f"{task} is left out")
    return None


def successes(task: str, dataset: OfflineDataset) -> int:
    """Rows of full success. A hand's task goes on after its success, so there the reward says so."""
    return int(np.sum(dataset.rewards > BONUS[task] if task in BONUS else dataset.masks == 0))


def provide(task: str, work: Path, hands: Path | None) -> Path | None:
    """The directory of the task's data, after making what is missing; None for fidec's own directories."""
    directory = work / "data"
    if task not in D4RL_FILES:
        name = task.partition("-singletask")[0] + "-v0"
        fidec("data", "make", name, "--rows", str(ROWS), "--workers", "1", "--data-dir", str(directory))
        return directory
    try:
        find_file(task)
        return None
    except DataError as missing:
        target = directory / f"{task}.hdf5"
        if not target.exists():
            if hands is None:
                raise DataError(f"{missing} Or give --hands, a directory with {task[:-3]}.npz.") from None
            write_hand(hands / f"{task[:-3]}.npz", target)
        return directory


def write_hand(source: Path, target: Path) -> None:
    """Write the episodes of an expert in the layout of D4RL's files."""
    if not source.exists():
        raise DataError(f"{source} not found: expected the expert's episodes there (--hands)")
    buffer = io.BytesIO()
    with np.load(source, allow_pickle=False) as arrays, h5py.File(buffer, "w") as file:
        for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
            file[name] = arrays[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, buffer.getvalue())


def check_same_data(task: str, sha256: str, rows: Iterable[Row], args: TableArgs) -> None:
    others = {row["data"] for row in rows if row["task"] == task} - {sha256}
    if others and not args.accept_data:
        known = ", ".join(f"{each[:12]}…" for each in sorted(others))
        raise DataError(
            f"{args.rows} has rows of {task} that were measured on data with the SHA-256 {known}; the data of "
            f"{args.work} has {sha256[:12]}…. Copy that data there, or accept both with --accept-data."
        )


# --- runs -----------------------------------------------------------------------------------------------------------


def do(cell: Cell, work: Path, data_dir: Path | None, args: TableArgs, rows: list[Row], facts: Row) -> None:
    """Train and evaluate one run, and add its rows to the file as they come."""
    directory = work / "runs" / cell.task / cell.method / seed_name(cell.seed)
    for updates, each in groupby(cell.missing(rows), key=lambda evaluation: evaluation.updates):
        seconds = train(cell, updates, directory, data_dir)
        for _, episodes, noise in each:
            scores = play(cell, episodes, noise, directory)
            row = {**cell._asdict(), "updates": updates, "noise": noise, "scores": scores}
            row |= {"failed": scores.count(None), **facts, "core_seconds": seconds, **versions(directory)}
            rows.append(row)
            write_rows(args.rows, rows)
            spent = "" if seconds is None else f", trained in {duration(seconds)} of one core"
            label = f"{cell.task} {cell.method} seed {cell.seed}, noise {noise:g}"
            say(f"{label}: {updates} updates, score {mean(row):.1f}{spent}")
    if not args.keep:
        shutil.rmtree(directory, ignore_errors=True)


def train(cell: Cell, updates: int, directory: Path, data_dir: Path | None) -> float | None:
    """Train up to this many updates. The seconds of one core for it; None if they are not known.

    A run that is farther already, whose rows were lost, is begun again.
    """
    words, before = ["train", *arguments(cell, updates, data_dir), "--out", str(directory), "--overwrite"], None
    if (directory / "config.json").exists():
        found = RunDirectory.open(directory, read_only=True)
        before = (found.read_status() or {}).get("state")
        steps = read_config(found).steps
        if steps == updates and before == "done":
            return None
        if steps <= updates:
            words = ["train", "--resume", str(directory), "--steps", str(updates)]
    begin = cpu_seconds()
    fidec(*words)
    return round(cpu_seconds() - begin, 1) if before in (None, "done") else None


def arguments(cell: Cell, updates: int, data_dir: Path | None) -> list[str]:
    words = ["--task", cell.task, "--algo", cell.method, "--seed", str(cell.seed), "--steps", str(updates)]
    words += ["--eval-interval", "0"] + ([] if data_dir is None else ["--data-dir", str(data_dir)])
    if tasks.family_of(cell.task) is None:
        for name, option in published_options(cell.method, "recommended", LENDER).items():
            words += [f"--algo.{name.replace('_', '-')}", str(option.value)]
    return [*words, *SETTINGS]


def play(cell: Cell, episodes: int, noise: float, directory: Path) -> list[float | None]:
    """The score of each episode; None for one that failed."""
    words = ("--episodes", str(episodes), "--envs", "1", "--noise", str(noise), "--json")
    found = json.loads(fidec("eval", str(directory), *words))["episodes"]
    factory = factory_of(cell.task)
    assert factory is not None
    (played,) = found.values()
    played = sorted(played, key=lambda row: row["episode"])
    scores = [factory.score(row) if row["status"] == "ok" else None for row in played]
    return [None if score is None else round(score, 2) for score in scores]


def versions(directory: Path) -> Row:
    """Of the run: the commit of fidec, packages and the machine."""
    found = RunDirectory.open(directory, read_only=True).read_environment()
    git = found.get("git") or {}
    commit = f"{git.get('commit')}{'-dirty' if git.get('dirty') else ''}"
    packages = {name: found["packages"].get(name) for name in PACKAGES}
    return {"commit": commit, "python": found["python"], **packages, "platform": found["platform"]}


def fidec(*words: str) -> str:
    """Run a command of fidec on one core; its output. Ctrl-C or SIGTERM ends it, and a run is saved."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "process_group": 0}
    with launch("-W", "ignore", "-m", "fidec", *words, cores=usable_cores()[-1:], threads=1, **how) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.communicate()
            raise
    if process.returncode:
        raise RunError(f"`fidec {' '.join(words)}` ended with exit code {process.returncode}")
    return said


def cpu_seconds() -> float:
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# --- table ----------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))


def scored(row: Row) -> list[float]:
    return [score for score in row["scores"] if score is not None]


def mean(row: Row) -> float:
    return float(np.mean(scored(row))) if scored(row) else float("nan")


def interval(task: str, rows: Sequence[Row]) -> Interval:
    """Of the mean over seeds: of a success in percent, or of D4RL's score."""
    runs = [scored(row) for row in rows]
    if task in D4RL_FILES:
        return nested_mean(runs)
    return Interval(*(100 * end for end in success_rate([[score / 100 for score in run] for run in runs])))


def table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines: a task, a method and a noise each, the means over seeds, and the interval of the last."""
    if not rows:
        raise ConfigError("the file has no rows: run some tasks, without --show")
    header = ("task", "method", "seeds", "25 %", "50 %", "100 %", "95 %", "failed", "core minutes")
    lines = []
    for task, method, noise in dict.fromkeys((row["task"], row["method"], row["noise"]) for row in rows):
        own = [row for row in rows if (row["task"], row["method"], row["noise"]) == (task, method, noise)]
        ends = dict.fromkeys(each.updates for each in Cell(task, method, 0).evaluations())
        at = [[row for row in own if row["updates"] == updates and scored(row)] for updates in ends]
        seeds = " ".join(str(row["seed"]) for row in at[-1])
        means = [f"{np.mean([mean(row) for row in each]):.1f}" if each else "" for each in at]
        within = "[{:.1f}, {:.1f}]".format(*interval(task, at[-1])) if at[-1] else ""
        spent = [row["core_seconds"] for row in own]
        minutes = "" if None in spent else f"{sum(spent) / 60 / len({row['seed'] for row in own}):.1f}"
        failed, label = sum(row["failed"] for row in own), f"{method} noise 0" if noise == 0 else method
        lines.append((task, label, seeds, *means, within, str(failed), minutes))
    return header, lines


if __name__ == "__main__":
    sys.exit(main())
