"""Constraints of the laboratory alone."""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import KL, Costs, Model, Move
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class UncentredPath(KL):
    """`path` with its first-order terms, whose mean is zero for an exact score."""

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        return fisher.path(move.field, model.anchors, self.score(model), key, nodes=3, centred=False)
