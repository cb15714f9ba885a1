"""Code that FiDec, DeFlow and the closed form share: policies that move the actions of a behaviour flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fidec.algos import constraints
from fidec.algos.common import backbone, options
from fidec.algos.common.base import ActWithBase, State
from fidec.ops import policies
from fidec.types import Spec


@dataclass(frozen=True)
class RefinedConfig(options.BehaviourConfig):
    """Options of every method that moves the actions of a behaviour flow. It also has a `constraint`."""

    budget: float | None = None
    """epsilon: the trust region's size, in the unit of the constraint; by default 0.001 of a quadratic penalty
    (isotropic: mean squared displacement), or 0.5 nats. With --chunk it is that of the whole chunk."""
    grad_clip: float | None = None
    """Largest gradient norm; None does not clip."""

    def __post_init__(self):
        super().__post_init__()
        options.positive(self, *(name for name in ("budget", "grad_clip") if getattr(self, name) is not None))
        self.build_constraint()

    def build_constraint(self) -> Any:
        """The constraint with these options."""
        return constraints.build(getattr(self, "constraint"), self)  # noqa: B009 (a field or a constant of a subclass)

    def trust_region(self) -> tuple[float, str]:
        """The budget of the mean penalty, and its unit."""
        unit = self.build_constraint().unit
        return constraints.BUDGETS[unit] if self.budget is None else self.budget, unit


def value_of(critic: Any, state: State, observations: Any) -> Callable[[jax.Array], jax.Array]:
    """The value of actions by which one of several is chosen: the mean of the critics."""
    return lambda actions: critic.apply(state.params["critic"], observations, actions).mean(axis=0)


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
        q = value_of(critic, state, observations)(actions)
        return policies.best_of(actions, q), policies.best_of(base, q)

    return act_with_base


def displacement_metrics(base: jax.Array, displacement: jax.Array) -> dict[str, jax.Array]:
    """The size of the displacement, and the share of components that it moves out of the box."""
    return {
        "displacement": jnp.sqrt(jnp.mean(jnp.sum(displacement**2, axis=-1))),
        "clipped": jnp.mean(jnp.abs(base + displacement) > 1.0),
    }
