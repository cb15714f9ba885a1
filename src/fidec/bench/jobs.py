"""Jobs: the runs of a suite or a sweep, as the scheduler, the display and the estimate of time know them.

A job can be started again at any time: a finished run is skipped, an interrupted one is resumed. All that is known
of a job is in its run directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fidec import algos, tasks
from fidec.bench.suites import RUN_OPTIONS, Plan, Scale, Suite, SuiteTask, Variant, published_plan
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, naming
from fidec.launch import env_processes, usable_cores
from fidec.register import unknown
from fidec.store.lock import is_held, is_locked
from fidec.store.logs import parse_line
from fidec.store.rundir import LOCK, ROWS, RunDirectory, check_no_results
from fidec.store.schema import check
from fidec.train.config import RunConfig
from fidec.train.pretrained_flow import check_takes_flow
from fidec.train.protocol import resolve_options
from fidec.train.provenance import arguments_of
from fidec.train.resolve import resolve, seed_name
from fidec.train.stored import read_config
from fidec.types import Spec

RESUME = ("train", "--resume")  # and the run directories
_PAPER = {method for row in tasks.TASKS for method in row.paper}  # the methods of the paper's tables


class Progress(NamedTuple):
    """How far a job is, read from its logs."""

    step: int
    rate: float | None  # steps a second
    left: float | None  # seconds to the end of the phase; the speed of the online phase is not known before it begins
    score: float | None  # of the last evaluation
    flow: int = 0  # updates of the behaviour flow, while it is trained before the rest


@dataclass(frozen=True, eq=False)
class Job:
    """One run: a method on a task or on a user's own data, with one seed."""

    config: RunConfig  # resolved, with its seed and its directory
    variant: Variant
    plan: Plan

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def directory(self) -> Path:
        """Runs that differ only in their seeds are side by side, named by `seed_name`."""
        assert self.config.out is not None
        return self.config.out

    @property
    def task(self) -> str:
        """The name of its task or environment."""
        return str(self.config.env_name or self.config.data)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.variant.label}, seed {self.seed}"

    def data(self) -> str:
        """The source of its data."""
        if self.config.data is None:
            raise ConfigError("there is no data: name a --task, or a data source with --data")
        return self.config.data

    def arguments(self) -> list[str]:
        """The arguments of `fidec train` that start it, without seed and directory."""
        words, envs = arguments_of(replace(self.config, seed=0)), self.config.eval_envs
        given = envs != env_processes(len(usable_cores()))  # else what `resolve` has filled in
        return [*words, "--eval-envs", str(envs)] if given else words

    def check_environment(self) -> None:
        """Raise an error if its environment does not exist. None is made."""
        if self.config.env_name is not None:
            factory_of(self.config.task, self.config.env, **self.config.env_options)

    def check_config(self, found: RunConfig, any_data: bool) -> None:
        """Raise an error if the directory holds another run than asked for. With `any_data` its data may differ."""
        config = self.config
        # What is not given comes from the data, or from the run that this one starts from.
        later = ["normalize_observations"] if config.normalize_observations is None else []
        # A run that holds out episodes may end early. Its configuration then has the steps that it made.
        shorter = ["steps"] if config.held_out and found.steps < config.steps else []
        wanted, present = _compared(config), _compared(found)
        self._check_same(wanted.keys() - {*later, *shorter, *(["data"] if any_data else [])}, wanted, present)

    def _check_same(
        self,
        names: Collection[str],
        wanted: Mapping[str, Any],
        present: Mapping[str, Any],
        asking: str = "this sweep",
        advice: str = "",
    ) -> None:
        other = [name for name in wanted if name in names and present.get(name) != wanted[name]]
        if other:
            what = "; ".join(f"{name} {present.get(name)}, not {wanted[name]}" for name in other)
            raise ConfigError(
                f"{self.directory} holds a run with another configuration than {asking} asks for ({what}): "
                f"remove it, or choose another --out{advice * ('data' in other)}"
            )

    @property
    def log(self) -> Path:
        """The output of its process, or which log has it. It is beside the run directory and locked meanwhile."""
        return self.directory.with_suffix(".log")

    def state(self, any_data: bool = False) -> str:
        """`new`, or the state in the run directory. A killed run still says `running`.

        ConfigError if the directory holds another run than asked for, RunError if the run is damaged.
        """
        if not (self.directory / "config.json").exists():
            check_no_results(self.directory)
            return "new"
        directory = RunDirectory.open(self.directory, read_only=True)
        self.check_config(read_config(directory), any_data)
        return (directory.read_status() or {"state": "failed"})["state"]

    def reason(self) -> str | None:
        """Why the run failed, as its run directory says."""
        status = RunDirectory.open(self.directory, read_only=True).read_status()
        return (status or {}).get("reason")

    def is_busy(self) -> bool:
        """Whether a process works on it: one that a scheduler started, or any other."""
        return is_locked(self.log) or self.is_busy_elsewhere()

    def is_busy_elsewhere(self) -> bool:
        """Whether a process holds its run directory."""
        return is_held(self.directory / LOCK)

    def progress(self) -> Progress:
        """Read from the ends of its logs, also while it runs."""
        train, score = last_row(self.directory / "train.jsonl"), last_row(self.directory / "eval.jsonl")
        times = [last_row(self.directory / "time.jsonl", key) for key in ("steps_per_second", "evaluation")]
        step, plan = train.get("step", 0), self.plan
        begin, end = (0, plan.steps) if step < plan.steps or not plan.online_steps else (plan.steps, plan.total)
        rate = times[0].get("time/steps_per_second") if times[0].get("step", 0) > begin else None
        evaluations = sum(score.get("step", 0) < due <= end for due in plan.evaluations)
        left = (end - step) / rate + evaluations * times[1].get("time/evaluation", 0.0) if rate else None
        flow = 0 if step else last_row(self.directory / "flow" / "train.jsonl").get("step", 0)
        return Progress(step, rate, left, score.get("evaluation/score"), flow)


