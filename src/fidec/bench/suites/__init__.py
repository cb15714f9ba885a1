"""Suites: tasks, methods, seeds and one size for all runs.

Without a size of its own a suite takes steps, evaluations and options of the published protocol (`fidec.tasks`).

Built-in suites are the TOML files of this directory. The name of a file is the name of the suite; docs/suites.md
explains the keys. Another package adds a suite with an entry point in the group `fidec.suites` that names a `Suite`,
for which it can call `read_suite`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fidec import tasks
from fidec.data.source import source_from
from fidec.errors import ConfigError
from fidec.register import Register
from fidec.store.schema import TableReader, read_table
from fidec.tasks import Task
from fidec.tasks.paper import ABLATION, ONLINE_ONLY

DIRECTORY = Path(__file__).parent
KEYS = ("summary", "setting", "tasks", "methods", "scale", "seeds")
Options = Mapping[str, Any]
# What a variant may change of a run, beside the options of its method.
RUN_OPTIONS = (
    "steps",
    "chunk",
    "n_step",
    "replan",
    "flow_updates",
    "candidates",
    "normalize_observations",
    "value_start",
    "reward_scale",
    "reward_rule",
    "noise",
)


@dataclass(frozen=True)
class Variant:
    """A method with a preset and options: one column of the table."""

    method: str
    preset: str = "recommended"
    options: Options = field(default_factory=dict)  # added to the published ones and the scale's
    run: Options = field(default_factory=dict)  # of `fidec train` (RUN_OPTIONS)
    suffix: str = ""  # distinguishes variants with the same preset
    paper: str = ""  # column of the paper's ablation; by default the method's column of the main table
    tasks: tuple[str, ...] = ()  # patterns of the tasks that it runs on; by default all of the suite
    seeds: tuple[int, ...] = ()  # by default those of the suite

    @property
    def name(self) -> str:
        """The name of its directory: fidec-paper, fidec-paper-t0.80."""
        return "-".join(part for part in (self.method, self.preset, self.suffix) if part)

    @property
    def label(self) -> str:
        """The head of its column: fql, fidec:paper, fidec:paper t0.80."""
        preset = "" if self.preset == "recommended" else f":{self.preset}"
        return f"{self.method}{preset} {self.suffix}".rstrip()

    def runs_on(self, task: str) -> bool:
        return not self.tasks or any(fnmatchcase(task, pattern) for pattern in self.tasks)

    def reported(self, task: str, setting: str = "offline") -> Any:
        """The paper's result on a task, in percent: a `Reported`, two of them in the online setting, or None."""
        if self.run.keys() & {"chunk", "n_step", "replan"}:
            return None  # the paper's runs have single steps
        if self.paper:
            return ABLATION.get(task, {}).get(self.paper)
        row = tasks.find(task, setting)
        return row.paper.get(self.method) if row else None


@dataclass(frozen=True)
class SuiteTask:
    """A task of the benchmark by its id, or a user's own data and environment under a name."""

    name: str
    env: str | None = None  # Gymnasium id of a user's own environment
    data: str | None = None  # data source, if it is not the task's own
    options: Mapping[str, Options] = field(default_factory=dict)  # by method

    @property
    def id(self) -> str | None:
        """The benchmark's id; None for a user's own data and environment."""
        users = self.env is not None or (self.data is not None and tasks.family_of(self.name) is None)
        return None if users else self.name


