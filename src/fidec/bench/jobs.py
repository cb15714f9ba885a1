"""The runs of a suite. Each is one `fidec train` process.

A job can be started again at any time: a finished run is skipped, an interrupted one is resumed. All that is known
of a job is in its run directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from fidec import algos, tasks
from fidec.bench.suite import Plan, Scale, Suite, SuiteTask, Variant, published_plan
from fidec.errors import ConfigError
from fidec.store.lock import is_locked
from fidec.store.rundir import LOCK, RunDirectory
from fidec.train.config import RunConfig, resolve, resolve_options


class Progress(NamedTuple):
    """How far a job is, read from its logs."""

    step: int
    rate: float | None  # steps a second
    left: float | None  # seconds to the end of the phase; the speed of the online phase is not known before it begins
    score: float | None  # of the last evaluation


@dataclass(frozen=True, eq=False)
class Job:
    """One method on one task with one seed."""

    suite: Suite
    suite_task: SuiteTask
    variant: Variant
    seed: int
    plan: Plan
    changes: Mapping[str, Any]  # options that replace the published ones
    directory: Path
    data_dir: Path | None = None  # None: the cache directory
    source: str | None = None  # data source, if it is not the task's own

    @property
    def task(self) -> str:
        return self.suite_task.name

    @property
    def name(self) -> str:
        """For messages; the task is left out if the suite has only one."""
        task = f"{self.task} " if len(self.suite.tasks) > 1 else ""
        return f"{task}{self.variant.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The output of the process. It lies beside the run directory and is locked while the process lives."""
        return self.directory.with_suffix(".log")

    def state(self, any_data: bool = False) -> str:
        """`new`, or the state in the run directory. A killed run still says `running`."""
        if not (self.directory / "config.json").exists():
            return "new"
        directory = RunDirectory.open(self.directory, read_only=True)
        self._check_config(directory.read_config(), any_data)
        return (directory.read_status() or {"state": "failed"})["state"]

    def is_busy(self) -> bool:
        """Whether a process works on it: one that a suite started, or any other."""
        return is_locked(self.log) or self.is_busy_elsewhere()

    def is_busy_elsewhere(self) -> bool:
        """Whether a process holds its run directory."""
        return is_locked(self.directory / LOCK)

    def config(self, **fields: Any) -> RunConfig:
        """The configuration of its task, environment and data."""
        own = {} if self.suite_task.env is None else {"env": self.suite_task.env}
        return resolve(RunConfig(task=self.suite_task.id, data=self.source, **own, **fields))

    def data(self) -> str:
        """The source of its data."""
        return str(self.config().data)

    def options(self) -> Any:
        """The method's whole configuration."""
        method, preset, task = self.variant.method, self.variant.preset, self.suite_task.id
        return resolve_options(method, preset, task, setting=self.suite.setting, **self.changes)

    def _check_config(self, stored_config: dict[str, Any], any_data: bool) -> None:
        """Raise an error if the directory holds another run than the suite asks for."""
        plan, variant = self.plan, self.variant
        wanted = {"task": self.suite_task.id, "algo": variant.method, "preset": variant.preset, "seed": self.seed}
        names = ("steps", "online_steps", "batch_size", "eval_interval", "eval_episodes")
        wanted |= {name: getattr(plan, name) for name in names}
        wanted |= {} if self.suite_task.env is None else {"env": self.suite_task.env}
        wanted |= {} if any_data else {"data": self.data()}
        wanted |= asdict(self.options())
        stored = RunConfig.from_json(stored_config)
        present = vars(stored) | asdict(stored.options)
        if plan.online_steps:
            usual = self.config(algo=variant.method, steps=plan.steps, online_steps=plan.online_steps)
            wanted |= _online_fields(usual.online)
            present |= _online_fields(stored.online)
        other = {name: value for name, value in wanted.items() if present.get(name) != value}
        if other:
            what = "; ".join(f"{name} {present.get(name)}, not {value}" for name, value in other.items())
            advice = ", or give its data with --sources" * ("data" in other)
            raise ConfigError(
                f"{self.directory} holds a run with another configuration than {self.suite} asks for ({what}): "
                f"remove it, or choose another --out{advice}"
            )

    def command(self) -> list[str]:
        """The arguments of `fidec` that start or resume this run."""
        if self.state() != "new":
            return ["train", "--resume", str(self.directory)]
        plan, variant, task = self.plan, self.variant, self.suite_task
        words = ["train"]
        for name, value in (("--task", task.id), ("--env", task.env)):
            words += [] if value is None else [name, value]
        words += ["--algo", variant.method, "--preset", variant.preset]
        words += ["--seed", str(self.seed), "--out", str(self.directory)]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        words += [] if self.source is None else ["--data", self.source]
        left_out = ("averaged",) if plan.online_steps else ("averaged", "online_steps")
        for name, value in asdict(plan).items():
            words += [] if name in left_out else [f"--{name.replace('_', '-')}", str(value)]
        words += ["--overwrite"]  # a start that was killed at once may have left files
        for name, value in self.changes.items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--algo.{name.replace('_', '-')}", *map(str, values)]
        return words

    def progress(self) -> Progress:
        """Read from the ends of its logs, also while it runs."""
        train, score = last_row(self.directory / "train.jsonl"), last_row(self.directory / "eval.jsonl")
        times = [last_row(self.directory / "time.jsonl", key) for key in ("steps_per_second", "evaluation")]
        step, plan = train.get("step", 0), self.plan
        begin, end = (0, plan.steps) if step < plan.steps or not plan.online_steps else (plan.steps, plan.total)
        rate = times[0].get("time/steps_per_second") if times[0].get("step", 0) > begin else None
        evaluations = sum(score.get("step", 0) < due <= end for due in plan.evaluations)
        left = (end - step) / rate + evaluations * times[1].get("time/evaluation", 0.0) if rate else None
        return Progress(step, rate, left, score.get("evaluation/score"))


