"""Optimisation, thin over optax: gradient norms, the two scopes of clipping, and Polyak averaging."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fidec.types import Params

ClipScope = Literal["global", "module"]


def clip_gradients(grads: dict[str, Params], limit: float | None, scope: ClipScope) -> dict[str, Params]:
    """Scale gradients whose norm exceeds `limit`.

    `global` takes one norm over all modules, so a large critic gradient shrinks every other module's step as
    well; `module` clips each module by its own norm.
    """
    if limit is None:
        return grads

    def clip(tree):
        scale = jnp.minimum(1.0, limit / (optax.tree.norm(tree) + 1e-6))
        return jax.tree.map(lambda g: g * scale, tree)

    return clip(grads) if scope == "global" else {name: clip(tree) for name, tree in grads.items()}


def polyak(params: Params, target: Params, rate: float) -> Params:
    """target <- rate * params + (1 - rate) * target."""
    return optax.incremental_update(params, target, rate)
