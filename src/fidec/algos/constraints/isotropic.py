"""isotropic: F = I, DeFlow's constraint. With scale `mean` it is mean(delta^2)."""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import Actions, Model, Quadratic
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Isotropic(Quadratic):
    """F = I; no score is needed."""

    def scores(self, actions: Actions, model: Model, key: PRNGKey) -> None:
        return None


CONSTRAINT = Isotropic
