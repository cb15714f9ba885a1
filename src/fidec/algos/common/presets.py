"""The presets of FiDec and DeFlow, and the options that only published presets need.

`paper` is the paper's text, `released` the code of its authors. Where the two disagree, each choice is an option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fidec import optim
from fidec.algos.common import refined
from fidec.errors import ConfigError


@dataclass(frozen=True)
class StepConfig(refined.RefinedConfig):
    """Options of how a step is taken, in which the two differ."""

    clip_scope: optim.ClipScope = "module"
    """grad_clip limits one norm over all modules together (global, the released code) or one for each module."""
    order: Literal["joint", "alternating"] = "joint"
    """One simultaneous step on all modules (the released code), or critic, flow, residual, multiplier in turn, each
    with the modules before it updated (the paper's Algorithm 1). In both orders the base actions are those of the
    update's start, which saves a flow solve."""

    def __post_init__(self):
        super().__post_init__()
        if self.order == "alternating" and self.clip_scope == "global" and self.grad_clip is not None:
            raise ConfigError(
                "clip_scope 'global' needs all gradients at once, order 'alternating' takes them in turn; "
                "choose clip_scope 'module' or order 'joint'"
            )

    def turns(self, losses: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The losses of each simultaneous step."""
        return [dict(losses)] if self.order == "joint" else [{name: loss} for name, loss in losses.items()]


# Algorithm 1: one score at the clean action, 1/2 delta^T I delta, projected multiplier, modules in turn. The paper's
# table scales I by its trace and clips gradients at 5. It gives damping for the closed form only. It does not give
# eta and the scope of the clip, which are chosen here. The step of lambda uses the penalty that the residual step has
# just computed.
PAPER = {
    "constraint": "local",
    "t_eps": 0.8,
    "damping": 0.0,
    "scale": "half_trace",
    "multiplier": "projected",
    "order": "alternating",
    "grad_clip": 5.0,
    "clip_scope": "module",
}
# The authors' agent with the values of their launch scripts.
RELEASED = {
    "constraint": "velocity",
    "t_eps": 0.9,
    "t_width": 0.05,
    "samples": 8,
    "damping": 1e-3,
    "scale": "mean",
    "multiplier": "log",
    "order": "joint",
    "q_scale": "none",
    "grad_clip": 5.0,
    "clip_scope": "global",
}
# DeFlow's own code: lambda starts at e.
DEFLOW_PAPER = {"multiplier_init": 2.718281828459045}
# The copy in FiDec's released code, its baseline.
DEFLOW_RELEASED = {"q_scale": "none", "grad_clip": 5.0, "clip_scope": "global"}
# One budget in nats by the behaviour's own width, for all tasks. docs/trust.md says what was measured.
NATS = {
    "constraint": "precision",
    "budget": 0.2,
    "proposals": 16,
    "multiplier": "controlled",
    "warmup": 3000,
    "zero_init": True,
    "q_scale": "spread",
    "discount": 0.99,
}
# The run of that preset: the flow first, by its held-out loss; values in the data's own scale, by 5-step returns; the
# best of four moved actions, of draws with half the noise.
NATS_RUN = {
    "flow_updates": 20_000,
    "n_step": 5,
    "normalize_observations": True,
    "value_start": "data",
    "reward_scale": "data",
    "reward_rule": "auto",
    "candidates": 4,
    "noise": 0.5,
}
