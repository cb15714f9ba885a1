"""Denoising diffusion in T discrete steps, from data (before level 0) to noise (level T - 1).

    x_k = sqrt(abar_k) a + sqrt(1 - abar_k) z,    z ~ N(0, I),    abar_k = prod_{j <= k} (1 - beta_j),
    eps(x, k) = E[z | x_k = x].

A predictor is a function (x, k) -> eps with x of shape (..., d) and k, the level as a float, of shape (..., 1) or
(1,). It closes over the observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fidec.ops.values import weigh
from fidec.types import PRNGKey

Vector = Float[Array, "*batch d"]
Level = Int[Array, "*batch 1"] | Int[Array, ""] | int
Predictor = Callable[[Array, Array], Array]


class Schedule(NamedTuple):
    """beta_k and abar_k of each level, as NumPy constants."""

    beta: Float[np.ndarray, " t"]
    alpha_bar: Float[np.ndarray, " t"]

    def at(self, k: Level) -> tuple[Array, Array]:
        """beta_k and abar_k."""
        return jnp.asarray(self.beta)[k], jnp.asarray(self.alpha_bar)[k]


def vp_schedule(steps: int, b_min: float = 0.1, b_max: float = 10.0) -> Schedule:
    """The variance-preserving SDE with rate b(t) = b_min + (b_max - b_min) t, in equal steps.

    beta_k = 1 - exp(-b_min / T - (b_max - b_min) (2k + 1) / (2 T^2)),  k = 0, ..., T - 1
    """
    k = np.arange(steps, dtype=np.float64)
    beta = -np.expm1(-b_min / steps - 0.5 * (b_max - b_min) * (2 * k + 1) / steps**2)
    return Schedule(beta.astype(np.float32), np.cumprod(1.0 - beta).astype(np.float32))


def add_noise(schedule: Schedule, data: Vector, noise: Vector, k: Level) -> Vector:
    """x_k = sqrt(abar_k) a + sqrt(1 - abar_k) z."""
    _, alpha_bar = schedule.at(k)
    return jnp.sqrt(alpha_bar) * data + jnp.sqrt(1.0 - alpha_bar) * noise


def reverse_mean(schedule: Schedule, x: Vector, noise: Vector, k: Level) -> Vector:
    """The mean of x_{k-1} given x_k and the predicted noise; at level 0 the clean sample itself.

    (x - beta_k / sqrt(1 - abar_k) eps) / sqrt(1 - beta_k)
    """
    beta, alpha_bar = schedule.at(k)
    return (x - beta / jnp.sqrt(1.0 - alpha_bar) * noise) / jnp.sqrt(1.0 - beta)


def draw(
    schedule: Schedule, data: Float[Array, "b d"], key: PRNGKey
) -> tuple[Float[Array, "b d"], Float[Array, "b d"], Int[Array, "b 1"]]:
    """(x_k, z, k): each row noised to a random level, all levels equally likely."""
    noise_key, level_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, data.shape)
    k = jax.random.randint(level_key, (*data.shape[:-1], 1), 0, len(schedule.beta))
    return add_noise(schedule, data, noise, k), noise, k


def loss(
    schedule: Schedule,
    predictor: Predictor,
    data: Float[Array, "b d"],
    key: PRNGKey,
    weights: Float[Array, "b d"] | None = None,
) -> Float[Array, ""]:
    """The mean over the batch of w (eps(x_k, k) - z)^2, a sum over dimensions."""
    x, noise, k = draw(schedule, data, key)
    return jnp.mean(jnp.sum(weigh((predictor(x, k.astype(x.dtype)) - noise) ** 2, weights), axis=-1))


def sample(
    schedule: Schedule, predictor: Predictor, noise: Float[Array, "t *batch d"], limit: float | None = 1.0
) -> Vector:
    """Ancestral sampling: noise[0] is the start, and each step but the last adds a further noise.

    A step is the reverse mean plus sqrt(beta_k) z, clipped to [-limit, limit]; the last one adds no noise. A short
    loop is unrolled and a long one is not, as in `flow.sample`.
    """
    steps = len(schedule.beta)

    def step(x, now):
        k, fresh = now
        x = reverse_mean(schedule, x, predictor(x, k[None].astype(x.dtype)), k) + jnp.sqrt(schedule.at(k)[0]) * fresh
        return (x if limit is None else jnp.clip(x, -limit, limit)), None

    added = jnp.concatenate([noise[1:], jnp.zeros_like(noise[:1])])
    unroll = steps if steps <= 16 else 1
    return jax.lax.scan(step, noise[0], (jnp.arange(steps)[::-1], added), unroll=unroll)[0]


def regularisation_gradient(
    schedule: Schedule, predictor: Predictor, actions: Float[Array, "b d"], key: PRNGKey, subtract_noise: bool = False
) -> Float[Array, "b d"]:
    """SRPO's behaviour term: w_k eps(a_k, k) at a random level of each row, with w_k = 1 - abar_k.

    Its mean points away from the behaviour's mass, so a descent step along it moves actions towards the behaviour.
    The result has no gradient. Subtracting the added noise z, whose mean is zero, changes the variance only.
    """
    x, noise, k = draw(schedule, actions, key)
    predicted = predictor(x, k.astype(x.dtype)) - (noise if subtract_noise else 0.0)
    return jax.lax.stop_gradient((1.0 - schedule.at(k)[1]) * predicted)