@dataclass(frozen=True)
class Plan:
    """Length and evaluations of one run."""

    steps: int  # offline updates
    eval_interval: int  # 0: there are no evaluations
    eval_episodes: int
    averaged: tuple[int, ...]  # the score is the mean of the evaluations at these steps
    batch_size: int = 256
    log_interval: int = 1_000
    checkpoint_interval: int = 10_000
    online_steps: int = 0  # environment steps after the offline updates

    @property
    def total(self) -> int:
        return self.steps + self.online_steps

    @property
    def before(self) -> tuple[int, ...]:
        """The step of the evaluation before the online phase, if there are two phases."""
        return (self.steps,) if self.online_steps and self.steps else ()

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The steps that are evaluated: every interval, the end of the offline phase, and the end."""
        if not self.eval_interval:
            return ()
        return tuple(sorted({*range(self.eval_interval, self.total, self.eval_interval), *self.before, self.total}))


def make_plan(steps: int, online_steps: int, interval: int, episodes: int, averaged: int, **others: int) -> Plan:
    """A plan with at least one evaluation, whose score is the mean of the last `averaged` evaluations."""
    total = steps + online_steps
    interval = min(interval, total)
    last = (*range(interval, total, interval), total)[-averaged:]
    others["log_interval"] = min(others.get("log_interval", 1_000), total)
    return Plan(steps, interval, episodes, last, online_steps=online_steps, **others)


def published_plan(task: Task, method: str, steps: int = 0, online_steps: int = 0) -> Plan:
    """The published protocol; `steps` and `online_steps` change the length of the phases that it has."""
    protocol = task.protocol(method)
    return make_plan(
        protocol.steps and (steps or protocol.steps),
        protocol.online_steps and (online_steps or protocol.online_steps),
        protocol.eval_interval,
        protocol.eval_episodes,
        len(protocol.averaged),
    )


@dataclass(frozen=True)
class Scale:
    """One size for every run of a suite, instead of the published protocol."""

    steps: int
    name: str = ""
    summary: str = ""
    rows: int = 100_000  # of data that fidec makes
    visual_rows: int = 0  # the same for pixels; 0 means `rows`
    online_steps: int = 0  # in online suites
    eval_interval: int = 0  # 0 evaluates at the end only
    eval_episodes: int = 50
    averaged: int = 1  # number of last evaluations whose mean is the score; in online suites always 1, as published
    batch_size: int = 256
    log_interval: int = 500
    checkpoint_interval: int = 10_000
    options: Options = field(default_factory=dict)  # of all methods that have them
    manipulation: Options = field(default_factory=dict)  # the same on OGBench's manipulation tasks only
    methods: Mapping[str, Options] = field(default_factory=dict)  # of single methods

    def changes(self, task: str, method: str, known: Collection[str]) -> dict[str, Any]:
        """The options that it changes on a task, of a method that has the options `known`."""
        shared = {**self.options, **(self.manipulation if is_manipulation(task) else {})}
        return {name: value for name, value in shared.items() if name in known} | dict(self.methods.get(method, {}))

    def plan(self, steps: int = 0, online_steps: int = 0, *, setting: str = "offline", method: str = "") -> Plan:
        """The plan of a method's runs; `steps` and `online_steps` change the length of the phases."""
        online = setting == "online"
        steps = 0 if online and method in ONLINE_ONLY else steps or self.steps
        online_steps = (online_steps or self.online_steps) if online else 0
        return make_plan(
            steps,
            online_steps,
            self.eval_interval or steps + online_steps,
            self.eval_episodes,
            1 if online else self.averaged,
            log_interval=self.log_interval,
            batch_size=self.batch_size,
            checkpoint_interval=self.checkpoint_interval,
        )


def is_manipulation(task: str) -> bool:
    return task.removeprefix("visual-").startswith(("cube-", "scene-", "puzzle-"))


# The one reduction of the benchmark, for machines without an accelerator. Small networks take a larger learning rate.
# The discount of the manipulation tasks is lower than the published 0.99: the critic has to fall to about
# -1 / (1 - discount) before it ranks actions, and 10,000 steps are too few for that.
SMALL = Scale(
    name="small",
    summary="3 layers of 128, 10,000 steps of 128 transitions, 12 episodes an evaluation",
    rows=100_000,
    visual_rows=20_000,
    steps=10_000,
    eval_interval=2_500,
    eval_episodes=12,
    averaged=3,
    online_steps=10_000,
    batch_size=128,
    options={"hidden": (128, 128, 128), "learning_rate": 1e-3},
    manipulation={"discount": 0.97},
    methods={
        "idql": {"denoiser_width": 128},
        "srpo": {"denoiser_width": 128, "policy_hidden": (128, 128, 128)},
        # With the defaults its average would stay near the untrained network, and its schedule would not end.
        "cac": {"ema_start": 0, "ema_interval": 1, "schedule_steps": 10_000, "policy_learning_rate": 1e-3},
        "calql": {"policy_learning_rate": 3e-4},  # a third of the critic's rate, as published
    },
)
SCALES = {scale.name: scale for scale in (SMALL,)}


@dataclass(frozen=True)
class Suite:
    """Methods that are compared on the same tasks and data, at the same size."""

    name: str
    summary: str
    tasks: tuple[SuiteTask, ...]
    variants: tuple[Variant, ...]
    setting: str = "offline"  # offline, or online for offline-to-online
    scale: Scale | None = None  # None: the published protocol, or the scale of the command line
    seeds: tuple[int, ...] = (0,)
    where: str = ""  # where it is defined, for error messages

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.tasks)

    def __str__(self) -> str:
        return self.where or f"suite {self.name!r}"

    def choose_tasks(self, patterns: Sequence[str]) -> tuple[SuiteTask, ...]:
        """The tasks that match a pattern, in the suite's order; all tasks without a pattern."""
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in self.ids):
                raise ConfigError(
                    f"{self} has no task {pattern!r}. A pattern has to match a whole id, such as {self.ids[0]}. "
                    f"For ids that contain {pattern!r} write '*{pattern}*'"
                )
        return tuple(t for t in self.tasks if not patterns or any(fnmatchcase(t.name, p) for p in patterns))

    def choose_variants(self, words: Sequence[str]) -> tuple[Variant, ...]:
        """The variants that NAME or NAME:PRESET names; all of the suite without a word.

        NAME means the preset recommended, or all of the suite's variants of the method if it has none with this
        preset. A method or preset that the suite does not have is added.
        """
        return tuple(variant for word in words for variant in self._named(word)) if words else self.variants

    def _named(self, word: str) -> tuple[Variant, ...]:
        method, _, preset = word.partition(":")
        of_method = tuple(variant for variant in self.variants if variant.method == method)
        exact = tuple(variant for variant in of_method if variant.preset == (preset or "recommended"))
        return exact or (() if preset else of_method) or (Variant(method, preset or "recommended"),)


