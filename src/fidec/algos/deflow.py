"""DeFlow: FiDec's algorithm with the isotropic constraint, D(delta) = mean(delta^2).

    a_0 = mu_beta(s, z),    a = a_0 + delta(s, a_0)
    max_delta  E[Q(s, a)]   subject to   E[D(delta)] <= budget

Both use `fidec.algos.fidec.make_constrained`. FiDec with `constraint="isotropic"` is DeFlow bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos import fidec
from fidec.algos.common.base import Algorithm, Method
from fidec.algos.constraints.isotropic import Isotropic
from fidec.types import Spec


@dataclass(frozen=True)
class DeFlowConfig(fidec.ResidualConfig):
    """DeFlow's options: those that it shares with FiDec."""


PRESETS = {
    # DeFlow's own code: lambda starts at e.
    "paper": {"multiplier_init": 2.718281828459045},
    # The copy in FiDec's released code, its baseline.
    "released": {"normalize_q": False, "grad_clip": 5.0, "clip_scope": "global"},
}


def make(config: DeFlowConfig, spec: Spec) -> Algorithm:
    return fidec.make_constrained(config, spec, Isotropic())


METHOD = Method(
    name="deflow",
    summary="flow policy refined by a residual map with a mean squared displacement budget",
    config=DeFlowConfig,
    make=make,
    presets=PRESETS,
    parity="paper",
    logs={**fidec.LOGS, "penalty": "E[D], to be compared with the budget"},
)
