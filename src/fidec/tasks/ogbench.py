"""Hyper-parameters of the OGBench tasks, by family, each with its source.

The discount and the aggregation of the target critics are those of FQL's published commands, which DeFlow and
FiDec reuse. The budget has three sources that do not always agree: the FiDec paper's table, DeFlow's README, and
the registry beside FiDec's released code. The rivals' hyper-parameters are those of the paper's table, which has them
from FQL.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple


class Rivals(NamedTuple):
    """A row of the paper's table, for the methods that are here."""

    iql: float
    rebrac: tuple[float, float]
    fawac: float | None  # not run on pixels
    fbrac: float
    ifql: int
    fql: float

    def options(self) -> dict[str, dict[str, Any]]:
        """Options by method."""
        actor, critic = self.rebrac
        rows = {
            "iql": {"alpha": self.iql},
            "rebrac": {"actor_penalty": actor, "critic_penalty": critic},
            "fbrac": {"alpha": self.fbrac},
            "ifql": {"samples": self.ifql},
            "fql": {"alpha": self.fql},
        }
        return rows | ({"fawac": {"alpha": self.fawac}} if self.fawac is not None else {})


@dataclass(frozen=True)
class Settings:
    """What a task changes in a method's configuration."""

    discount: float
    q_aggregate: str
    budget: float  # the FiDec paper
    budget_deflow: float | None = None  # DeFlow's README, where it differs
    budget_released: float | None = None  # the released registry, where it differs
    rivals: Rivals | None = None

    def options(self, method: str, config: type, preset: str) -> dict[str, Any]:
        """The settings that this configuration has a field for, from the source that the preset stands for."""
        budget = self.budget
        if preset == "released" and self.budget_released is not None:
            budget = self.budget_released
        elif preset != "released" and method == "deflow" and self.budget_deflow is not None:
            budget = self.budget_deflow
        values = {"discount": self.discount, "q_aggregate": self.q_aggregate, "budget": budget}
        values |= self.rivals.options().get(method, {}) if self.rivals else {}
        fields = {field.name for field in dataclasses.fields(config)}
        return {name: value for name, value in values.items() if name in fields}


# Rivals:                                      IQL   ReBRAC         FAWAC  FBRAC  IFQL  FQL
FAMILIES = {
    "antmaze-large-navigate": Settings(0.99, "min", 0.01, rivals=Rivals(10.0, (0.003, 0.01), 3.0, 3.0, 32, 10.0)),
    "antmaze-giant-navigate": Settings(0.995, "min", 0.01, rivals=Rivals(10.0, (0.003, 0.01), 3.0, 10.0, 32, 10.0)),
    "humanoidmaze-medium-navigate": Settings(
        0.995, "mean", 0.001, rivals=Rivals(10.0, (0.01, 0.01), 3.0, 30.0, 32, 30.0)
    ),
    "humanoidmaze-large-navigate": Settings(
        0.995, "mean", 0.001, rivals=Rivals(10.0, (0.01, 0.01), 3.0, 30.0, 32, 30.0)
    ),
    "antsoccer-arena-navigate": Settings(0.995, "mean", 0.01, rivals=Rivals(1.0, (0.01, 0.01), 10.0, 30.0, 64, 10.0)),
    "cube-single-play": Settings(0.99, "mean", 0.001, rivals=Rivals(1.0, (1.0, 0.0), 1.0, 100.0, 32, 300.0)),
    "cube-double-play": Settings(0.99, "mean", 0.001, rivals=Rivals(0.3, (0.1, 0.0), 0.3, 100.0, 32, 300.0)),
    "scene-play": Settings(0.99, "mean", 0.001, rivals=Rivals(10.0, (0.1, 0.01), 0.3, 100.0, 32, 300.0)),
    "puzzle-3x3-play": Settings(
        0.99, "mean", 0.0005, 0.005, 0.005, rivals=Rivals(10.0, (0.3, 0.01), 0.3, 100.0, 32, 1000.0)
    ),
    "puzzle-4x4-play": Settings(
        0.99, "mean", 0.0005, 0.005, 0.005, rivals=Rivals(3.0, (0.3, 0.01), 0.3, 300.0, 32, 1000.0)
    ),
    "visual-cube-single-play": Settings(0.99, "mean", 0.001, rivals=Rivals(1.0, (1.0, 0.0), None, 100.0, 32, 300.0)),
    "visual-cube-double-play": Settings(0.99, "mean", 0.001, rivals=Rivals(0.3, (0.1, 0.0), None, 100.0, 32, 100.0)),
    "visual-scene-play": Settings(0.99, "mean", 0.001, rivals=Rivals(10.0, (0.1, 0.01), None, 100.0, 32, 100.0)),
    "visual-puzzle-3x3-play": Settings(
        0.99, "mean", 0.0005, None, 0.005, rivals=Rivals(10.0, (0.3, 0.01), None, 100.0, 32, 300.0)
    ),
    "visual-puzzle-4x4-play": Settings(
        0.99, "mean", 0.0005, None, 0.005, rivals=Rivals(3.0, (0.3, 0.01), None, 300.0, 32, 300.0)
    ),
}


def settings(task: str) -> Settings | None:
    """The settings of an OGBench task's family, or None if nobody published any."""
    name = task.removeprefix("ogbench:")
    return next((row for family, row in FAMILIES.items() if name.startswith(f"{family}-singletask")), None)
