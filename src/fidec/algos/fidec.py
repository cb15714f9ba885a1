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
from functools import partial
from typing import Literal, cast

import jax

from fidec.algos.common import closed_form, residual
from fidec.algos.common.base import Algorithm, Method
from fidec.errors import ConfigError
from fidec.ops import fisher, flow
from fidec.types import Spec


@dataclass(frozen=True)
class FiDecConfig(residual.ResidualConfig):
    """FiDec's options; the defaults are the preset `recommended`."""

    metric: fisher.Metric = "renoised"
    """The constraint on displacements. A Fisher metric, with the budget as in the paper: isotropic (DeFlow), local
    (the paper), renoised, averaged, released (the authors' code). Or a KL in nats, with budget_nats: stein, path,
    denoising."""
    budget_nats: float = 0.5
    """The trust region's size for stein, path and denoising, in nats: the KL from the behaviour flow."""
    t_eps: float | Literal["auto"] = 0.8
    """The time near 1 at which the score is read; auto chooses it from the data by score matching."""
    t_width: float = 0.0
    """If positive, the time is drawn from [t_eps - t_width, t_eps]."""
    calibrate_every: int = 1000
    """Updates between two choices of t_eps, if that is auto; until the first it is 0.8."""
    anchor: Literal["flow", "data"] = "flow"
    """Actions at which stein, path and denoising are evaluated: accurate samples of the flow, or the logged ones."""
    query: fisher.Query = "scaled"
    """Where stein and path ask for the score of a: at t a (scaled), at a (clean), or at noised copies (renoised)."""
    samples: int = 4
    """K: scores averaged in the metric (local has one, and so have stein and path unless they ask at noised copies);
    for denoising the number of noise levels."""
    nodes: int = 3
    """Gauss-Legendre nodes of path: each is one evaluation of the velocity."""
    centred: bool = True
    """Subtract path's first-order terms, whose mean is zero for an exact score, as a control variate."""
    damping: float = 1e-3
    """rho: added to every eigenvalue of F."""
    trace_scale: fisher.TraceScale = "dimension"
    """Divide F by nothing (none), by its trace (unit), or by its mean eigenvalue (dimension)."""
    half: bool = False
    """Take one half of the form, as in the paper's KL expansion."""
    per_dimension: bool = True
    """Divide the form by the number of action dimensions."""
    refine: Literal["network", "closed_form"] = "network"
    """How actions are moved: by a residual network, or by F^-1 grad Q scaled to the budget, without one."""
    refine_steps: int = 1
    """Steps in which the closed form walks, each to 1 / refine_steps of the length."""

    def __post_init__(self):
        super().__post_init__()
        if self.t_eps != "auto" and not (isinstance(self.t_eps, float | int) and 0 < self.t_eps < 1):
            raise ConfigError(f"t_eps must lie strictly between 0 and 1, or be auto, not {self.t_eps}")
        for name in ("samples", "nodes", "calibrate_every", "refine_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.damping < 0 or self.t_width < 0:
            raise ConfigError("damping and t_width must not be negative")
        if not self.budget_nats > 0:
            raise ConfigError(f"budget_nats must be positive, not {self.budget_nats}")
        if self.refine == "closed_form":
            if self.metric in fisher.IN_NATS:
                raise ConfigError(f"the closed form needs a quadratic metric, not {self.metric!r}; choose renoised")
            if self.t_eps == "auto":
                raise ConfigError("t_eps auto is for the residual network; give the closed form a number")
            if self.damping == 0 and self.metric != "isotropic":
                raise ConfigError("the closed form inverts F: it needs a positive damping")


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
    """D(delta; s, a_0) under the configured constraint."""

    def time_of(calibrated):
        return cast(float, config.t_eps) if calibrated is None else calibrated

    def in_nats(field, displacement, base, key, *, anchors, velocity, sample, t_eps):
        score = fisher.ScoreEstimator(velocity, time_of(t_eps), config.t_width, config.query, config.samples)
        if config.metric == "stein":
            return fisher.stein(field, anchors, score, key)
        if config.metric == "denoising":
            return fisher.denoising(field, anchors, velocity, key, t_eps=time_of(t_eps), samples=config.samples)
        return fisher.path(field, anchors, score, key, nodes=config.nodes, centred=config.centred)

    def quadratic(field, displacement, base, key, *, anchors, velocity, sample, t_eps):
        scores = fisher.metric_scores(
            cast(fisher.Quadratic, config.metric),
            base,
            key,
            velocity=velocity,
            sample=sample,
            samples=config.samples,
            t_eps=time_of(t_eps),
            width=config.t_width,
        )
        return closed_form.cost(displacement, scores, config)

    return in_nats if config.metric in fisher.IN_NATS else quadratic


def flow_anchors(velocity, data, key, *, steps: int):
    """Samples of the flow's own density, where a KL from it cannot be negative.

    The policy's base actions will not do: ten Euler steps and a clip end elsewhere, and a map may then lower the
    estimate below zero by undoing their error. Heun's steps are accurate enough.
    """
    return flow.sample(velocity, jax.random.normal(key, data.shape), steps, "heun")


def calibrate(velocity, actions, key):
    """t_eps by score matching on the data's actions."""
    return fisher.choose_time(velocity, actions, key)[0]


def anchors_of(config: FiDecConfig) -> residual.Anchor:
    if config.anchor == "data":
        return lambda velocity, data, key: data
    return partial(flow_anchors, steps=config.flow_steps)


def make(config: FiDecConfig, spec: Spec) -> Algorithm:
    if config.refine == "closed_form":
        return closed_form.make(config, spec)
    nats = config.metric in fisher.IN_NATS
    return residual.make(
        config,
        spec,
        penalty(config),
        budget=config.budget_nats if nats else config.budget,
        unit="nats" if nats else "of the penalty",
        anchor=anchors_of(config) if nats else None,
        calibrate=calibrate if config.t_eps == "auto" else None,
        calibrate_every=config.calibrate_every,
    )


METHOD = Method(
    name="fidec",
    summary="flow policy refined by a residual map inside a Fisher trust region",
    config=FiDecConfig,
    make=make,
    presets=PRESETS,
    logs={**residual.LOGS, "t_eps": "the time at which the score is read, if it is calibrated"},
)