# --- reading suites -----------------------------------------------------------------------------------------------


class SuiteRegister(Register[Suite]):
    """Built-in suites are the TOML files of a package."""

    def builtin(self) -> list[str]:
        return sorted(path.stem for path in DIRECTORY.glob("*.toml"))

    def get(self, name: str) -> Suite:
        if name not in self.builtin():
            return super().get(name)
        self.check_names()
        return read_suite(DIRECTORY / f"{name}.toml")


SUITES = SuiteRegister("suite", "fidec.bench.suites", "SUITE", Suite, "fidec.suites")


def find_suite(name: str) -> Suite:
    """A suite by its name, or by the path of a TOML file."""
    return read_suite(Path(name)) if name.endswith(".toml") else SUITES.get(name)


def read_suite(path: Path) -> Suite:
    """Read a TOML file. Relative data paths start at the file's directory."""
    return _Reader(path).suite(read_table(path))


class _Reader(TableReader):
    """Turns the tables of one file into a suite."""

    def suite(self, table: dict[str, Any]) -> Suite:
        self.check_keys("the suite", table, KEYS)
        setting = table.get("setting", "offline")
        if setting not in ("offline", "online"):
            raise self.error("setting", setting, '"offline" or "online"')
        chosen = [task for task in self.entries(table, "tasks", SuiteTask) for task in self.expand(task, setting)]
        chosen = [self.with_data(task) for task in chosen]
        variants = [self.split_preset(variant) for variant in self.entries(table, "methods", Variant)]
        for key, names in (("tasks", [t.name for t in chosen]), ("methods", [v.name for v in variants])):
            if twice := [name for name in names if names.count(name) > 1]:
                raise self.error(key, twice[0], "each entry once; `suffix` tells two variants of a method apart")
        scale = self.build(Scale, table["scale"], "scale") if "scale" in table else None
        if scale is not None:
            scale = dataclasses.replace(scale, name=self.path.stem)
        elif unpublished := [task.name for task in chosen if tasks.find(task.name, setting) is None]:
            raise self.error("scale", None, f"a table: there is no published protocol for {unpublished[0]}")
        return Suite(
            self.path.stem,
            self.value(str, table.get("summary", ""), "summary"),
            tuple(chosen),
            tuple(variants),
            setting,
            scale,
            self.value(tuple[int, ...], table.get("seeds", [0]), "seeds"),
            "" if self.path.parent == DIRECTORY else str(self.path),
        )

    def entries(self, table: dict[str, Any], key: str, kind: type) -> list[Any]:
        """A list of names and tables, as objects of `kind`, whose first field is the name."""
        listed = table.get(key)
        if not isinstance(listed, list) or not listed:
            raise self.error(key, listed, "a list with at least one entry")
        first = dataclasses.fields(kind)[0].name
        made = []
        for number, entry in enumerate(listed):
            where = f"{key}[{number}]"
            entry = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(entry, dict) or "name" not in entry:
                raise self.error(where, entry, "a name, or a table with a `name`")
            made.append(self.build(kind, {first: entry["name"], **entry}, where, also=("name",)))
        return made

    def expand(self, task: SuiteTask, setting: str) -> list[SuiteTask]:
        """The benchmark's tasks that a pattern matches; a name without * stays as it is."""
        if "*" not in task.name:
            return [task]
        names = [row.id for row in tasks.TASKS if row.setting == setting and fnmatchcase(row.id, task.name)]
        if not names:
            raise self.error("tasks", task.name, f"a pattern that matches a task of the {setting} benchmark")
        return [dataclasses.replace(task, name=name) for name in names]

    def with_data(self, task: SuiteTask) -> SuiteTask:
        """The same task with a data path that does not depend on the directory."""
        if task.env is not None and task.data is None:
            raise self.error(f"data of task {task.name!r}", None, "a data source: an environment has no data")
        if task.data is None:
            return task
        try:
            return dataclasses.replace(task, data=source_from(self.path.parent, task.data))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: data of task {task.name!r}: {error}") from error

    def split_preset(self, variant: Variant) -> Variant:
        """NAME:PRESET as two fields."""
        method, colon, preset = variant.method.partition(":")
        return dataclasses.replace(variant, method=method, preset=preset) if colon else variant

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """A value that has the type of its field. No number of a suite is negative."""
        if hint is int and type(value) is int and value < 0:
            raise self.error(where, value, "a whole number, at least 0")
        return super().value(hint, value, where)
