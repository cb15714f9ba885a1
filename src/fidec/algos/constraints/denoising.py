"""denoising: the KL, with log p computed from the denoising errors of all noise levels instead of one score.

It evaluates the velocity field only where the field was trained. What the field has not learned counts as cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.constraints import KL, Costs, Model, Move
from fidec.ops import fisher
from fidec.types import PRNGKey


@dataclass(frozen=True)
class Denoising(KL):
    """4 K evaluations of the velocity."""

    samples: int = 4
    """K: the number of noise levels."""

    def penalty(self, move: Move, model: Model, key: PRNGKey) -> Costs:
        return fisher.denoising(
            move.field, model.anchors, model.velocity, key, t_eps=self.time(model), samples=self.samples
        )


CONSTRAINT = Denoising
