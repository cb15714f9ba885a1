"""Optimisation with optax: steps on several modules, the two scopes of clipping, and Polyak averaging."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fidec.types import Metrics, Params

ClipScope = Literal["global", "module"]


def clip_gradients(grads: dict[str, Params], limit: float | None, scope: ClipScope) -> dict[str, Params]:
    """Scale gradients whose norm exceeds `limit`.

    `global` takes one norm over all modules, so a large critic gradient also shrinks the steps of all other modules.
    `module` clips each module by its own norm.
    """
    if limit is None:
        return grads

    def clip(tree):
        scale = jnp.minimum(1.0, limit / (optax.tree.norm(tree) + 1e-6))
        return jax.tree.map(lambda g: g * scale, tree)

    return clip(grads) if scope == "global" else {name: clip(tree) for name, tree in grads.items()}


def polyak(params: Params, target: Params, rate: float | jax.Array) -> Params:
    """target <- rate * params + (1 - rate) * target."""
    with jax.named_scope("polyak"):  # a name for profiles
        return optax.incremental_update(params, target, rate)


def gradients(
    losses: Mapping[str, Callable[[Params, dict[str, Params]], tuple[jax.Array, Metrics]]], params: dict[str, Params]
) -> tuple[dict[str, Params], Metrics]:
    """The gradient of each module's loss with respect to that module, all taken at `params`, and the metrics.

    A loss takes the module's own parameters, which are differentiated, and those of all modules, which are not.
    """
    grads, metrics, total = {}, {}, jnp.zeros(())
    for name, loss in losses.items():
        (value, info), grads[name] = jax.value_and_grad(loss, has_aux=True)(params[name], params)
        metrics |= {f"{name}_loss": value, **info, f"grad_norm/{name}": optax.tree.norm(grads[name])}
        total += value
    return grads, {**metrics, "loss": total}


Optimisers = optax.GradientTransformation | Mapping[str, optax.GradientTransformation]  # one for all, or by module


def optimiser_of(optimisers: Optimisers, module: str) -> optax.GradientTransformation:
    return optimisers[module] if isinstance(optimisers, Mapping) else optimisers


def step(
    optimisers: Optimisers,
    grads: Mapping[str, Params],
    params: dict[str, Params],
    states: dict[str, Any],
) -> tuple[dict[str, Params], dict[str, Any]]:
    """One step on the modules that have a gradient. The others and their optimiser states do not change."""
    params, states = dict(params), dict(states)
    with jax.named_scope("optimiser"):  # a name for profiles
        for name, grad in grads.items():
            updates, states[name] = optimiser_of(optimisers, name).update(grad, states[name], params[name])
            params[name] = optax.apply_updates(params[name], updates)
    return params, states
