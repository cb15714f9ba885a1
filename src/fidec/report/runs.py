"""Finished runs, read from their directories, in groups that can be compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fidec import tasks
from fidec.errors import FidecError, RunError
from fidec.store.rundir import RunDirectory, runs_below
from fidec.train.config import RunConfig
from fidec.train.stored import read_config

SUCCESS, NORMALISED, RETURN, OTHER = "success in percent", "normalised score", "return", "score"  # the units
# Fields that change neither what is learned nor how it is evaluated.
_FREE = ("seed", "out", "data_dir", "check_data", "memory_limit", "log_interval", "checkpoint_interval")
_FREE += ("keep_checkpoints", "track", "eval_interval", "eval_envs", "eval_timeout", "devices")
# Fields that say what is trained for. The hashes say which data.
_PLACE = ("task", "env", "data", "buffer", "action_low", "action_high")
# How a policy is evaluated.
_PROTOCOL = ("success_timing", "rendering", "scale_actions")


class Record(NamedTuple):
    """A finished run with its evaluations."""

    directory: Path
    config: RunConfig
    data: Mapping[str, Any]  # name, source, transitions and sha256 of its data
    buffer: str | None  # SHA-256 of its second data set
    last: Mapping[str, Any]  # the row of the last evaluation
    curve: Mapping[int, float]  # the score of every evaluation, by its step
    episodes: list[dict[str, Any]]  # of the last evaluation
    unit: str  # of the score
    of: str  # what the score is the mean of over episodes: SUCCESS, RETURN or OTHER

    @property
    def score(self) -> float:
        """Of the last evaluation."""
        return self.curve[self.last["step"]]

    @property
    def method(self) -> str:
        """NAME, or NAME:PRESET."""
        preset = self.config.preset
        return self.config.algo + ("" if preset == "recommended" else f":{preset}")

    def protocol(self) -> dict[str, Any]:
        """How it was evaluated."""
        names = [f.name for f in dataclasses.fields(RunConfig) if f.name.startswith("eval_") and f.name not in _FREE]
        return {name: getattr(self.config, name) for name in (*names, *_PROTOCOL)}

    def options(self) -> dict[str, Any]:
        """What it was trained with, besides its seed: fields of the configuration and options of the method."""
        left_out = {*_FREE, *_PLACE, *self.protocol(), "online", "options", "algo", "preset"}
        values = {name: value for name, value in vars(self.config).items() if name not in left_out}
        if self.config.online_steps:
            values |= {f"online.{name}": value for name, value in vars(self.config.online).items()}
        return values | {f"algo.{name}": value for name, value in dataclasses.asdict(self.config.options).items()}


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Path], dict[Path, str]]:
    """The run directories among the paths and below them, each once; and the paths that hold none, and why."""
    found: dict[Path, Path] = {}
    none = {}
    for path in map(Path, paths):
        below = runs_below(path, levels=10)
        for each in below:
            found.setdefault(each.resolve(), each)
        if not below:
            none[path] = "holds no run" if path.is_dir() else "there is no such directory"
    return list(found.values()), none


def read_runs(paths: Iterable[str | Path]) -> tuple[list[Record], dict[Path, str]]:
    """The finished and evaluated runs among the paths and below them, and the others with the reason."""
    found, left_out = find_runs(paths)
    records: dict[Any, Record] = {}
    for path in found:
        try:
            record = read_record(path)
        except FidecError as error:
            left_out[path] = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
            continue
        other = records.setdefault((*_key(record), record.config.seed), record)
        if other is not record:
            left_out[path] = f"has the configuration and the seed of {other.directory}"
    return list(records.values()), left_out


def read_record(path: Path) -> Record:
    """A finished run; an error says why it cannot be compared."""
    directory = RunDirectory.open(path, read_only=True)
    status = directory.read_status() or {}
    if status.get("state") != "done":
        raise RunError(
            f"is not finished: {status.get('state', 'stopped before training')}, step {status.get('step', 0)}"
        )
    config = read_config(directory)
    evaluations = [row for row in directory.read_jsonl("eval") if row.get("evaluation/score") is not None]
    if not evaluations:
        raise RunError("has no evaluation with a score")
    try:
        curve = {row["step"]: float(row["evaluation/score"]) for row in evaluations}
        if config.total not in curve:
            raise RunError(f"has no score at its last step, {config.total}")
        environment = directory.read_environment()
        return Record(
            directory=path,
            config=config,
            data={name: environment["dataset"][name] for name in ("name", "source", "transitions", "sha256")},
            buffer=(environment.get("buffer") or {}).get("sha256"),
            last=evaluations[-1],
            curve=curve,
            episodes=[row for row in directory.read_jsonl("episodes") if row["step"] == config.total],
            unit=unit_of(config.task, evaluations),
            of=mean_of(evaluations),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"is damaged: {type(error).__name__}: {error}") from error


def unit_of(task: str | None, evaluations: Sequence[Mapping[str, Any]] = ()) -> str:
    """The unit of a task's scores: the benchmark's, else what the evaluations show."""
    if family := tasks.family_of(task or ""):
        return SUCCESS if family.benchmark == "ogbench" else NORMALISED
    return mean_of(evaluations)


def mean_of(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """What scores are means of over episodes: SUCCESS (also D4RL's score of an antmaze), RETURN or OTHER."""
    for unit, name, factor in ((SUCCESS, "success", 100.0), (RETURN, "return", 1.0)):
        pairs = [(row["evaluation/score"], row.get(f"evaluation/{name}")) for row in evaluations]
        if all(value is not None and math.isclose(score, factor * value) for score, value in pairs):
            return unit
    return OTHER


def by_place(records: Iterable[Record]) -> list[list[Record]]:
    """The runs that were trained for the same environment on the same data and evaluated in the same way."""
    return _grouped(records, _place)


def by_method(records: Iterable[Record]) -> list[list[Record]]:
    """The runs that differ in their seeds only."""
    return _grouped(records, _key)


def _grouped(records: Iterable[Record], key: Any) -> list[list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _place(record: Record) -> tuple[Any, ...]:
    protocol = tuple(record.protocol().items())
    return (record.config.env_name, record.data["sha256"], record.buffer, protocol, record.unit)


def _key(record: Record) -> tuple[Any, ...]:
    return (*_place(record), record.method, repr(sorted(record.options().items())))


def differing(groups: Sequence[Record]) -> list[str]:
    """The options in which runs differ, of those that several of them have."""
    values: dict[str, list[Any]] = {}
    for record in groups:
        for name, value in record.options().items():
            values.setdefault(name, []).append(value)
    return [name for name, each in values.items() if any(value != each[0] for value in each)]
