"""Consistency models: a function that maps a noisy action at any noise level to the clean one, in one step.

    x_sigma = a + sigma z,    z ~ N(0, I),    sigma in [0.002, 80],
    f(x, sigma) = c_skip(sigma) x + c_out(sigma) F(x, sigma),    f(x, 0.002) = x for every F.

F is a function (x, sigma) -> array with x of shape (..., d) and sigma of shape (..., 1). It closes over the
observation. Training makes neighbouring noise levels of one path give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fidec.ops.values import weigh
from fidec.types import PRNGKey

SIGMA_MIN, SIGMA_MAX = 0.002, 80.0
SIGMA_DATA = 0.5  # assumed standard deviation of the data
RHO = 7.0  # a larger value puts more levels near SIGMA_MIN
FEWEST, MOST = 2, 150  # number of levels at the start and at the end of the schedule

Network = Callable[[Array, Array], Array]


def c_skip(sigma: Array) -> Array:
    """sd^2 / ((sigma - sigma_min)^2 + sd^2): 1 at the smallest level, 0 for large sigma."""
    return SIGMA_DATA**2 / ((sigma - SIGMA_MIN) ** 2 + SIGMA_DATA**2)


def c_out(sigma: Array) -> Array:
    """sd (sigma - sigma_min) / sqrt(sigma^2 + sd^2): 0 at the smallest level, sd for large sigma."""
    return SIGMA_DATA * (sigma - SIGMA_MIN) / jnp.sqrt(sigma**2 + SIGMA_DATA**2)


def consistent(network: Network) -> Network:
    """f for a network F. The boundary condition holds by construction."""
    return lambda x, sigma: c_skip(sigma) * x + c_out(sigma) * network(x, sigma)


def level(i: Array | int, number: Array | int) -> Array:
    """sigma_i of `number` levels (Karras): evenly spaced in sigma^(1/7) from 0.002 (i = 0) to 80 (i = number - 1).

    A formula, not a table, because under jit the number of levels is a function of the step.
    """
    low, high = SIGMA_MIN ** (1.0 / RHO), SIGMA_MAX ** (1.0 / RHO)
    part = jnp.asarray(i, jnp.float32) / (jnp.asarray(number, jnp.float32) - 1.0)
    return (low + part * (high - low)) ** int(RHO)


def schedule(step: Array | int, steps: int, restart: bool = True) -> Array:
    """The number of levels after `step` updates, ceil(sqrt(k/K (150^2 - 2^2) + 2^2) - 1) + 1, from 2 to 150.

    With `restart` k counts within blocks of K = `steps` updates, otherwise it stops there.
    """
    k = jnp.asarray(step) % steps if restart else jnp.minimum(step, steps)
    square = k.astype(jnp.float32) / steps * (MOST**2 - FEWEST**2) + FEWEST**2
    number = jnp.ceil(jnp.sqrt(square) - 1.0).astype(jnp.int32) + 1
    return jnp.clip(number, FEWEST, MOST)


def loss(
    online: Network,
    average: Network,
    actions: Float[Array, "b d"],
    number: Array | int,
    key: PRNGKey,
    scaled: bool = True,
    weights: Float[Array, "b d"] | None = None,
) -> Float[Array, ""]:
    """E w (f(a + sigma_{i+1} z, sigma_{i+1}) - fbar(a + sigma_i z, sigma_i))^2, a mean over batch and dimensions.

    `online` and `average` are consistency functions; the second has averaged parameters and no gradient.
    i ~ U{0, ..., number - 2} and z are drawn for each action. `scaled` weights by w = 100 / (sigma_{i+1} - sigma_i),
    otherwise w = 1. `weights` are factors of the errors.
    """
    level_key, noise_key = jax.random.split(key)
    i = jax.random.randint(level_key, (*actions.shape[:-1], 1), 0, number - 1)
    noise = jax.random.normal(noise_key, actions.shape)
    low, high = level(i, number), level(i + 1, number)
    target = jax.lax.stop_gradient(average(actions + low * noise, low))
    errors = weigh((online(actions + high * noise, high) - target) ** 2, weights)
    return jnp.mean(errors * 100.0 / (high - low) if scaled else errors)


def sample(function: Network, noise: Float[Array, "steps *batch d"], sigmas: Sequence[float]) -> Array:
    """Map noise of the first level to an action; each further level adds noise to the last result and maps again.

    a = f(sigma_1 z_1, sigma_1), then a = f(a + sqrt(sigma_k^2 - sigma_min^2) z_k, sigma_k). Gradients go
    through all steps. The result is not clipped.
    """
    first, *rest = sigmas
    columns = jnp.zeros_like(noise[0, ..., :1])
    x = function(first * noise[0], columns + first)
    for z, sigma in zip(noise[1:], rest, strict=True):
        x = function(x + (sigma**2 - SIGMA_MIN**2) ** 0.5 * z, columns + sigma)
    return x
