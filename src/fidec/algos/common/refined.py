"""Code that FiDec, DeFlow and the closed form share: policies that move the actions of a behaviour flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fidec.algos import constraints
from fidec.algos.common import backbone
from fidec.algos.common.base import ActWithBase, State
from fidec.errors import ConfigError
from fidec.ops import fisher, policies
from fidec.types import Spec


@dataclass(frozen=True)
class RefinedConfig(backbone.BehaviourConfig):
    """Options of every method that moves the actions of a behaviour flow."""

    budget: float = 0.001
    """epsilon: the trust region's size, in units of the penalty (isotropic: mean squared displacement). With --chunk
    it is that of the whole chunk: the sum over its steps."""
    grad_clip: float | None = None
    """Largest gradient norm; None does not clip."""

    def __post_init__(self):
        super().__post_init__()
        backbone.positive(self, "budget")
        if not (self.grad_clip is None or self.grad_clip > 0):
            raise ConfigError(f"grad_clip must be positive, or None for no clipping, not {self.grad_clip}")

    def trust_region(self) -> tuple[float, str]:
        """The budget of the mean penalty, and its unit."""
        return self.budget, constraints.PENALTY


@dataclass(frozen=True)
class ConstraintConfig(RefinedConfig):
    """Options of methods that let the user choose the constraint."""

    constraint: str = "renoised"
    """The constraint on displacements. Quadratic, with the budget as in the paper: isotropic (DeFlow), local (the
    paper), renoised, averaged, velocity (the authors' code). In nats, with budget_nats: precision (by the behaviour's
    own width), information (by its scores), stein, path, denoising. Or one that another package adds."""
    budget_nats: float = 0.5
    """The trust region's size for constraints in nats. With --chunk it is that of the whole chunk."""
    t_eps: float | Literal["auto"] = 0.8
    """The time near 1 at which the score is evaluated; auto chooses it from the data by score matching."""
    t_width: float = 0.0
    """If positive, the time is drawn from [t_eps - t_width, t_eps]."""
    samples: int = 4
    """K: scores averaged in renoised, averaged and velocity; the number of noise levels in denoising."""
    damping: float = 1e-3
    """rho: added to every eigenvalue of F in a quadratic constraint."""
    scale: fisher.Scale = "mean"
    """The constant of a quadratic constraint: delta^T F delta / tr F (mean), half of that (half_trace), or
    delta^T F delta / 2 (half)."""

    def __post_init__(self):
        super().__post_init__()
        backbone.at_least_one(self, "samples")
        self.build_constraint()

    def build_constraint(self) -> Any:
        """The constraint with these options."""
        return constraints.build(self.constraint, self)

    def trust_region(self) -> tuple[float, str]:
        constraint = self.build_constraint()
        return constraint.limit(self.budget), constraint.unit


def act_by(
    critic: Any, behaviour: backbone.FlowPolicy, spec: Spec, displacement: Callable[..., jax.Array]
) -> ActWithBase:
    """`act_with_base` for flow samples moved by `displacement(params, observations, base, key)`; the best of several.

    `strength` multiplies the displacement: 0 gives the base actions, 1 the method's own.
    """

    def act_with_base(state: State, observations, key, candidates: int = 1, noise=1.0, strength=1.0):
        start = noise * backbone.noise_for(key, observations, spec, candidates)
        base = behaviour.sample(state.params["flow"], observations, start)
        # Without noise, `displacement` estimates with one key, so that an observation has one action.
        key = jnp.where(jnp.equal(noise, 0.0), jax.random.key(0), key)
        actions = jnp.clip(base + strength * displacement(state.params, observations, base, key), -1.0, 1.0)
        if candidates == 1:
            return actions[0], base[0]
        q = critic.apply(state.params["critic"], observations, actions).mean(axis=0)
        return policies.best_of(actions, q), policies.best_of(base, q)

    return act_with_base


def displacement_metrics(base: jax.Array, displacement: jax.Array) -> dict[str, jax.Array]:
    """The size of the displacement, and the share of components that it moves out of the box."""
    return {
        "displacement": jnp.sqrt(jnp.mean(jnp.sum(displacement**2, axis=-1))),
        "clipped": jnp.mean(jnp.abs(base + displacement) > 1.0),
    }
