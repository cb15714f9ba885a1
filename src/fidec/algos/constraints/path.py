"""path: the KL of a displacement of any size, by a line integral of the score.

-int_0^1 s(a + u delta) . delta du - log|det(I + J)|, less its first-order terms, whose mean is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import KL, Costs, Model, Move
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Path(KL):
    """Three Gauss-Legendre nodes, each one evaluation of the velocity."""

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        return fisher.path(move.field, model.anchors, self.score(model), key, nodes=3, centred=True)


CONSTRAINT = Path
