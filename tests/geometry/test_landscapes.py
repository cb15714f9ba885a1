"""The six landscapes: density, samples, modes, support and value agree with each other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.errors import ConfigError
from fidec.geometry.landscapes import LANDSCAPES, OFF_SUPPORT, get

N = 4000
LINE = np.linspace(-1.25, 1.25, 101)
GRID = np.stack(np.meshgrid(LINE, LINE), -1).reshape(-1, 2)
FAR = 50.0 * np.asarray([[1.0, 0.3], [-1.0, 1.0], [0.2, -1.0], [-0.7, -0.7]])


@pytest.mark.parametrize("name", LANDSCAPES)
def test_density_samples_modes_and_value_agree(name):
    landscape = get(name)
    assert landscape.name == name

    @jax.jit
    def measure(key: jax.Array):
        a = jnp.concatenate([landscape.sample(key, N), GRID, FAR])
        functions = landscape.log_density, landscape.off_support, landscape.mode_of, landscape.value
        return a, *(function(a) for function in functions)

    parts = [np.split(np.asarray(x), [N, N + len(GRID)]) for x in measure(jax.random.key(3))]
    data, grid, far = ([part[i] for part in parts] for i in range(3))
    points, _, off, mode, value = data
    # The density integrates to one and its tails are finite.
    assert np.exp(grid[1]).sum() * (LINE[1] - LINE[0]) ** 2 == pytest.approx(1.0, abs=1e-4)
    assert np.isfinite(far[1]).all()
    # The data is on the support and inside the action bounds; far points are off the support.
    assert off.mean() < 0.002
    assert (np.abs(points) > 1).any(-1).mean() < 0.002
    assert far[2].all()
    # The shares of the modes are their weights.
    count = len(landscape.mode_names)
    weights = np.bincount(landscape.modes, landscape.weights, minlength=count)
    assert (weights > 0).all()
    np.testing.assert_allclose(np.bincount(mode, minlength=count) / N, weights, atol=0.035)
    # The highest value inside the bounds is off the support.
    assert -0.1 < value.min() < value.max() < 1.2
    box = (np.abs(GRID) <= 1).all(-1)
    assert grid[4][box & grid[2]].max() > grid[4][box & ~grid[2]].max()


def test_off_support_is_four_standard_deviations():
    landscape = get("bimodal")
    x = 0.45 + jnp.asarray([3.99, 4.01, jnp.nan]) * 0.08
    points = jnp.stack([x, jnp.zeros(3)], -1)
    np.testing.assert_allclose(landscape.distance(points)[:2], [3.99, 4.01], rtol=1e-5)
    assert landscape.off_support(points).tolist() == [False, True, True]
    assert OFF_SUPPORT == 4.0


def test_the_saddle_is_a_saddle_of_the_value_between_the_modes():
    landscape = get("saddle")
    derivatives = jax.jit(lambda a: (jax.grad(landscape.value)(a), jax.hessian(landscape.value)(a)))
    point = np.asarray([0.15, 0.1])
    for _ in range(20):
        gradient, hessian = (np.asarray(x) for x in derivatives(jnp.asarray(point)))
        point = point - np.linalg.solve(hessian, gradient)
    low, high = np.linalg.eigvalsh(hessian)
    np.testing.assert_allclose(gradient, 0, atol=1e-5)
    assert low < -0.1
    assert high > 0.1
    ends = landscape.means
    share = float((point - ends[0]) @ (ends[1] - ends[0]) / np.sum((ends[1] - ends[0]) ** 2))
    assert 0.2 < share < 0.8
    assert np.linalg.norm(point - ends.mean(0)) > 0.1


def test_the_thin_manifold_is_a_ring_of_the_stated_thickness():
    radius = np.linalg.norm(get("thin").sample(jax.random.key(0), N), axis=-1)
    assert radius.mean() == pytest.approx(0.7, abs=0.01)
    assert radius.std() == pytest.approx(0.03, abs=0.003)


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(ConfigError, match="did you mean crescent"):
        get("cresent")