def jobs(
    suite: Suite,
    *,
    out: Path,
    data_dir: Path | None,
    scale: Scale | None = None,
    words: Sequence[str] = (),
    patterns: Sequence[str] = (),
    seeds: Sequence[int] = (),
    steps: int = 0,
    online_steps: int = 0,
    sources: Mapping[str, str] | None = None,
) -> list[Job]:
    """The suite's jobs by task. Without `words`, methods that the paper does not have on a task are left out."""
    seeds, scale = tuple(seeds) or suite.seeds, suite.scale or scale
    _check_numbers(suite, seeds, steps, online_steps)
    variants, made = suite.choose_variants(words), []
    for task in suite.choose_tasks(patterns):
        row = tasks.find(task.name, suite.setting) if task.id else None
        source = next((s for name, s in (sources or {}).items() if fnmatchcase(task.name, name)), task.data)
        for variant in variants:
            method = _find_method(suite, variant)
            if not words and row is not None and variant.method not in row.paper:
                continue
            changes = scale.changes(task.name, variant.method, method.config) if scale else {}
            changes = {**changes, **task.options.get(variant.method, {}), **variant.options}
            if scale is not None:
                plan = scale.plan(steps, online_steps, setting=suite.setting, method=variant.method)
            elif row is not None:
                plan = published_plan(row, variant.method, steps, online_steps)
            else:
                raise ConfigError(f"{suite}: there is no published protocol for {task.name}: give the suite a scale")
            for seed in seeds:
                place = out / task.name / variant.name / f"seed{seed:03d}"
                if len(suite.tasks) == 1:
                    place = out / f"{variant.name.replace('-recommended', '')}-seed{seed:03d}"
                made.append(Job(suite, task, variant, seed, plan, changes, place, data_dir, source))
            try:
                made[-1].options()
            except ConfigError as error:
                raise ConfigError(f"{suite}: {variant.label}: {error}") from error
    return made


def _online_fields(config: Any) -> dict[str, Any]:
    """Without the fields that the data decides or that do not change the run."""
    left_out = ("reward_shift", "max_failures")
    return {f"online.{name}": value for name, value in asdict(config).items() if name not in left_out}


def _find_method(suite: Suite, variant: Variant) -> algos.Method:
    try:
        method = algos.get(variant.method)
    except ConfigError as error:
        raise ConfigError(f"{suite}: {error}") from error
    if suite.setting == "online" and method.offline_only:
        raise ConfigError(f"{suite}: {variant.method} is not trained online: {method.offline_only}. Leave it out.")
    return method


def _check_numbers(suite: Suite, seeds: Sequence[int], steps: int, online_steps: int) -> None:
    for seed in seeds:
        RunConfig(seed=seed)  # raises an error that says which seeds are allowed
    for name, value in (("--steps", steps), ("--online-steps", online_steps)):
        if value < 0:
            raise ConfigError(f"{name} must be at least 1, or 0 for the protocol's, not {value}")
    if online_steps and suite.setting != "online":
        raise ConfigError(f"{suite} is offline: leave --online-steps out, or choose paper-online")


def read_end(path: Path, size: int = 4096) -> list[str]:
    """The lines in the last bytes of a file; the first may be cut."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def last_row(path: Path, key: str = "") -> dict[str, Any]:
    """The last row of a JSON log that contains `key`; empty if there is none. Incomplete lines are skipped.

    Between two evaluations there may be hundreds of other rows, so a large part of the file is read.
    """
    for line in reversed(read_end(path, 65_536)):
        if key in line and line.startswith("{"):
            with suppress(ValueError):
                return json.loads(line)
    return {}
