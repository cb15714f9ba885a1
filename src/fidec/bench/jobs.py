"""The runs of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidec import algos, tasks
from fidec.bench.job import RunJob
from fidec.bench.suite import RUN_OPTIONS, Plan, Scale, Suite, SuiteTask, Variant, published_plan
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, naming
from fidec.register import unknown
from fidec.store.schema import check
from fidec.train.config import RunConfig
from fidec.train.flow_first import check_takes_flow
from fidec.train.protocol import resolve_options
from fidec.train.resolve import resolve, seed_name
from fidec.types import Spec

_PAPER = {method for row in tasks.TASKS for method in row.paper}  # the methods of the paper's tables


@dataclass(frozen=True, eq=False)
class Job(RunJob):
    """One method of a suite on one task with one seed."""

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

    def config(self) -> RunConfig:
        """The configuration of its task, environment, data and phases."""
        task, plan, algo = self.suite_task, self.plan, self.variant.method
        steps = {**self.variant.run, "steps": plan.steps, "online_steps": plan.online_steps}
        place = {"task": task.id, "env": task.env, "data": task.data}
        return resolve(RunConfig(algo=algo, preset=self.variant.preset, **place, **steps))

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

    def check_config(self, found: RunConfig, any_data: bool) -> None:
        plan, variant = self.plan, self.variant
        wanted = {"task": self.suite_task.id, "algo": variant.method, "preset": variant.preset, "seed": self.seed}
        names = ("steps", "online_steps", "batch_size", "eval_interval", "eval_episodes")
        wanted |= {**variant.run} | {name: getattr(plan, name) for name in names}
        wanted |= {} if self.suite_task.env is None else {"env": self.suite_task.env}
        wanted |= {} if any_data else {"data": self.data()}
        wanted |= _options(self.options())
        present = vars(found) | _options(found.options)
        if plan.online_steps:
            wanted |= online_fields(self.config().online)
            present |= online_fields(found.online)
        other = {name: value for name, value in wanted.items() if present.get(name) != value}
        if other:
            what = "; ".join(f"{name} {present.get(name)}, not {value}" for name, value in other.items())
            advice = ", or name its data in a suite's file" * ("data" in other)
            raise ConfigError(
                f"{self.directory} holds a run with another configuration than {self.suite} asks for ({what}): "
                f"remove it, or choose another --out{advice}"
            )

    def arguments(self) -> list[str]:
        plan, variant, task = self.plan, self.variant, self.suite_task
        words = []
        for name, value in (("--task", task.id), ("--env", task.env), ("--data", task.data)):
            words += [] if value is None else [name, value]
        words += ["--algo", variant.method, "--preset", variant.preset]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        left_out = ("averaged",) if plan.online_steps else ("averaged", "online_steps")
        settings = {name: value for name, value in asdict(plan).items() if name not in left_out}
        for name, value in {**variant.run, **settings}.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for name, value in self.changes.items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--algo.{name.replace('_', '-')}", *map(str, values)]
        return words

    def check_environment(self) -> None:
        task = self.suite_task
        if task.id is None or tasks.find(task.id, self.suite.setting) is None:  # else it exists
            with naming(f"{self.suite}: {task.name}"):
                factory_of(task.id, task.env)


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
    """The suite's jobs by task. Without `words`, methods that the paper has on other tasks only are left out."""
    variants, made, scale = suite.choose_variants(words), [], suite.scale or scale
    lists = [seeds or suite.seeds, *(variant.seeds for variant in variants if variant.seeds)]
    _check_numbers(suite, lists, steps, online_steps)
    with naming(str(suite)):
        _check_options(suite, variants)
    for task in suite.choose_tasks(patterns):
        row = tasks.find(task.name, suite.setting) if task.id else None
        for variant in (each for each in variants if each.runs_on(task.name)):
            own, length = task.options.get(variant.method, {}), steps or variant.run.get("steps", 0)
            changes = {**own, **variant.options}
            if scale is not None:
                with naming(f"{suite}: {task.name}"):
                    known = _known(variant, scale.options, scale.methods.get(variant.method, {}), own)
                changes = {**scale.changes(task.name, variant.method, known), **changes}
                plan = scale.plan(length, online_steps, setting=suite.setting, method=variant.method)
            elif row is not None:
                plan = published_plan(row, variant.method, length, online_steps)
            else:
                raise ConfigError(f"{suite}: there is no published protocol for {task.name}: give the suite a scale")
            place = out / task.name / variant.name
            own_seeds = seeds or variant.seeds or suite.seeds
            new = [Job(suite, task, variant, s, plan, changes, place / seed_name(s), data_dir) for s in own_seeds]
            with naming(f"{suite}: {task.name}"):
                new[0].options()
                if plan.online_steps or variant.run or variant.preset in algos.get(variant.method).runs:
                    _check_run(new[0])
            elsewhere = row is not None and variant.method in _PAPER - row.paper.keys()
            made += new if words or not elsewhere else []
    if not made:
        raise ConfigError(f"{suite}: none of these methods runs on these tasks. Name others with --algos or --tasks")
    return made


