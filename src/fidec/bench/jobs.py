"""The runs of a suite, each a `fidec train` process of its own.

A job is idempotent: a finished one is skipped, an interrupted one goes on where it stopped, and one that failed does
not keep the others from running. All that is known of a job is in its run directory.
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
from fidec.bench.scale import Plan, Scale, benchmark_plan
from fidec.bench.suites import Suite, Variant
from fidec.errors import ConfigError
from fidec.store.lock import is_locked
from fidec.store.rundir import LOCK, RunDirectory
from fidec.train.config import RunConfig, resolve, resolve_options


class Standing(NamedTuple):
    """How far a job is, by its own logs."""

    step: int
    rate: float | None  # steps a second
    left: float | None  # seconds, to the end of its phase: an online step takes longer than an update
    score: float | None  # of the last evaluation


@dataclass(frozen=True, eq=False)
class Job:
    """One method on one task with one seed."""

    suite: Suite
    task: str
    variant: Variant
    seed: int
    plan: Plan
    changes: Mapping[str, Any]  # options over the published ones
    directory: Path
    data_dir: Path | None = None  # None: the cache directory
    source: str | None = None  # of other data than the task's own

    @property
    def name(self) -> str:
        """For people; the task goes without saying where there is only one."""
        task = f"{self.task} " if len(self.suite.tasks) > 1 else ""
        return f"{task}{self.variant.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the process printed; beside the run, which must begin empty. Locked while a suite's process lives."""
        return self.directory.with_suffix(".log")

    def state(self, any_data: bool = False) -> str:
        """new, or what the run's own directory says: a killed run still says running."""
        if not (self.directory / "config.json").exists():
            return "new"
        directory = RunDirectory.open(self.directory, read_only=True)
        self._check(directory.read_config(), any_data)
        return (directory.read_status() or {"state": "failed"})["state"]

    def busy(self) -> bool:
        """Whether a process works on it: a suite's, even if that suite was killed, or any other."""
        return is_locked(self.log) or self.busy_elsewhere()

    def busy_elsewhere(self) -> bool:
        """Whether some process holds its run directory."""
        return is_locked(self.directory / LOCK)

    def data(self) -> str:
        """The source of its data."""
        return str(resolve(RunConfig(task=self.task, data=self.source)).data)

    def options(self) -> Any:
        """The method's whole configuration."""
        variant = self.variant
        return resolve_options(variant.method, variant.preset, self.task, setting=self.suite.setting, **self.changes)

    def _check(self, config: dict[str, Any], any_data: bool) -> None:
        """A finished run counts only if it is the run that this suite asks for."""
        plan, variant = self.plan, self.variant
        asked = {"task": self.task, "algo": variant.method, "preset": variant.preset, "seed": self.seed}
        names = ("steps", "online_steps", "batch_size", "eval_interval", "eval_episodes")
        asked |= {name: getattr(plan, name) for name in names}
        asked |= {} if any_data else {"data": self.data()}
        asked |= asdict(self.options())
        stored = RunConfig.from_json(config)
        found = vars(stored) | asdict(stored.options)
        if plan.online_steps:
            usual = RunConfig(task=self.task, algo=variant.method, steps=plan.steps, online_steps=plan.online_steps)
            asked |= _named("online", resolve(usual).online)
            found |= _named("online", stored.online)
        other = {name: value for name, value in asked.items() if found.get(name) != value}
        if other:
            what = "; ".join(f"{name} {found.get(name)}, not {value}" for name, value in other.items())
            advice = ", or give its data with --sources" * ("data" in other)
            raise ConfigError(
                f"{self.directory} holds a run with other settings than suite {self.suite.name!r} asks for "
                f"({what}): remove it, or choose another --out{advice}"
            )

    def command(self) -> list[str]:
        """The `fidec` words that start this run, or that go on with it."""
        if self.state() != "new":
            return ["train", "--resume", str(self.directory)]
        plan, variant = self.plan, self.variant
        words = ["train", "--task", self.task, "--algo", variant.method, "--preset", variant.preset]
        words += ["--seed", str(self.seed), "--out", str(self.directory)]
        words += [] if self.data_dir is None else ["--data-dir", str(self.data_dir)]
        words += [] if self.source is None else ["--data", self.source]
        left_out = ("averaged",) if plan.online_steps else ("averaged", "online_steps")
        for name, value in asdict(plan).items():
            words += [] if name in left_out else [f"--{name.replace('_', '-')}", str(value)]
        words += ["--overwrite"]  # what a start that was killed at once has left
        for name, value in self.changes.items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--algo.{name.replace('_', '-')}", *map(str, values)]
        return words

    def standing(self) -> Standing:
        """Read from the ends of its logs, also while it runs."""
        train, score = last_row(self.directory / "train.jsonl"), last_row(self.directory / "eval.jsonl")
        times = [last_row(self.directory / "time.jsonl", key) for key in ("steps_per_second", "evaluation")]
        step, plan = train.get("step", 0), self.plan
        begin, end = (0, plan.steps) if step < plan.steps or not plan.online_steps else (plan.steps, plan.total)
        rate = times[0].get("time/steps_per_second") if times[0].get("step", 0) > begin else None
        evaluation = times[1].get("time/evaluation", 0.0)
        evaluations = sum(score.get("step", 0) < due <= end for due in plan.evaluations)
        left = (end - step) / rate + evaluations * evaluation if rate else None
        return Standing(step, rate, left, score.get("evaluation/score"))


