"""The runs of a suite. Each is one `fidec train` process.

A job can be started again at any time: a finished run is skipped, an interrupted one is resumed. All that is known
of a job is in its run directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fidec import algos, tasks
from fidec.bench.suite import Plan, Scale, Suite, SuiteTask, Variant, published_plan
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, naming
from fidec.register import unknown
from fidec.store.jsonl import parse_line
from fidec.store.lock import is_locked
from fidec.store.rundir import LOCK, RunDirectory, check_no_results
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

    @property
    def task(self) -> str:
        return self.suite_task.name

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.task} {self.variant.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The output of the process. It lies beside the run directory and is locked while the process lives."""
        return self.directory.with_suffix(".log")

    def state(self, any_data: bool = False) -> str:
        """`new`, or the state in the run directory. A killed run still says `running`."""
        if not (self.directory / "config.json").exists():
            check_no_results(self.directory)
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

    def config(self) -> RunConfig:
        """The configuration of its task, environment, data and phases."""
        task, plan, algo = self.suite_task, self.plan, self.variant.method
        steps = RunConfig(algo=algo, steps=plan.steps, online_steps=plan.online_steps)
        return resolve(replace(steps, task=task.id, env=task.env, data=task.data))

    def data(self) -> str:
        """The source of its data."""
        source = self.config().data
        if source is None:
            raise ConfigError(f"the task {self.suite_task.name} has no data of its own: give it a data source")
        return source

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
            wanted |= _online_fields(self.config().online)
            present |= _online_fields(stored.online)
        other = {name: value for name, value in wanted.items() if present.get(name) != value}
        if other:
            what = "; ".join(f"{name} {present.get(name)}, not {value}" for name, value in other.items())
            advice = ", or name its data in a suite's file" * ("data" in other)
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
        for name, value in (("--task", task.id), ("--env", task.env), ("--data", task.data)):
            words += [] if value is None else [name, value]
        words += ["--algo", variant.method, "--preset", variant.preset]
        words += ["--seed", str(self.seed), "--out", str(self.directory)]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        left_out = ("averaged",) if plan.online_steps else ("averaged", "online_steps")
        for name, value in asdict(plan).items():
            words += [] if name in left_out else [f"--{name.replace('_', '-')}", str(value)]
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
) -> list[Job]:
    """The suite's jobs by task. Without `words`, methods that the paper does not have on a task are left out."""
    seeds, scale = tuple(seeds) or suite.seeds, suite.scale or scale
    _check_numbers(suite, seeds, steps, online_steps)
    variants, made = suite.choose_variants(words), []
    with naming(str(suite)):
        _check_options(suite, variants)
    for task in suite.choose_tasks(patterns):
        row = tasks.find(task.name, suite.setting) if task.id else None
        for variant in variants:
            own = task.options.get(variant.method, {})
            changes = {**own, **variant.options}
            if scale is not None:
                with naming(f"{suite}: {task.name}"):
                    known = _known(variant, scale.options, scale.methods.get(variant.method, {}), own)
                changes = {**scale.changes(task.name, variant.method, known), **changes}
                plan = scale.plan(steps, online_steps, setting=suite.setting, method=variant.method)
            elif row is not None:
                plan = published_plan(row, variant.method, steps, online_steps)
            else:
                raise ConfigError(f"{suite}: there is no published protocol for {task.name}: give the suite a scale")
            place = out / task.name / variant.name
            new = [Job(suite, task, variant, s, plan, changes, place / f"seed{s:03d}", data_dir) for s in seeds]
            with naming(f"{suite}: {task.name}"):
                new[0].options()
                if plan.online_steps:
                    new[0].config()  # that needs an environment, and a method that is trained online
            made += new if words or row is None or variant.method in row.paper else []
    if not made:
        raise ConfigError(f"{suite}: the paper has none of its methods on these tasks. Name methods with --algos")
    return made


def check_environments(jobs: Sequence[Job]) -> None:
    """Raise an error if an environment does not exist, before any process starts. None is made."""
    for job in {job.task: job for job in jobs}.values():
        task = job.suite_task
        if task.id is None or tasks.find(task.id, job.suite.setting) is None:  # else it exists
            with naming(f"{job.suite}: {task.name}"):
                factory_of(task.id, task.env)


def _online_fields(config: Any) -> dict[str, Any]:
    """Without the fields that the data decides or that do not change the run."""
    left_out = ("reward_shift", "max_failures")
    return {f"online.{name}": value for name, value in asdict(config).items() if name not in left_out}


def _check_options(suite: Suite, variants: Sequence[Variant]) -> None:
    """Raise an error at options that would be ignored: of an unknown method, or that no method of the suite has."""
    scale = suite.scale or Scale(0)
    for by_method in (scale.methods, *(task.options for task in suite.tasks)):
        for method in by_method:
            algos.get(method)
    shared = {**scale.options, **scale.manipulation}
    known = {name for variant in (*suite.variants, *variants) for name in _known(variant, shared)}
    for name in shared:
        if name not in known:
            raise unknown("option of the suite's methods", name, known)


def _known(variant: Variant, *options: Mapping[str, Any]) -> set[str]:
    """The options that a variant's method has. They may depend on the values of others."""
    method, chosen = algos.get(variant.method), {}
    for each in (method.presets.get(variant.preset, {}), *options, variant.options):
        chosen |= each
    return set(method.config_for(chosen).__dataclass_fields__)


def _check_numbers(suite: Suite, seeds: Sequence[int], steps: int, online_steps: int) -> None:
    if not seeds:
        raise ConfigError(f"{suite}: seeds is empty, expected at least one seed")
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
                return parse_line(line.encode())
    return {}
