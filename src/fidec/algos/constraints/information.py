"""information: the cost of a shift in nats, by the Fisher information of the behaviour at the state.

    D = 1/2 delta^T F delta,    F = E[s s^T]        s the score of the behaviour, at K noised samples of the state

It is the second-order KL of a rigid shift. `averaged` is the same form divided by its trace. The noise at t_eps
widens the behaviour, so a width below 1 - t_eps cannot be seen: choose t_eps auto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fidec.algos.constraints import NATS, Actions, Costs
from fidec.algos.constraints.averaged import Averaged
from fidec.ops import fisher


@dataclass(frozen=True)
class Information(Averaged):
    """1/2 delta^T F delta, not divided by a trace. The option `scale` has no effect."""

    unit: ClassVar[str] = NATS

    def form(self, displacement: Actions, scores: fisher.Scores | None) -> Costs:
        return fisher.penalty(displacement, scores, damping=self.damping, scale="half")

    def chunk_factor(self, chunk: int) -> float:
        return 1.0


CONSTRAINT = Information
