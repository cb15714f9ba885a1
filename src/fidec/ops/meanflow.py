"""Mean flows: flows that take a large step at once, because they learn the mean velocity over an interval of time.

    u(x, t, r) = 1 / (r - t) * integral over [t, r] of v(x_s, s) ds,    x_s the flow's path through x at time t

On the path, d/dt [(r - t) u] = -v. This is the identity that trains u without an integral:

    u = v + (r - t) du/dt,    du/dt = (v . grad_x) u + d_t u.

A network gives g(x, t, r) = x + u(x, t, r), so that g(z, 0, 1) is the action of the noise z. In terms of g:

    g = x + v + (r - t) (dg/dt - v).

A mean flow is a function (x, t, r) -> g with x of shape (..., d) and times of shape (..., 1), t <= r.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fidec.types import PRNGKey

MeanFlow = Callable[[Array, Array, Array], Array]
Time = Float[Array, "b 1"]


def on_sphere(x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
    """x with norm sqrt(d), the radius at which a Gaussian concentrates in many dimensions; zero stays zero."""
    return x * jnp.sqrt(x.shape[-1] / (jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6))


def draw_times(key: PRNGKey, rows: int, share: float) -> tuple[Time, Time]:
    """Times t <= r, logit-normal; t = r for all rows but a `share` of them, which are spread evenly over the batch.

    Where t = r, the identity is plain flow matching. A batch of two sources has their rows one after the other, so
    the share must not be at its end.
    """
    draws = jax.nn.sigmoid(0.4 - jax.random.normal(key, (2, rows, 1)))
    t, r = draws.min(axis=0), draws.max(axis=0)
    number, count = np.arange(rows)[:, None], rows - int(rows * (1.0 - share))
    interval = (number + 1) * count // rows > number * count // rows
    return t, jnp.where(interval, r, t)


def value_and_target(
    mean_flow: MeanFlow, x: Float[Array, "b d"], velocity: Float[Array, "b d"], t: Time, r: Time
) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
    """g and the right side of its identity, which has no gradient, for the velocity at x."""
    g, change = jax.jvp(mean_flow, (x, t, r), (velocity, jnp.ones_like(t), jnp.zeros_like(r)))
    return g, jax.lax.stop_gradient(x + velocity + (r - t) * (change - velocity))


def adaptive_loss(errors: Float[Array, " b"]) -> Float[Array, ""]:
    """The mean of e / sqrt(e + 0.001), the root without a gradient: rows with a large squared error e count less."""
    return jnp.mean(errors / jax.lax.stop_gradient(jnp.sqrt(errors + 1e-3)))