def _options(config: Any) -> dict[str, Any]:
    """The method's options under the names that they have on the command line."""
    return {f"algo.{name}": value for name, value in asdict(config).items()}


def online_fields(config: Any) -> dict[str, Any]:
    """Without the fields that the data decides or that do not change the run."""
    left_out = ("reward_shift", "max_failures")
    return {f"online.{name}": value for name, value in asdict(config).items() if name not in left_out}


def _check_options(suite: Suite, variants: Sequence[Variant]) -> None:
    """Raise an error at options that would be ignored: of an unknown method, or that no method of the suite has."""
    scale = suite.scale or Scale(0)
    for variant in suite.variants:
        for pattern in variant.tasks:
            suite.choose_tasks([pattern])  # raises an error if there is none
        for name in sorted(variant.run.keys() - set(RUN_OPTIONS)):
            raise unknown("option in `run` of a suite's method", name, RUN_OPTIONS)
        try:
            check(dict(variant.run), RunConfig)
        except ValueError as error:
            raise ConfigError(f"`run` of {variant.label}: {error}") from error
        RunConfig(algo=variant.method, **variant.run)  # raises an error that says which values are allowed
    for by_method in (scale.methods, *(task.options for task in suite.tasks)):
        for method in by_method:
            algos.get(method)
    shared = {**scale.options, **scale.manipulation}
    known = {name for variant in (*suite.variants, *variants) for name in _known(variant, shared)}
    for name in shared:
        if name not in known:
            raise unknown("option of the suite's methods", name, known)


def _check_run(job: Job) -> None:
    """Raise an error if the method cannot be trained like that."""
    config = job.config()
    _ = config.window
    if config.has_flow:
        check_takes_flow(algos.get(config.algo).build(job.options(), Spec((1,), 1)), config.algo)


def _known(variant: Variant, *options: Mapping[str, Any]) -> set[str]:
    """The options that a variant's method has. They may depend on the values of others."""
    method, chosen = algos.get(variant.method), {}
    for each in (method.presets.get(variant.preset, {}), *options, variant.options):
        chosen |= each
    return set(method.config_for(chosen).__dataclass_fields__)


def _check_numbers(suite: Suite, lists: Iterable[Sequence[int]], steps: int, online_steps: int) -> None:
    """Raise an error at a list of seeds or a number of steps that cannot be run."""
    for seeds in lists:
        if not seeds:
            raise ConfigError(f"{suite}: seeds is empty, expected at least one seed")
        if len(set(seeds)) < len(seeds):
            raise ConfigError(f"{suite}: seeds {' '.join(map(str, seeds))}: each seed can be given once")
        for seed in seeds:
            RunConfig(seed=seed)  # raises an error that says which seeds are allowed
    for name, value in (("--steps", steps), ("--online-steps", online_steps)):
        if value < 0:
            raise ConfigError(f"{name} must be at least 1, or 0 for the protocol's, not {value}")
    if online_steps and suite.setting != "online":
        raise ConfigError(f"{suite} is offline: leave --online-steps out, or choose paper-online")
