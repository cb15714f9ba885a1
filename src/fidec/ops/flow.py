"""The linear path between noise and data, and its flow.

    x_t = (1 - t) z + t a,    z ~ N(0, I),    t = 0 is noise, t = 1 is data,
    v(x, t) = E[a - z | x_t = x].

A velocity is a function (x, t) -> v with x of shape (..., d) and t of shape (..., 1). It closes over the observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.ops.values import weigh
from fidec.types import PRNGKey

Vector = Float[Array, "*#batch d"]  # leading axes are broadcast
Time = Float[Array, "*#batch #d"] | Float[Array, ""] | float
Velocity = Callable[[Array, Array], Array]


def interpolate(noise: Vector, data: Vector, t: Time) -> Float[Array, "... d"]:
    """x_t = (1 - t) z + t a."""
    return (1.0 - t) * noise + t * data


def target_velocity(noise: Vector, data: Vector) -> Float[Array, "... d"]:
    """The velocity a - z of the path. The flow learns its conditional mean."""
    return data - noise


# Conversions. From v = E[a - z | x] and x = (1 - t) E[z | x] + t E[a | x] follows E[z | x] = x - t v. The score of
# p_t is -E[z | x] / (1 - t), because x given a is N(t a, (1 - t)^2 I).


def velocity_to_noise(velocity: Vector, x: Vector, t: Time) -> Float[Array, "... d"]:
    """E[z | x_t = x] = x - t v."""
    return x - t * velocity


def velocity_to_score(velocity: Vector, x: Vector, t: Time) -> Float[Array, "... d"]:
    """grad log p_t(x) = (t v - x) / (1 - t). Needs t < 1."""
    return (t * velocity - x) / (1.0 - t)


def times(x: Array, t: Array | float) -> Array:
    """The time t as a column for x. `jnp.full` is not used, because exporters reject it for symbolic shapes."""
    return jnp.zeros_like(x[..., :1]) + t


def path_residual(velocity: Velocity, noise: Vector, data: Vector, t: Array) -> Float[Array, "... d"]:
    """v(x_t, t) - (a - z). It is zero at all t if the flow goes from z to a in a straight line."""
    return velocity(interpolate(noise, data, t), t) - target_velocity(noise, data)


def matching_loss(
    velocity: Velocity, actions: Float[Array, "b d"], key: PRNGKey, weights: Float[Array, "b d"] | None = None
) -> Float[Array, ""]:
    """Flow matching: the mean over batch and dimensions of w (v(x_t, t) - (a - z))^2, t ~ U[0, 1]."""
    return jnp.mean(weigh(_matching_residual(velocity, actions, key) ** 2, weights))


def matching_errors(
    velocity: Velocity, actions: Float[Array, "b d"], key: PRNGKey, weights: Float[Array, "b d"] | None = None
) -> Float[Array, " b"]:
    """The flow-matching error of each action, a mean over its dimensions, for weighted losses."""
    return jnp.mean(weigh(_matching_residual(velocity, actions, key) ** 2, weights), axis=-1)


def _matching_residual(velocity: Velocity, actions: Float[Array, "b d"], key: PRNGKey) -> Float[Array, "b d"]:
    noise_key, time_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, actions.shape)
    t = jax.random.uniform(time_key, (*actions.shape[:-1], 1))
    return path_residual(velocity, noise, actions, t)


def sample(
    velocity: Velocity, noise: Vector, steps: int = 10, method: Literal["euler", "heun"] = "euler"
) -> Float[Array, "... d"]:
    """Integrate the velocity from noise at t = 0 to t = 1, in `steps` equal steps.

    Ten Euler steps are part of the methods' definition and not an approximation. A step of Heun's method costs twice
    as much. A short loop is unrolled, so that XLA fuses across the steps and its cost analysis counts each of them. A
    long one is not, because compilation would take minutes.
    """
    dt = 1.0 / steps

    def step(x, i):
        t = i * dt
        v = velocity(x, times(x, t))
        if method == "heun":
            v = 0.5 * (v + velocity(x + dt * v, times(x, t + dt)))
        return x + dt * v, None

    unroll = steps if steps <= 16 else 1
    return jax.lax.scan(step, noise, jnp.arange(steps, dtype=noise.dtype), unroll=unroll)[0]


def divergence(velocity: Velocity, x: Float[Array, "b d"], t: Array) -> tuple[Array, Float[Array, " b"]]:
    """v(x, t) and its exact divergence, by one forward derivative for each of the d dimensions."""

    def value_and_trace(x_row, t_row):
        field = lambda y: velocity(y[None], t_row[None])[0]  # noqa: E731
        basis = jnp.eye(x_row.shape[-1], dtype=x_row.dtype)
        values, columns = jax.vmap(lambda e: jax.jvp(field, (x_row,), (e,)))(basis)
        return values[0], jnp.trace(columns)

    return jax.vmap(value_and_trace)(x, t)


def log_density(velocity: Velocity, x: Float[Array, "b d"], steps: int = 100) -> Float[Array, " b"]:
    """log p_1(x) by the instantaneous change of variables, integrated from data back to noise.

        log p_1(x_1) = log N(x_0; 0, I) - integral over [0, 1] of div v(x_t, t) dt

    Heun's method on (x, log p) with `steps` equal steps. The error is of second order in the step.
    """
    dt = 1.0 / steps

    def step(carry, i):
        y, integral = carry
        t = times(y, 1.0 - i * dt)
        v0, div0 = divergence(velocity, y, t)
        v1, div1 = divergence(velocity, y - dt * v0, t - dt)
        return (y - 0.5 * dt * (v0 + v1), integral + 0.5 * dt * (div0 + div1)), None

    start = (x, jnp.zeros(x.shape[0], x.dtype))
    (origin, integral), _ = jax.lax.scan(step, start, jnp.arange(steps, dtype=x.dtype))
    return jnp.sum(jax.scipy.stats.norm.logpdf(origin), axis=-1) - integral
