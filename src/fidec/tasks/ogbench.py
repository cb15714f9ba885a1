"""Hyper-parameters of the OGBench tasks, by family, each with its source.

The discount and the aggregation of the target critics are those of FQL's published commands, which DeFlow and
FiDec reuse. The budget is the column "DeFlow delta = FiDec epsilon" of the FiDec paper's table; where the
released registry has another value, the preset `released` takes that one.
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
    budget: float
    budget_released: float | None = None  # where it differs from the paper's

    def options(self, config: type, preset: str) -> dict[str, Any]:
        """The settings that this method's configuration has a field for."""
        released = preset == "released" and self.budget_released is not None
        values = {
            "discount": self.discount,
            "q_aggregate": self.q_aggregate,
            "budget": self.budget_released if released else self.budget,
        }
        fields = {field.name for field in dataclasses.fields(config)}
        return {name: value for name, value in values.items() if name in fields}


FAMILIES = {
    "antmaze-large-navigate": Settings(0.99, "min", 0.01),
    "antmaze-giant-navigate": Settings(0.995, "min", 0.01),
    "humanoidmaze-medium-navigate": Settings(0.995, "mean", 0.001),
    "humanoidmaze-large-navigate": Settings(0.995, "mean", 0.001),
    "antsoccer-arena-navigate": Settings(0.995, "mean", 0.01),
    "cube-single-play": Settings(0.99, "mean", 0.001),
    "cube-double-play": Settings(0.99, "mean", 0.001),
    "scene-play": Settings(0.99, "mean", 0.001),
    "puzzle-3x3-play": Settings(0.99, "mean", 0.0005, budget_released=0.005),
    "puzzle-4x4-play": Settings(0.99, "mean", 0.0005, budget_released=0.005),
}


def settings(task: str) -> Settings | None:
    """The settings of an OGBench task's family, or None if nobody published any."""
    name = task.removeprefix("ogbench:").removeprefix("visual-")
    family = next((family for family in FAMILIES if name.startswith(f"{family}-")), None)
    return FAMILIES[family] if family else None
