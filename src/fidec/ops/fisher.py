"""The penalty on a displacement delta: a quadratic form in a metric that the behaviour flow supplies.

    penalty = c * delta^T F delta,    F = (1/K) sum_k s_k s_k^T + rho I

F is never built: delta^T F delta = mean_k (s_k . delta)^2 + rho |delta|^2 and tr F = mean_k |s_k|^2 + rho d
need dot products only. The four metrics differ in their scores s_k:

- `isotropic`: F = I, DeFlow's metric;
- `local`: one score at the very action that is displaced, at time t_eps and without added noise (the paper);
- `renoised`: K scores at noised copies t a + (1 - t) z_k of that action, where the velocity field has been
  trained and where the mean outer product is of full rank;
- `released`: v / (1 - t), which is not the score, at noised copies of K fresh flow samples of the state (what
  the authors' code computes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.ops import flow
from fidec.types import PRNGKey

Metric = Literal["isotropic", "local", "renoised", "released"]
TraceScale = Literal["none", "unit", "dimension"]
Actions = Float[Array, "b d"]
Scores = Float[Array, "k b d"]


def draw_times(key: PRNGKey, shape: tuple[int, ...], t_eps: float, width: float) -> Array:
    """t_eps, or with a width a uniform draw from [t_eps - width, t_eps]; always inside (0, 1)."""
    if width == 0.0:
        return jnp.zeros(shape) + t_eps
    return jax.random.uniform(key, shape, minval=max(1e-3, t_eps - width), maxval=min(0.999, t_eps))


def local_scores(
    velocity: flow.Velocity, actions: Actions, key: PRNGKey, *, t_eps: float, width: float = 0.0
) -> Scores:
    """(t v(a, t) - a) / (1 - t) at the clean action: one score, so a metric of rank 1."""
    t = draw_times(key, (actions.shape[0], 1), t_eps, width)
    return flow.velocity_to_score(velocity(actions, t), actions, t)[None]


def _renoise(actions: Float[Array, "k b d"], key: PRNGKey, t_eps: float, width: float) -> tuple[Array, Array]:
    noise_key, time_key = jax.random.split(key)
    t = draw_times(time_key, (*actions.shape[:-1], 1), t_eps, width)
    return flow.interpolate(jax.random.normal(noise_key, actions.shape), actions, t), t


def renoised_scores(
    velocity: flow.Velocity, actions: Actions, key: PRNGKey, *, samples: int, t_eps: float, width: float = 0.0
) -> Scores:
    """The score at `samples` noised copies of each action. Costs no flow solve."""
    x, t = _renoise(jnp.broadcast_to(actions, (samples, *actions.shape)), key, t_eps, width)
    return flow.velocity_to_score(velocity(x, t), x, t)


def released_scores(
    velocity: flow.Velocity,
    sample: Callable[[Array], Array],
    shape: tuple[int, int],
    key: PRNGKey,
    *,
    samples: int,
    t_eps: float,
    width: float = 0.0,
) -> Scores:
    """v / (1 - t) at noised copies of fresh flow samples.

    `sample` carries noise of shape (samples, *shape) to actions: `samples` further solves for each state.
    """
    sample_key, noise_key = jax.random.split(key)
    fresh = sample(jax.random.normal(sample_key, (samples, *shape)))
    x, t = _renoise(fresh, noise_key, t_eps, width)
    return velocity(x, t) / jnp.maximum(1.0 - t, 1e-6)


def penalty(
    displacement: Actions,
    scores: Scores | None,
    *,
    damping: float,
    trace_scale: TraceScale,
    half: bool,
    per_dimension: bool,
) -> Float[Array, " b"]:
    """The penalty of each displacement; `scores` of None stands for the isotropic metric F = I.

    `trace_scale` divides F by its trace (`unit`: the trace becomes 1) or by its mean eigenvalue (`dimension`:
    the trace becomes d, so that F = I is left as it is), `half` takes 1/2 of the form, `per_dimension`
    divides by d. With `dimension` and `per_dimension` a multiple of the identity costs mean(delta^2), DeFlow's
    penalty: that puts the budgets of all metrics on one scale.
    """
    d = displacement.shape[-1]
    square = jnp.sum(displacement**2, axis=-1)
    if scores is None:
        form, trace = square, jnp.asarray(float(d))
    else:
        form = jnp.mean(jnp.sum(scores * displacement, axis=-1) ** 2, axis=0) + damping * square
        trace = jnp.mean(jnp.sum(scores**2, axis=-1), axis=0) + damping * d
    if trace_scale != "none":
        unit = trace if trace_scale == "unit" else trace / d
        form = form / jnp.maximum(unit, 1e-6)
    return form * ((0.5 if half else 1.0) / (d if per_dimension else 1))


def closed_form_displacement(
    value_gradient: Actions, score: Actions, *, multiplier: float | Array, damping: float
) -> Actions:
    """delta* = (1/lambda) (s s^T + rho I)^-1 grad_a Q, by Sherman-Morrison.

    (rho I + s s^T)^-1 g = (g - s (s . g) / (rho + |s|^2)) / rho
    """
    along = jnp.sum(score * value_gradient, axis=-1, keepdims=True)
    norm = jnp.sum(score**2, axis=-1, keepdims=True)
    return (value_gradient - score * along / (damping + norm)) / (damping * multiplier)
