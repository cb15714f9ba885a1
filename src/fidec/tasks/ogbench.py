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
    """A row of the paper's table. None: not run on pixels, or, for Cal-QL, not among its offline-to-online tasks."""

    iql: float
    rebrac: tuple[float, float]
    idql: int | None
    srpo: float | None
    cac: float | None
    fawac: float | None
    fbrac: float
    ifql: int
    fql: float
    calql: dict[str, float] | None = None
    locomotion: bool = False

    def options(self) -> dict[str, dict[str, Any]]:
        """Options by method."""
        actor, critic = self.rebrac
        # FQL's authors chose the widths and expectiles by the kind of task; what is left out here is the default.
        diffusion = {"expectile": 0.7, "hidden": (512, 512)} if self.locomotion else {"expectile": 0.9}
        narrow = {} if self.locomotion or self.idql is None else {"hidden": (256, 256, 256, 256)}
        rows = {
            "iql": {"alpha": self.iql, **narrow},
            "rebrac": {"actor_penalty": actor, "critic_penalty": critic},
            "idql": {"samples": self.idql, **diffusion},
            "srpo": {"beta": self.srpo, **diffusion},
            "cac": {"eta": self.cac},
            "fawac": {"alpha": self.fawac},
            "fbrac": {"alpha": self.fbrac},
            "ifql": {"samples": self.ifql},
            "fql": {"alpha": self.fql},
            "calql": {**(self.calql or {}), **narrow},
        }
        return {name: row for name, row in rows.items() if None not in row.values()}


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
        if method == "rlpd":  # FQL's paper takes the minimum on Adroit alone
            del values["q_aggregate"]
        fields = {field.name for field in dataclasses.fields(config)}
        return {name: value for name, value in values.items() if name in fields}


# In the order of `Rivals`: IQL alpha, ReBRAC (actor, critic), IDQL N, SRPO beta, CAC eta, FAWAC alpha, FBRAC alpha,
# IFQL N, FQL alpha, and Cal-QL's weight or gap.
FAMILIES = {
    "antmaze-large-navigate": Settings(
        0.99, "min", 0.01, rivals=Rivals(10.0, (0.003, 0.01), 32, 0.3, 1.0, 3.0, 3.0, 32, 10.0, locomotion=True)
    ),
    "antmaze-giant-navigate": Settings(
        0.995, "min", 0.01, rivals=Rivals(10.0, (0.003, 0.01), 32, 0.3, 1.0, 3.0, 10.0, 32, 10.0, locomotion=True)
    ),
    "humanoidmaze-medium-navigate": Settings(
        0.995,
        "mean",
        0.001,
        rivals=Rivals(10.0, (0.01, 0.01), 32, 0.3, 0.03, 3.0, 30.0, 32, 30.0, {"lagrange_gap": 0.8}, True),
    ),
    "humanoidmaze-large-navigate": Settings(
        0.995, "mean", 0.001, rivals=Rivals(10.0, (0.01, 0.01), 32, 0.3, 1.0, 3.0, 30.0, 32, 30.0, locomotion=True)
    ),
    "antsoccer-arena-navigate": Settings(
        0.995,
        "mean",
        0.01,
        rivals=Rivals(1.0, (0.01, 0.01), 32, 0.03, 1.0, 10.0, 30.0, 64, 10.0, {"lagrange_gap": 0.2}, True),
    ),
    "cube-single-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(1.0, (1.0, 0.0), 32, 0.03, 0.003, 1.0, 100.0, 32, 300.0)
    ),
    "cube-double-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(0.3, (0.1, 0.0), 32, 0.1, 0.3, 0.3, 100.0, 32, 300.0, {"alpha": 0.01})
    ),
    "scene-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(10.0, (0.1, 0.01), 32, 0.1, 0.3, 0.3, 100.0, 32, 300.0, {"alpha": 0.01})
    ),
    "puzzle-3x3-play": Settings(
        0.99, "mean", 0.0005, 0.005, 0.005, rivals=Rivals(10.0, (0.3, 0.01), 32, 0.1, 0.01, 0.3, 100.0, 32, 1000.0)
    ),
    "puzzle-4x4-play": Settings(
        0.99,
        "mean",
        0.0005,
        0.005,
        0.005,
        rivals=Rivals(3.0, (0.3, 0.01), 32, 0.1, 0.01, 0.3, 300.0, 32, 1000.0, {"alpha": 0.003}),
    ),
    "visual-cube-single-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(1.0, (1.0, 0.0), None, None, None, None, 100.0, 32, 300.0)
    ),
    "visual-cube-double-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(0.3, (0.1, 0.0), None, None, None, None, 100.0, 32, 100.0)
    ),
    "visual-scene-play": Settings(
        0.99, "mean", 0.001, rivals=Rivals(10.0, (0.1, 0.01), None, None, None, None, 100.0, 32, 100.0)
    ),
    "visual-puzzle-3x3-play": Settings(
        0.99, "mean", 0.0005, None, 0.005, rivals=Rivals(10.0, (0.3, 0.01), None, None, None, None, 100.0, 32, 300.0)
    ),
    "visual-puzzle-4x4-play": Settings(
        0.99, "mean", 0.0005, None, 0.005, rivals=Rivals(3.0, (0.3, 0.01), None, None, None, None, 300.0, 32, 300.0)
    ),
}


def settings(task: str) -> Settings | None:
    """The settings of an OGBench task's family, or None if nobody published any."""
    name = task.removeprefix("ogbench:")
    return next((row for family, row in FAMILIES.items() if name.startswith(f"{family}-singletask")), None)
