"""stein: 1/2 (tr J + s . delta)^2 with J = d delta / d a, the KL to second order in any small displacement."""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import KL, Costs, Model, Move
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Stein(KL):
    """Correct to second order; a square, so not negative."""

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        return fisher.stein(move.field, model.anchors, self.score(model), key)


CONSTRAINT = Stein