@dataclass(frozen=True, eq=False)
class SuiteJob(Job):
    """A run of a suite."""

    suite: Suite
    suite_task: SuiteTask

    @property
    def task(self) -> str:
        return self.suite_task.name

    @property
    def name(self) -> str:
        return f"{self.task} {super().name}"

    def data(self) -> str:
        if self.config.data is None:
            raise ConfigError(f"the task {self.task} has no data of its own: give it a data source")
        return self.config.data

    def check_environment(self) -> None:
        task = self.suite_task
        if task.id is None or tasks.find(task.id, self.suite.setting) is None:  # else it exists
            with naming(f"{self.suite}: {task.name}"):
                factory_of(task.id, task.env)

    def check_config(self, found: RunConfig, any_data: bool) -> None:
        """Only what the suite says is compared."""
        names = {"task", "algo", "preset", "seed", "steps", "online_steps", "batch_size", *self.variant.run}
        names |= {"eval_interval", "eval_episodes"} | ({"env"} if self.suite_task.env else set())
        names |= set() if any_data else {"data"}
        names |= algos.get(self.variant.method).runs.get(self.variant.preset, {}).keys()
        wanted, present = _compared(self.config), _compared(found)
        names |= {name for name in wanted if name.startswith(("algo.", "online."))}
        advice = ", or name its data in a suite's file"
        self._check_same(names, wanted, present, str(self.suite), advice)


def _compared(config: RunConfig) -> dict[str, Any]:
    """The values that must be equal for a run to be the one that is asked for."""
    values = {name: getattr(config, name) for name in ("steps", "online_steps", "env", "init_from")}
    values |= config.fixed()
    if config.online_steps:  # without the fields that the data decides or that do not change the run
        left_out = ("reward_shift", "reward_done", "max_failures")
        values |= {f"online.{name}": v for name, v in asdict(config.online).items() if name not in left_out}
    return values


def command(jobs: Sequence[Job]) -> list[str]:
    """The arguments of `fidec` that start or resume these runs in one process. They differ only in their seeds."""
    if jobs[0].state() != "new":
        return [*RESUME, *(str(job.directory) for job in jobs)]
    seeds = [str(job.seed) for job in jobs]
    return ["train", *jobs[0].arguments(), "--seeds", *seeds, "--out", str(jobs[0].directory.parent)]


def check_environments(jobs: Sequence[Job]) -> None:
    """Raise an error if an environment does not exist, before any process starts. None is made."""
    for job in {job.task: job for job in jobs}.values():
        job.check_environment()


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
                return parse_line(line.encode(), ROWS[path.stem])
    return {}


# --- the jobs of a suite ------------------------------------------------------------------------------------------


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
) -> list[SuiteJob]:
    """The suite's jobs by task. Without `words`, methods that the paper has on other tasks only are left out."""
    variants, made, scale = suite.choose_variants(words), [], suite.scale or scale
    lists = [seeds or suite.seeds, *(variant.seeds for variant in variants if variant.seeds)]
    _check_numbers(suite, lists, steps, online_steps)
    with naming(str(suite)):
        _check_options(suite, variants)
    for task in suite.choose_tasks(patterns):
        row = tasks.find(task.name, suite.setting) if task.id else None
        for variant in (each for each in variants if each.runs_on(task.name)):
            task_options, length = task.options.get(variant.method, {}), steps or variant.run.get("steps", 0)
            changes = {**task_options, **variant.options}
            if scale is not None:
                with naming(f"{suite}: {task.name}"):
                    known = _known(variant, scale.options, scale.methods.get(variant.method, {}), task_options)
                changes = {**scale.changes(task.name, variant.method, known), **changes}
                plan = scale.plan(length, online_steps, setting=suite.setting, method=variant.method)
            elif row is not None:
                plan = published_plan(row, variant.method, length, online_steps)
            else:
                raise ConfigError(f"{suite}: there is no published protocol for {task.name}: give the suite a scale")
            with naming(f"{suite}: {task.name}"):
                options = resolve_options(variant.method, variant.preset, task.id, setting=suite.setting, **changes)
                config = _config(task, variant, plan, options, data_dir)
                if plan.online_steps or variant.run or variant.preset in algos.get(variant.method).runs:
                    _check_run(config)
            place = out / task.name / variant.name
            configs = (
                replace(config, seed=s, out=place / seed_name(s)) for s in seeds or variant.seeds or suite.seeds
            )
            new = [SuiteJob(each, variant, plan, suite, task) for each in configs]
            elsewhere = row is not None and variant.method in _PAPER - row.paper.keys()
            made += new if words or not elsewhere else []
    if not made:
        raise ConfigError(f"{suite}: none of these methods runs on these tasks. Name others with --algos or --tasks")
    return made


def _config(task: SuiteTask, variant: Variant, plan: Plan, options: Any, data_dir: Path | None) -> RunConfig:
    """The resolved configuration of a suite's runs, but for seed and directory."""
    place = {"task": task.id, "env": task.env, "data": task.data, "data_dir": data_dir}
    fields = {**variant.run, **{name: value for name, value in asdict(plan).items() if name != "averaged"}}
    return resolve(RunConfig(algo=variant.method, preset=variant.preset, options=options, **place, **fields))


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


def _check_run(config: RunConfig) -> None:
    """Raise an error if the method cannot be trained like that."""
    _ = config.window
    if config.has_flow:
        check_takes_flow(algos.get(config.algo).build(config.options, Spec((1,), 1)), config.algo)


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
