"""FiDec: the residual map is held inside a trust region measured by the flow's own Fisher information.

    D(delta; s, a_0) = c delta^T F delta,    F = (1/K) sum_k s_k s_k^T + rho I

with scores s_k read off the velocity field at time t_eps (see `fidec.ops.fisher` for the metrics). The
paper's Algorithm 1 takes one score at the clean action, s = (t v - a_0) / (1 - t), which constrains a single
direction and leaves the others free. The default here, `renoised`, averages the score's outer product over
noised copies of the same action.

Where the paper and its released code disagree, each choice is a field of `FiDecConfig` or `ResidualConfig`;
the presets `paper` and `released` fix them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from fidec.algos import residual
from fidec.algos.base import Algorithm, Method
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.types import Spec


@dataclass(frozen=True)
class FiDecConfig(residual.ResidualConfig):
    """FiDec's options; the defaults are the preset `recommended`."""

    metric: fisher.Metric = "renoised"
    """The Fisher metric: isotropic (DeFlow), local (the paper), renoised, released (the authors' code)."""
    t_eps: float = 0.8
    """The time near 1 at which the score is read."""
    t_width: float = 0.0
    """If positive, the time is drawn from [t_eps - t_width, t_eps]."""
    samples: int = 4
    """K: scores averaged in the metric (local has one)."""
    damping: float = 1e-3
    """rho: added to every eigenvalue of F."""
    trace_scale: fisher.TraceScale = "dimension"
    """Divide F by nothing (none), by its trace (unit), or by its mean eigenvalue (dimension)."""
    half: bool = False
    """Take one half of the form, as in the paper's KL expansion."""
    per_dimension: bool = True
    """Divide the form by the number of action dimensions."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.t_eps < 1:
            raise ConfigError(f"t_eps must lie strictly between 0 and 1, not {self.t_eps}")
        if self.samples < 1 or self.damping < 0 or self.t_width < 0:
            raise ConfigError("samples must be at least 1, damping and t_width not negative")


PRESETS = {
    # Algorithm 1: one score at the clean action, 1/2 delta^T I delta, projected multiplier, modules in turn. The
    # paper's table scales I by its trace and clips gradients at 5; damping it gives for the closed form only. What
    # it leaves open is chosen here: eta, the scope of the clip, and the clipping of actions, kept from its FQL
    # backbone. lambda answers the penalty that the residual step has just computed.
    "paper": {
        "metric": "local",
        "t_eps": 0.8,
        "samples": 1,
        "damping": 0.0,
        "trace_scale": "unit",
        "half": True,
        "per_dimension": False,
        "dual": "projected",
        "order": "alternating",
        "normalize_q": True,
        "grad_clip": 5.0,
        "clip_scope": "module",
        "clip_actions": True,
    },
    # The authors' agent with the values of their launch scripts.
    "released": {
        "metric": "released",
        "t_eps": 0.9,
        "t_width": 0.05,
        "samples": 8,
        "damping": 1e-3,
        "trace_scale": "dimension",
        "half": False,
        "per_dimension": True,
        "dual": "log",
        "order": "joint",
        "normalize_q": False,
        "grad_clip": 5.0,
        "clip_scope": "global",
    },
}


def penalty(config: FiDecConfig) -> residual.Penalty:
    """D(delta; s, a_0) under the configured metric. The scores carry no gradient."""

    def scores(actions, key, velocity, sample):
        timing = {"t_eps": config.t_eps, "width": config.t_width}
        match config.metric:
            case "isotropic":
                return None
            case "local":
                return fisher.local_scores(velocity, actions, key, **timing)
            case "renoised":
                return fisher.renoised_scores(velocity, actions, key, samples=config.samples, **timing)
            case "released":
                return fisher.released_scores(velocity, sample, actions.shape, key, samples=config.samples, **timing)

    def cost(displacement, actions, key, *, velocity, sample):
        return fisher.penalty(
            displacement,
            scores(actions, key, velocity, sample),
            damping=config.damping,
            trace_scale=config.trace_scale,
            half=config.half,
            per_dimension=config.per_dimension,
        )

    return cost


def make(config: FiDecConfig, spec: Spec) -> Algorithm:
    return residual.make(config, spec, penalty(config))


METHOD = Method(
    name="fidec",
    summary="flow policy refined by a residual map inside a Fisher trust region",
    config=FiDecConfig,
    make=make,
    presets=PRESETS,
    logs=residual.LOGS,
)
