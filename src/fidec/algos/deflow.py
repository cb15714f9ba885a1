"""DeFlow: FiDec's algorithm with the isotropic metric, D(delta) = mean(delta^2).

The two share `fidec.algos.common.residual`; FiDec with `metric="isotropic"` is DeFlow bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos.common import residual
from fidec.algos.common.base import Algorithm, Method
from fidec.ops import fisher
from fidec.types import Spec


@dataclass(frozen=True)
class DeFlowConfig(residual.ResidualConfig):
    """DeFlow's options: those that it shares with FiDec."""


PRESETS = {
    # DeFlow's own code: lambda starts at e.
    "paper": {"multiplier_init": 2.718281828459045},
    # The copy beside FiDec's released code, its baseline.
    "released": {"normalize_q": False, "grad_clip": 5.0, "clip_scope": "global"},
}


def penalty(field, displacement, base, key, *, anchors, velocity, sample, t_eps):
    """mean(delta^2) over the action's dimensions, whatever the flow says."""
    return fisher.penalty(displacement, None, damping=0.0, trace_scale="dimension", half=False, per_dimension=True)


def make(config: DeFlowConfig, spec: Spec) -> Algorithm:
    return residual.make(config, spec, penalty)


METHOD = Method(
    name="deflow",
    summary="flow policy refined by a residual map with a mean squared displacement budget",
    config=DeFlowConfig,
    make=make,
    presets=PRESETS,
    logs=residual.LOGS,
)