def jobs(
    suite: Suite,
    *,
    out: Path,
    data_dir: Path | None,
    scale: Scale | None = None,
    words: tuple[str, ...] = (),
    patterns: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    steps: int = 0,
    online_steps: int = 0,
    sources: Mapping[str, str] | None = None,
) -> list[Job]:
    """The suite's jobs, task by task. Without `words`, methods that the paper lacks on a task are left out."""
    _check_numbers(suite, seeds, steps, online_steps)
    scale = suite.scale or scale
    chosen, found = suite.choose_variants(words), []
    _check_online(suite, chosen)
    for task in suite.choose_tasks(patterns):
        for variant in chosen:
            row = tasks.find(task, suite.setting)
            if not words and row is not None and variant.method not in row.paper:
                continue
            config = algos.get(variant.method).config
            changes = {
                **(scale.changes(task, variant.method, config) if scale else {}),
                **suite.changes(task, variant),
            }
            if scale is not None:
                plan = scale.plan(steps, online_steps, setting=suite.setting, method=variant.method)
            elif row is not None:
                plan = benchmark_plan(row, variant.method, steps, online_steps)
            else:
                raise ConfigError(f"suite {suite.name!r}: nobody published a protocol for {task}; give it a scale")
            source = next((s for name, s in (sources or {}).items() if fnmatchcase(task, name)), None)
            for seed in seeds:
                place = out / task / variant.name / f"seed{seed:03d}"
                if len(suite.tasks) == 1:
                    place = out / f"{variant.method}-seed{seed:03d}"
                found.append(Job(suite, task, variant, seed, plan, changes, place, data_dir, source))
            found[-1].options()  # a bad one is found before all work
    return found


def _named(section: str, config: Any) -> dict[str, Any]:
    # What the data decides, and how many failures are forgiven, make no other run.
    left_out = ("reward_shift", "max_failures")
    return {f"{section}.{name}": value for name, value in asdict(config).items() if name not in left_out}


def _check_online(suite: Suite, variants: Sequence[Variant]) -> None:
    for variant in variants if suite.setting == "online" else ():
        if reason := algos.get(variant.method).offline_only:
            raise ConfigError(
                f"suite {suite.name!r}: {variant.method} is not trained online: {reason}. Leave it out of --algos."
            )


def _check_numbers(suite: Suite, seeds: tuple[int, ...], steps: int, online_steps: int) -> None:
    if not seeds:
        raise ConfigError("--seeds: give at least one, such as --seeds 0")
    for seed in seeds:
        RunConfig(seed=seed)  # which says what a seed may be
    if steps < 0:
        raise ConfigError(f"--steps must be at least 1, or 0 for the protocol's, not {steps}")
    if online_steps < 0:
        raise ConfigError(f"--online-steps must be at least 1, or 0 for the protocol's, not {online_steps}")
    if online_steps and suite.setting != "online":
        raise ConfigError(f"suite {suite.name!r} is offline: leave --online-steps out, or choose paper-online")


def last_lines(log: Path, count: int) -> str:
    """The end of a log, without reading all of it."""
    return "\n".join(_tail(log, 4096)[-count:])


def _tail(log: Path, size: int) -> list[str]:
    """The lines in the last bytes of a log; the first may be cut."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def last_row(path: Path, key: str = "") -> dict[str, Any]:
    """The last event of a JSON log that mentions `key`; empty before the first. Torn lines are passed over.

    Between two evaluations there may be hundreds of other rows, so it looks back far.
    """
    for line in reversed(_tail(path, 65_536)):
        if key in line and line.startswith("{"):
            with suppress(ValueError):
                return json.loads(line)
    return {}
