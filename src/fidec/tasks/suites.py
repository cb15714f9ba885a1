"""Named sets of runs: a task, its data, a size, and what each method is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Suite:
    """Methods compared on one task for equal steps, on the same data, at the same size."""

    name: str
    summary: str
    task: str
    rows: int  # of data, made here
    steps: int
    eval_interval: int
    eval_episodes: int
    common: Mapping[str, Any]  # options of every method that has them
    methods: Mapping[str, Mapping[str, Any]]  # options of each method, over the task's published ones

    def options(self, method: str, config: type) -> dict[str, Any]:
        """What this suite changes in a method's configuration."""
        fields = config.__dataclass_fields__
        return {name: value for name, value in self.common.items() if name in fields} | dict(self.methods[method])


# Chosen by measurement for ten minutes on two cores; README says what they give. The discount is shorter than the
# benchmark's 0.99, since the critic must fall to about -1 / (1 - discount) before it ranks anything, and small
# networks take a larger learning rate.
DEMO = Suite(
    name="demo",
    summary="the twelve offline methods on the demo's task, data, network and steps",
    task="cube-single-play-singletask-task2-v0",
    rows=100_000,
    steps=15_000,
    eval_interval=7_500,
    eval_episodes=50,
    common={"hidden": (128, 128, 128), "discount": 0.97, "learning_rate": 1e-3},
    # The published settings of the task, but for these; docs/methods/comparison.md says what other values gave.
    methods={
        "bc": {},
        "iql": {},
        "rebrac": {},
        "idql": {"denoiser_width": 128},
        "srpo": {"denoiser_width": 128, "policy_hidden": (128, 128, 128), "beta": 0.1},
        # Its average would stay near the untrained network for thousands of steps, and its schedule outlast the run.
        "cac": {"ema_start": 0, "ema_interval": 1, "schedule_steps": 15_000},
        "fawac": {},
        "fbrac": {},
        "ifql": {},
        "fql": {},
        "deflow": {},
        "fidec": {},
    },
)

SUITES = {suite.name: suite for suite in (DEMO,)}
