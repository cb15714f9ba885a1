"""Hyper-parameters of the OGBench tasks, by family, each with its source.

The discount and the aggregation of the target critics are those of FQL's published commands, which DeFlow and
FiDec reuse. The budget has three sources that do not always agree: the FiDec paper's table, DeFlow's README, and
the registry beside FiDec's released code.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """What a task changes in a method's configuration."""

    discount: float
    q_aggregate: str
    budget: float  # the FiDec paper
    budget_deflow: float | None = None  # DeFlow's README, where it differs
    budget_released: float | None = None  # the released registry, where it differs

    def options(self, method: str, config: type, preset: str) -> dict[str, Any]:
        """The settings that this configuration has a field for, from the source that the preset stands for."""
        budget = self.budget
        if preset == "released" and self.budget_released is not None:
            budget = self.budget_released
        elif preset != "released" and method == "deflow" and self.budget_deflow is not None:
            budget = self.budget_deflow
        values = {"discount": self.discount, "q_aggregate": self.q_aggregate, "budget": budget}
        fields = {field.name for field in dataclasses.fields(config)}
        return {name: value for name, value in values.items() if name in fields}


_CUBE_OR_SCENE = Settings(0.99, "mean", 0.001)
_PUZZLE = Settings(0.99, "mean", 0.0005, budget_deflow=0.005, budget_released=0.005)
_VISUAL_PUZZLE = Settings(0.99, "mean", 0.0005, budget_released=0.005)

FAMILIES = {
    "antmaze-large-navigate": Settings(0.99, "min", 0.01),
    "antmaze-giant-navigate": Settings(0.995, "min", 0.01),
    "humanoidmaze-medium-navigate": Settings(0.995, "mean", 0.001),
    "humanoidmaze-large-navigate": Settings(0.995, "mean", 0.001),
    "antsoccer-arena-navigate": Settings(0.995, "mean", 0.01),
    "cube-single-play": _CUBE_OR_SCENE,
    "cube-double-play": _CUBE_OR_SCENE,
    "scene-play": _CUBE_OR_SCENE,
    "puzzle-3x3-play": _PUZZLE,
    "puzzle-4x4-play": _PUZZLE,
    "visual-cube-single-play": _CUBE_OR_SCENE,
    "visual-cube-double-play": _CUBE_OR_SCENE,
    "visual-scene-play": _CUBE_OR_SCENE,
    "visual-puzzle-3x3-play": _VISUAL_PUZZLE,
    "visual-puzzle-4x4-play": _VISUAL_PUZZLE,
}


def settings(task: str) -> Settings | None:
    """The settings of an OGBench task's family, or None if nobody published any."""
    name = task.removeprefix("ogbench:")
    return next((row for family, row in FAMILIES.items() if name.startswith(f"{family}-singletask")), None)
