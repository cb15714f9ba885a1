"""Runs as their directories say, finished or not, and groups of finished runs that can be compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from fidec import tasks
from fidec.errors import FidecError, RunError
from fidec.store import files
from fidec.store.rundir import AUDIT, COMPARISON, RunDirectory, runs_below
from fidec.train.config import RunConfig
from fidec.train.stored import read_config

Rows = list[dict[str, Any]]

SUCCESS, NORMALISED, RETURN, OTHER = "success in percent", "normalised score", "return", "score"  # the units
# Fields that change neither what is learned nor how it is evaluated.
_FREE = ("seed", "out", "data_dir", "check_data", "memory_limit", "log_interval", "checkpoint_interval")
_FREE += ("keep_checkpoints", "track", "eval_interval", "eval_envs", "eval_timeout", "devices")
# Fields that say what is trained for. The hashes say which data.
_PLACE = ("task", "env", "data", "buffer", "action_low", "action_high")
# How a policy is evaluated.
_PROTOCOL = ("success_timing", "scale_actions")


# --- results of other commands, as far as they are read -------------------------------------------------------------


class _Summary(TypedDict, total=False):
    n: int
    n_failed: int
    success: float | None
    success_low: float | None
    success_high: float | None
    score: float | None


_Summary.__annotations__ |= dict.fromkeys(("return", "return_low", "return_high"), float | None)


class _Gain(TypedDict):
    of: str
    mean: float | None
    low: float | None
    high: float | None
    n: int


class _Comparison(TypedDict, total=False):
    environment: str
    step: int
    base: _Summary
    refined: _Summary
    gain: _Gain | None


class _Kl(TypedDict):
    mean: float | None
    low: float | None
    high: float | None


class _Audit(TypedDict):
    step: int
    sentences: list[str]
    kl: _Kl


# --- runs ---------------------------------------------------------------------------------------------------------


class RunResults:
    """A run as it is now. Its logs are read when they are first used; damaged ones are a RunError."""

    def __init__(self, path: Path):
        self.directory, self._files = path, RunDirectory.open(path, read_only=True)
        if not self._files.config.exists():
            raise RunError("was stopped before training began")
        self.config, status = read_config(self._files), self._files.read_status() or {}
        self.state: str = status.get("state", "not started")
        self.reason: str | None = status.get("reason")
        self.step: int = status.get("step", 0)
        self.environment = self._files.read_environment() if self._files.environment.exists() else {}
        self.comparison = files.find_json(path / COMPARISON, _Comparison)  # `fidec eval --base`
        self.audit = files.find_json(path / AUDIT / "audit.json", _Audit)
        self.videos = sorted(path.glob("*.mp4"))

    @cached_property
    def train(self) -> Rows:
        return self._files.read_jsonl("train")

    @cached_property
    def evaluations(self) -> Rows:
        return self._files.read_jsonl("eval")

    @cached_property
    def episodes(self) -> Rows:
        return self._files.read_jsonl("episodes")

    @cached_property
    def times(self) -> Rows:
        return self._files.read_jsonl("time")

    @cached_property
    def flow_times(self) -> Rows:
        """Of the behaviour flow, if it was trained first."""
        flow = self._files.flow
        return RunDirectory(flow, None).read_jsonl("time") if (flow / "time.jsonl").exists() else []

    def read_logs(self) -> None:
        """Read all logs now, so that a damaged one is an error here."""
        _ = self.train, self.evaluations, self.episodes, self.times, self.flow_times

    @property
    def name(self) -> str:
        return f"{self.method} on {self.place}, seed {self.config.seed}"

    @property
    def method(self) -> str:
        """NAME, or NAME:PRESET."""
        preset = self.config.preset
        return self.config.algo + ("" if preset == "recommended" else f":{preset}")

    @property
    def place(self) -> str:
        return self.config.env_name or self.config.data or "arrays"

    @property
    def measure(self) -> tuple[str, str]:
        """The key of an evaluation that its curve shows, and its name."""
        if any(row.get("evaluation/success") is not None for row in self.evaluations):
            return "success", "success rate"
        return "return", "return"

    @property
    def budget(self) -> tuple[float, str] | None:
        """The budget of the trust region and its unit."""
        options = self.config.options
        return options.trust_region() if hasattr(options, "trust_region") else None

    def column(self, name: str) -> list[float]:
        """A metric of the training log; NaN where it was not logged."""
        return column(self.train, name)

    # What follows is of runs with evaluations (`check_comparable`).

    @property
    def data(self) -> Mapping[str, Any]:
        """Name, source, transitions and SHA-256 of its data."""
        return {name: self.environment["dataset"][name] for name in ("name", "source", "transitions", "sha256")}

    @property
    def buffer(self) -> str | None:
        """The SHA-256 of its second data set."""
        return (self.environment.get("buffer") or {}).get("sha256")

    @cached_property
    def scored(self) -> Rows:
        """The evaluations with a score."""
        return [row for row in self.evaluations if row.get("evaluation/score") is not None]

    @cached_property
    def curve(self) -> Mapping[int, float]:
        """The score of every evaluation, by its step."""
        return {row["step"]: float(row["evaluation/score"]) for row in self.scored}

    @property
    def score(self) -> float:
        """Of the last evaluation."""
        return self.curve[self.scored[-1]["step"]]

    @cached_property
    def last_episodes(self) -> Rows:
        """Of the last evaluation."""
        return [row for row in self.episodes if row["step"] == self.config.total]

    @cached_property
    def unit(self) -> str:
        """Of the score."""
        return unit_of(self.config.task, self.scored)

    @cached_property
    def of(self) -> str:
        """What the score is the mean of over episodes: SUCCESS, RETURN or OTHER."""
        return mean_of(self.scored)

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
    directories: dict[Path, Path] = {}
    none = {}
    for path in map(Path, paths):
        below = runs_below(path, levels=10)
        for each in below:
            directories.setdefault(each.resolve(), each)
        if not below:
            none[path] = "holds no run" if path.is_dir() else "there is no such directory"
    return list(directories.values()), none


def column(rows: Rows, name: str) -> list[float]:
    """A number of each row; NaN where it is missing."""
    values = [row.get(name) for row in rows]
    return [float("nan") if value is None else value for value in values]


def read_all(paths: Iterable[str | Path], logs: bool = False) -> tuple[list[RunResults], dict[Path, str]]:
    """The runs among the paths and below them, and the paths that cannot be read, with the reason.

    With `logs` all logs are read too.
    """
    directories, left_out = find_runs(paths)
    runs = []
    for path in directories:
        try:
            run = RunResults(path)
            if logs:
                run.read_logs()
        except FidecError as error:
            left_out[path] = reason_of(error, path)
        else:
            runs.append(run)
    return runs, left_out


def reason_of(error: FidecError, path: Path) -> str:
    """The message without the path, which is named beside it."""
    return str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")


# --- runs that can be compared --------------------------------------------------------------------------------------


def comparable(runs: Iterable[RunResults]) -> tuple[list[RunResults], dict[Path, str]]:
    """The finished and evaluated runs, one for each configuration and seed, and the others with the reason."""
    first: dict[Any, RunResults] = {}
    left_out = {}
    for run in runs:
        try:
            check_comparable(run)
        except FidecError as error:
            left_out[run.directory] = reason_of(error, run.directory)
            continue
        other = first.setdefault((*_key(run), run.config.seed), run)
        if other is not run:
            left_out[run.directory] = f"has the configuration and the seed of {other.directory}"
    return list(first.values()), left_out


def check_comparable(run: RunResults) -> None:
    """Raise an error that says why a run cannot be compared."""
    if run.state != "done":
        raise RunError(f"is not finished: {run.state}, step {run.step}")
    if not run.scored:
        raise RunError("has no evaluation with a score")
    try:
        if run.config.total not in run.curve:
            raise RunError(f"has no score at its last step, {run.config.total}")
        _ = run.data, run.buffer, run.last_episodes, run.unit, run.of
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


def by_place(runs: Iterable[RunResults]) -> list[list[RunResults]]:
    """The runs that were trained for the same environment on the same data and evaluated in the same way."""
    return _grouped(runs, _place)


def by_method(runs: Iterable[RunResults]) -> list[list[RunResults]]:
    """The runs that differ in their seeds only."""
    return _grouped(runs, _key)


def _grouped(runs: Iterable[RunResults], key: Any) -> list[list[RunResults]]:
    groups: dict[Any, list[RunResults]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _place(run: RunResults) -> tuple[Any, ...]:
    protocol = tuple(run.protocol().items())
    return (run.config.env_name, run.data["sha256"], run.buffer, protocol, run.unit)


def _key(run: RunResults) -> tuple[Any, ...]:
    return (*_place(run), run.method, repr(sorted(run.options().items())))


def differing(groups: Sequence[RunResults]) -> list[str]:
    """The options in which runs differ, of those that several of them have."""
    values: dict[str, list[Any]] = {}
    for run in groups:
        for name, value in run.options().items():
            values.setdefault(name, []).append(value)
    return [name for name, each in values.items() if any(value != each[0] for value in each)]
