"""DeFlow: FiDec's algorithm with the isotropic constraint, D(delta) = mean(delta^2).

    a_0 = mu_beta(s, z),    a = a_0 + delta(s, a_0)
    max_delta  E[Q(s, a)]   subject to   E[D(delta)] <= budget

Both use `fidec.algos.fidec.make`. FiDec with `constraint="isotropic"` is DeFlow bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fidec.algos import fidec
from fidec.algos.common import presets
from fidec.algos.common.base import Method


@dataclass(frozen=True)
class DeFlowConfig(fidec.ResidualConfig):
    """DeFlow's options: those that it shares with FiDec."""

    constraint: ClassVar[str] = "isotropic"


METHOD = Method(
    name="deflow",
    summary="flow policy refined by a residual map with a mean squared displacement budget",
    config=DeFlowConfig,
    make=fidec.make,
    presets={"paper": presets.DEFLOW_PAPER, "released": presets.DEFLOW_RELEASED},
    parity="paper",
    logs={**fidec.LOGS, "penalty": "E[D], to be compared with the budget"},
)
