"""Formulas of the constraints on a displacement delta, computed from the behaviour flow's score.

Quadratic forms c * delta^T F delta with F = (1/K) sum_k s_k s_k^T + rho I. F is never built, because
delta^T F delta = mean_k (s_k . delta)^2 + rho |delta|^2 and tr F = mean_k |s_k|^2 + rho d need dot products only.

The cost of a shift in nats by the behaviour's own width: 1/2 delta^T P delta with P the precision of samples of the
behaviour (`precision`, `shift_cost`).

Estimates of KL(refined || behaviour) in nats: `stein`, `path` and `denoising`.

`fidec.algos.constraints` builds constraints from these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fidec.ops import flow, jacobian
from fidec.types import PRNGKey

Scale = Literal["mean", "half_trace", "half"]
Actions = Float[Array, "b d"]
Scores = Float[Array, "k b d"]
Time = float | Array
ScoreFunction = Callable[[Array, PRNGKey], Array]


def draw_times(key: PRNGKey, shape: tuple[int, ...], t_eps: Time, width: float) -> Array:
    """t_eps, or with a positive width a uniform draw from [t_eps - width, t_eps]; always inside (0, 1)."""
    if width == 0.0:
        return jnp.zeros(shape) + t_eps
    low, high = jnp.maximum(1e-3, t_eps - width), jnp.minimum(0.999, t_eps)
    return jax.random.uniform(key, shape, minval=low, maxval=high)


def local_scores(
    velocity: flow.Velocity, actions: Actions, key: PRNGKey, *, t_eps: Time, width: float = 0.0
) -> Scores:
    """(t v(a, t) - a) / (1 - t) at the clean action: one score, so a metric of rank 1."""
    t = draw_times(key, (actions.shape[0], 1), t_eps, width)
    return flow.velocity_to_score(velocity(actions, t), actions, t)[None]


def _renoise(actions: Float[Array, "k b d"], key: PRNGKey, t_eps: Time, width: float) -> tuple[Array, Array]:
    noise_key, time_key = jax.random.split(key)
    t = draw_times(time_key, (*actions.shape[:-1], 1), t_eps, width)
    return flow.interpolate(jax.random.normal(noise_key, actions.shape), actions, t), t


def renoised_scores(
    velocity: flow.Velocity, actions: Actions, key: PRNGKey, *, samples: int, t_eps: Time, width: float = 0.0
) -> Scores:
    """The score at `samples` noised copies of each action. It needs no flow solve."""
    x, t = _renoise(jnp.broadcast_to(actions, (samples, *actions.shape)), key, t_eps, width)
    return flow.velocity_to_score(velocity(x, t), x, t)


def state_points(
    sample: Callable[[Array], Array],
    shape: tuple[int, ...],
    key: PRNGKey,
    *,
    samples: int,
    t_eps: Time,
    width: float = 0.0,
) -> tuple[Scores, Float[Array, "k b 1"]]:
    """Noised copies of fresh flow samples of the state, and their times.

    `sample` maps noise of shape (samples, *shape) to actions: `samples` further solves for each state.
    """
    sample_key, noise_key = jax.random.split(key)
    fresh = sample(jax.random.normal(sample_key, (samples, *shape)))
    return _renoise(fresh, noise_key, t_eps, width)


def penalty(
    displacement: Actions, scores: Scores | None, *, damping: float = 0.0, scale: Scale = "mean"
) -> Float[Array, " b"]:
    """c delta^T F delta for each displacement; `scores` of None means F = I.

    - `mean`: c = 1 / tr F. For a multiple of the identity it is mean(delta^2), DeFlow's penalty. So the budgets of
      all quadratic constraints have one scale.
    - `half_trace`: c = 1 / (2 tr F), the paper's.
    - `half`: c = 1 / 2, the second-order KL of a rigid shift.
    """
    d = displacement.shape[-1]
    square = jnp.sum(displacement**2, axis=-1)
    if scores is None:
        form, trace = square, jnp.asarray(float(d))
    else:
        form = jnp.mean(jnp.sum(scores * displacement, axis=-1) ** 2, axis=0) + damping * square
        trace = jnp.mean(jnp.sum(scores**2, axis=-1), axis=0) + damping * d
    match scale:
        case "mean":  # F is divided by its mean eigenvalue, and the form by d
            return form / jnp.maximum(trace / d, 1e-6) * (1.0 / d)
        case "half_trace":
            return form / jnp.maximum(trace, 1e-6) * 0.5
        case "half":
            return form * 0.5


def natural_direction(value_gradient: Actions, scores: Scores | None, *, damping: float) -> Actions:
    """F^-1 grad_a Q, the direction with the largest increase of Q for a given value of the quadratic form.

    One score: Sherman-Morrison, (rho I + s s^T)^-1 g = (g - s (s . g) / (rho + |s|^2)) / rho. Several: a solve.
    """
    if scores is None:
        return value_gradient
    samples, _, d = scores.shape
    if samples == 1:
        score = scores[0]
        along = jnp.sum(score * value_gradient, axis=-1, keepdims=True)
        norm = jnp.sum(score**2, axis=-1, keepdims=True)
        return (value_gradient - score * along / (damping + norm)) / damping
    form = jnp.einsum("kbi,kbj->bij", scores, scores) / samples + damping * jnp.eye(d)
    return jnp.linalg.solve(form, value_gradient[..., None])[..., 0]


def precision(samples: Float[Array, "b m d"], *, floor: float) -> Float[Array, "b d"]:
    """The inverse variance of m samples of each state, by action dimension. No width is below `floor`.

    It is unbiased for a Gaussian: of m samples, 1 / s^2 is (m - 1) / (m - 3) times too large on average.
    """
    m = samples.shape[-2]
    if m < 4:
        raise ValueError(f"a width needs at least 4 samples of a state, not {m}")
    correction = (m - 3) / (m - 1)
    variance = jnp.var(samples, axis=-2, ddof=1) / correction
    return 1.0 / jnp.maximum(variance, floor**2)


def shift_cost(displacement: Actions, precision: Float[Array, "b d"]) -> Float[Array, " b"]:
    """1/2 delta^T P delta: the KL in nats between a Gaussian of diagonal precision P and the same moved by delta."""
    return 0.5 * jnp.sum(precision * displacement**2, axis=-1)


def scaled_score(velocity: flow.Velocity, t_eps: Time, width: float = 0.0) -> ScoreFunction:
    """The gradient of log p with respect to the action: t s_t(t a), with an error of order (1 - t)^2.

    p_t at t a corresponds to p at a. The error of s_t(a) would be of order 1 - t, because p_t is centred at t a:
    where the behaviour is narrower than 1 - t, s_t(a) is mostly -a / (1 - t).
    """

    def score(points: Actions, key: PRNGKey) -> Scores:
        t = draw_times(key, (points.shape[0], 1), t_eps, width)
        return t * flow.velocity_to_score(velocity(t * points, t), t * points, t)[None]

    return score


def stein(
    field: jacobian.Field,
    points: Actions,
    score: ScoreFunction,
    key: PRNGKey,
    *,
    exact_up_to: int = 8,
    probes: int = 2,
) -> Float[Array, " b"]:
    """1/2 (div delta + s . delta)^2 in nats, with s the mean over scores.

    Above `exact_up_to` dimensions the divergence is estimated twice, with different probes, and the two Stein terms
    are multiplied. This is unbiased; the square of one estimate would add its variance.
    """
    score_key, *keys = jax.random.split(key, 3)
    if points.shape[-1] <= exact_up_to:
        displacement, matrix = jacobian.value_and_jacobian(field, points)
        divergences = [jnp.trace(matrix, axis1=-2, axis2=-1)] * 2
    else:
        displacement = field(points)
        half = max(1, probes // 2)
        several = jax.vmap(lambda k: jacobian.divergence(field, points, k))
        divergences = [several(jax.random.split(k, half)).mean(axis=0) for k in keys]
    along = jnp.sum(score(points, score_key).mean(axis=0) * displacement, axis=-1)
    return 0.5 * (divergences[0] + along) * (divergences[1] + along)


def path(
    field: jacobian.Field,
    points: Actions,
    score: ScoreFunction,
    key: PRNGKey,
    *,
    nodes: int = 3,
    centred: bool = False,
    exact_up_to: int = 8,
    probes: int = 1,
) -> Float[Array, " b"]:
    """-int_0^1 s(a + u delta) . delta du - log|det(I + J)|. Its mean over a is the KL in nats.

    The first term is log p(a) - log p(a + delta), by `nodes` Gauss-Legendre nodes. No density is needed. The value is
    exact for polynomial scores of degree 2 nodes - 1 along the path. `centred` subtracts s(a) . delta + tr J, whose
    mean is zero by Stein's identity if s is the score of the density of a.
    """
    score_key, volume_key = jax.random.split(key)
    displacement, divergence, log_determinant = jacobian.volume(
        field, points, volume_key, exact_up_to=exact_up_to, probes=probes
    )
    places, weights = np.polynomial.legendre.leggauss(nodes)
    integral = jnp.zeros_like(log_determinant)
    for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
        along = score(points + place * displacement, score_key).mean(axis=0)
        integral += weight * jnp.sum(along * displacement, axis=-1)
    if not centred:
        return -integral - log_determinant
    start = jnp.sum(score(points, score_key).mean(axis=0) * displacement, axis=-1)
    return start - integral + divergence - log_determinant


def log_snr(t: Time) -> Time:
    """log (t / (1 - t))^2 of the linear path."""
    return 2.0 * (jnp.log(t) - jnp.log1p(-t))


def denoising(
    field: jacobian.Field,
    points: Actions,
    velocity: flow.Velocity,
    key: PRNGKey,
    *,
    t_eps: Time,
    t_start: float = 0.05,
    samples: int = 4,
    exact_up_to: int = 8,
    probes: int = 1,
) -> Float[Array, " b"]:
    """log p(a) - log p(a + delta) - log|det(I + J)| in nats, with log p by denoising at all noise levels.

    -log p(a) = 1/2 int E_z |z - E[z | x_t]|^2 d log snr(t) + a constant, x_t = t a + (1 - t) z. This is the training
    bound of diffusion models, tight for an exact field. a and a + delta share their noise and `samples` levels, which
    are stratified over log snr between t_start and t_eps. The noise at t_eps smooths the density.
    """
    noise_key, level_key, volume_key = jax.random.split(key, 3)
    displacement, _, log_determinant = jacobian.volume(
        field, points, volume_key, exact_up_to=exact_up_to, probes=probes
    )
    low, high = log_snr(jnp.asarray(t_start)), log_snr(jnp.asarray(t_eps))
    strata = jnp.arange(samples)[:, None, None] + jax.random.uniform(level_key, (samples, points.shape[0], 1))
    t = jax.nn.sigmoid(0.5 * (low + (high - low) * strata / samples))
    noise = jax.random.normal(noise_key, (samples, *points.shape))
    # Antithetic noise: the terms that are odd in it, most of the variance, cancel.
    noise, t = jnp.concatenate([noise, -noise]), jnp.concatenate([t, t])

    def errors(actions):
        x = flow.interpolate(noise, actions, t)
        return jnp.sum((noise - flow.velocity_to_noise(velocity(x, t), x, t)) ** 2, axis=-1).mean(axis=0)

    increase = errors(points + displacement) - errors(points)
    return 0.5 * (high - low) * increase - log_determinant


# Distances 1 - t among which `choose_time` chooses, a factor of about 1.4 apart.
DISTANCES = (0.5, 0.35, 0.25, 0.18, 0.125, 0.09, 0.06, 0.045, 0.03, 0.02, 0.015, 0.01)


def score_matching(score: ScoreFunction, actions: Actions, key: PRNGKey, *, exact_up_to: int = 8) -> Float[Array, ""]:
    """E[1/2 |s|^2 + div s] over actions of the data.

    Integration by parts gives 1/2 E|s - grad log p|^2 plus a constant of the data (Hyvarinen 2005). So it ranks
    estimates of the score by their error, without a known density.
    """
    score_key, probe_key = jax.random.split(key)
    field = lambda a: score(a, score_key).mean(axis=0)  # noqa: E731
    if actions.shape[-1] <= exact_up_to:
        value, matrix = jacobian.value_and_jacobian(field, actions)
        divergence = jnp.trace(matrix, axis1=-2, axis2=-1)
    else:
        value, divergence = field(actions), jacobian.divergence(field, actions, probe_key)
    return jnp.mean(0.5 * jnp.sum(value**2, axis=-1) + divergence)


def choose_time(
    velocity: flow.Velocity, actions: Actions, key: PRNGKey
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """The time with the smallest score-matching loss, and the loss of each time 1 - DISTANCES."""
    candidates = 1.0 - jnp.asarray(DISTANCES, actions.dtype)
    loss = lambda t: score_matching(scaled_score(velocity, t), actions, key)  # noqa: E731
    losses = jax.lax.map(loss, candidates)
    return candidates[jnp.argmin(losses)], losses
