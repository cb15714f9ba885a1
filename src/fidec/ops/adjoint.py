"""Adjoint matching: from the flow of a density beta to the flow of beta(a) exp(R(a)), by regression.

The memoryless SDE of a flow v has the marginals of its ODE, and its end does not depend on its start:

    dx = (2 v(x, t) - x / t) dt + sigma(t) dW,    sigma(t)^2 = 2 (1 - t) / t

The lean adjoint carries the gradient of R from the end of a path of v back through the drift of beta's flow v_beta:

    d lambda / dt = -J(x, t)^T lambda,    J = d (2 v_beta - x / t) / dx,    lambda(1) = -grad R(x_1)

and v is regressed on it,

    E |2 (v - v_beta) / sigma + sigma lambda|^2,    minimal at v = v_beta - sigma^2 / 2 E[lambda | x, t].

If the paths are those of v itself, the only fixed point of this regression is the flow of beta(a) exp(R(a)). No
gradient goes through a path. In steps of dt, all denominators are taken one step later, where t is not zero.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.ops.flow import Vector, Velocity, times
from fidec.types import PRNGKey

Points = Float[Array, "steps *batch d"]


class Path(NamedTuple):
    """A path of the SDE: the points at which its steps begin, their times, and the end."""

    points: Points
    times: Float[Array, "steps *batch 1"]
    end: Vector

    @property
    def dt(self) -> float:
        return 1.0 / len(self.points)

    @property
    def sigma(self) -> Float[Array, "steps *batch 1"]:
        return noise_level(self.times, self.dt)


def noise_level(t: Array, dt: float) -> Array:
    """sigma of the step from t to t + dt."""
    return jnp.sqrt(2.0 * (1.0 - t + dt) / (t + dt))


def sample_path(velocity: Velocity, last: Velocity, noise: Vector, key: PRNGKey, steps: int) -> Path:
    """Euler-Maruyama steps of the memoryless SDE of `velocity`. The last one is a step of the ODE of `last`."""
    dt = 1.0 / steps
    starts = jnp.arange(steps, dtype=noise.dtype) * dt
    shocks = jax.random.normal(key, (steps - 1, *noise.shape), noise.dtype)

    def step(x, at):
        t, shock = at
        drift = 2.0 * velocity(x, times(x, t)) - x / (t + dt)
        return x + dt * drift + dt**0.5 * noise_level(t, dt) * shock, x

    x, points = jax.lax.scan(step, noise, (starts[:-1], shocks), unroll=_unroll(steps - 1))
    points = jnp.concatenate([points, x[None]])
    columns = times(points, starts.reshape(-1, *(1,) * noise.ndim))
    return Path(points, columns, x + dt * last(x, columns[-1]))


def lean_adjoint(base: Velocity, path: Path, end: Vector) -> Points:
    """lambda at the path's points, from lambda = `end` at its end, through the drift of `base`."""

    def step(adjoint, at):
        x, t = at
        later = t + path.dt
        _, pull = jax.vjp(lambda x: 2.0 * base(x, later) - x / later, x)
        adjoint = adjoint + path.dt * pull(adjoint)[0]
        return adjoint, adjoint

    steps = len(path.points)
    return jax.lax.scan(step, end, (path.points, path.times), reverse=True, unroll=_unroll(steps))[1]


def matching_loss(
    velocity: Velocity, base: Velocity, path: Path, adjoints: Points
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss of `velocity`, and its KL from `base` over whole paths, in nats.

    The loss is a sum over steps and dimensions and a mean over the batch. The KL is that of the two SDEs in steps of
    dt, and bounds the KL of their ends.
    """
    control = 2.0 * (velocity(path.points, path.times) - base(path.points, path.times)) / path.sigma
    total = lambda squares: jnp.mean(jnp.sum(squares, axis=(0, -1)))  # noqa: E731
    return total((control + path.sigma * adjoints) ** 2), 0.5 * path.dt * total(control**2)


def _unroll(steps: int) -> int:
    """Short loops are unrolled, as in `flow.sample`."""
    return max(steps, 1) if steps <= 16 else 1
