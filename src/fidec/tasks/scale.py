"""How long the runs of a suite are and how they are scored: as published, or at a smaller scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fidec.tasks import Task


@dataclass(frozen=True)
class Plan:
    """How long a run is and how it is scored."""

    steps: int
    eval_interval: int
    eval_episodes: int
    averaged: tuple[int, ...]  # the steps whose evaluations make the score
    batch_size: int = 256
    log_interval: int = 1_000
    checkpoint_interval: int = 10_000


@dataclass(frozen=True)
class Scale:
    """One size for every run of a suite, in place of the published one."""

    name: str
    summary: str
    rows: int  # of data, where fidec makes it
    steps: int
    eval_interval: int
    eval_episodes: int
    averaged: int  # the last evaluations, whose mean is the score
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

    def plan(self, steps: int = 0) -> Plan:
        """The runs' length and score; `steps` shortens or lengthens them, evaluated as often."""
        steps = steps or self.steps
        interval = min(self.eval_interval, steps)
        return Plan(
            steps=steps,
            eval_interval=interval,
            eval_episodes=self.eval_episodes,
            averaged=last_evaluations(steps, interval, self.averaged),
            batch_size=self.batch_size,
            log_interval=min(self.log_interval, steps),
            checkpoint_interval=self.checkpoint_interval,
        )


def last_evaluations(steps: int, interval: int, count: int) -> tuple[int, ...]:
    """The last steps at which a run is evaluated: every interval, and at its end."""
    return (*range(interval, steps, interval), steps)[-count:]


def is_manipulation(task: str) -> bool:
    return task.removeprefix("visual-").startswith(("cube-", "scene-", "puzzle-"))


def benchmark_plan(task: Task, method: str, steps: int = 0) -> Plan:
    """The published protocol; `steps` changes the length and keeps the rest."""
    protocol = task.protocol(method)
    plan = Plan(protocol.steps, protocol.eval_interval, protocol.eval_episodes, protocol.averaged)
    if not steps or steps == plan.steps:
        return plan
    interval = min(plan.eval_interval, steps)
    averaged = last_evaluations(steps, interval, len(plan.averaged))
    return Plan(steps, interval, plan.eval_episodes, averaged, log_interval=min(1_000, steps))


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
    batch_size=128,
    options={"hidden": (128, 128, 128), "learning_rate": 1e-3},
    manipulation={"discount": 0.97},
    methods={
        "idql": {"denoiser_width": 128},
        "srpo": {"denoiser_width": 128, "policy_hidden": (128, 128, 128)},
        # Its average would stay near the untrained network for thousands of steps, and its schedule outlast the run.
        "cac": {"ema_start": 0, "ema_interval": 1, "schedule_steps": 10_000},
    },
)
SCALES = {scale.name: scale for scale in (SMALL,)}
