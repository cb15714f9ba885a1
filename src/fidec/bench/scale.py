"""How long the runs of a suite are and how they are scored: as published, or at a smaller scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fidec.tasks import Task
from fidec.tasks.protocol import ONLINE_ONLY


@dataclass(frozen=True)
class Plan:
    """How long a run is and how it is scored."""

    steps: int  # offline updates
    eval_interval: int
    eval_episodes: int
    averaged: tuple[int, ...]  # the steps whose evaluations make the score
    batch_size: int = 256
    log_interval: int = 1_000
    checkpoint_interval: int = 10_000
    online_steps: int = 0  # of the environment, after the offline updates

    @property
    def total(self) -> int:
        return self.steps + self.online_steps

    @property
    def before(self) -> tuple[int, ...]:
        """The hand-over, whose evaluation is the score before the online phase."""
        return (self.steps,) if self.online_steps and self.steps else ()

    @property
    def evaluations(self) -> tuple[int, ...]:
        """The steps that are evaluated: every interval, the hand-over and the end."""
        return tuple(sorted({*range(self.eval_interval, self.total, self.eval_interval), *self.before, self.total}))


@dataclass(frozen=True)
class Scale:
    """One size for every run of a suite, in place of the published one."""

    name: str
    summary: str
    rows: int  # of data, where fidec makes it
    steps: int
    eval_interval: int
    eval_episodes: int
    averaged: int  # the last evaluations, whose mean is the score; online it is the last alone, as published
    online_steps: int = 0  # where the suite is online
    visual_rows: int = 0  # of pixels; 0 is as many as `rows`
    batch_size: int = 256
    log_interval: int = 500
    checkpoint_interval: int = 10_000
    options: Mapping[str, Any] = field(default_factory=dict)  # of every method that has them
    manipulation: Mapping[str, Any] = field(default_factory=dict)  # the same, on OGBench's manipulation tasks only
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of single methods

    def changes(self, task: str, method: str, config: type) -> dict[str, Any]:
        """What it changes in a method's configuration on a task."""
        shared = {**self.options, **(self.manipulation if is_manipulation(task) else {})}
        fields = config.__dataclass_fields__
        return {name: value for name, value in shared.items() if name in fields} | dict(self.methods.get(method, {}))

    def plan(self, steps: int = 0, online_steps: int = 0, *, setting: str = "offline", method: str = "") -> Plan:
        """A method's runs; `steps` and `online_steps` shorten or lengthen them, evaluated as often."""
        online = setting == "online"
        steps = 0 if online and method in ONLINE_ONLY else steps or self.steps
        return _plan(
            steps,
            (online_steps or self.online_steps) if online else 0,
            self.eval_interval,
            self.eval_episodes,
            1 if online else self.averaged,
            self.log_interval,
            batch_size=self.batch_size,
            checkpoint_interval=self.checkpoint_interval,
        )


def _plan(
    steps: int, online_steps: int, interval: int, episodes: int, count: int, log_interval: int, **others: int
) -> Plan:
    """Evaluated and logged at least once; the last `count` evaluations make the score."""
    total = steps + online_steps
    interval = min(interval, total)
    return Plan(
        steps,
        interval,
        episodes,
        averaged=last_evaluations(total, interval, count),
        log_interval=min(log_interval, total),
        online_steps=online_steps,
        **others,
    )


def last_evaluations(steps: int, interval: int, count: int) -> tuple[int, ...]:
    """The last steps at which a run is evaluated: every interval, and at its end."""
    return (*range(interval, steps, interval), steps)[-count:]


def is_manipulation(task: str) -> bool:
    return task.removeprefix("visual-").startswith(("cube-", "scene-", "puzzle-"))


def benchmark_plan(task: Task, method: str, steps: int = 0, online_steps: int = 0) -> Plan:
    """The published protocol; `steps` and `online_steps` change the length of the phases that it has."""
    protocol = task.protocol(method)
    return _plan(
        protocol.steps and (steps or protocol.steps),
        protocol.online_steps and (online_steps or protocol.online_steps),
        protocol.eval_interval,
        protocol.eval_episodes,
        len(protocol.averaged),
        1_000,
    )


# The one reduction of the benchmark, for machines without an accelerator. Small networks take a larger learning rate.
# The discount of the manipulation tasks is shorter than the published 0.99, since the critic must fall to about
# -1 / (1 - discount) before it ranks anything, for which 10,000 steps are too few.
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
        # Its average would stay near the untrained network for thousands of steps, and its schedule outlast the run.
        "cac": {"ema_start": 0, "ema_interval": 1, "schedule_steps": 10_000},
        "calql": {"policy_learning_rate": 3e-4},  # a third of the critic's, as published
    },
)
SCALES = {scale.name: scale for scale in (SMALL,)}
