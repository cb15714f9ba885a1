"""The six landscapes: density, score, samples and supports agree with each other."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from fidec.errors import ConfigError
from fidec.geometry.landscapes import LANDSCAPES, OFF_SUPPORT, Landscape, get

N = 20_000
LINE = np.linspace(-1.25, 1.25, 201)
GRID = np.stack(np.meshgrid(LINE, LINE), -1).reshape(-1, 2)
FAR = 50.0 * np.asarray([[1.0, 0.3], [-1.0, 1.0], [0.2, -1.0], [-0.7, -0.7]])


class Measured(NamedTuple):
    points: np.ndarray
    log_density: np.ndarray
    score: np.ndarray
    off: np.ndarray
    mode: np.ndarray
    value: np.ndarray
    slope: np.ndarray  # the gradient of the value


class Case(NamedTuple):
    landscape: Landscape
    data: Measured
    grid: Measured
    far: Measured


@functools.cache
def measured(name: str) -> Case:
    """Everything about samples, a grid and far points, compiled once a landscape."""
    landscape = get(name)

    @jax.jit
    def measure(key: jax.Array) -> Measured:
        a = jnp.concatenate([landscape.sample(key, N), GRID, FAR])
        slope = jax.vmap(jax.grad(landscape.value))(a)
        marks = landscape.off_support(a), landscape.mode_of(a), landscape.value(a)
        return Measured(a, landscape.log_density(a), landscape.score(a), *marks, slope)

    found = [np.asarray(x) for x in measure(jax.random.key(3))]
    parts = np.split(np.arange(len(found[0])), [N, N + len(GRID)])
    return Case(landscape, *(Measured(*(x[part] for x in found)) for part in parts))


@pytest.fixture(params=sorted(LANDSCAPES))
def case(request: pytest.FixtureRequest) -> Case:
    return measured(request.param)


def reference(landscape: Landscape, points: np.ndarray) -> np.ndarray:
    """The log-density in float64, by scipy."""
    rows = zip(landscape.means, landscape.covariances, landscape.weights, strict=True)
    parts = [np.log(w) + multivariate_normal(m, c).logpdf(points) for m, c, w in rows]  # type: ignore[arg-type]
    return logsumexp(parts, axis=0)


def test_there_are_six():
    assert set(LANDSCAPES) == {"bimodal", "thin", "saddle", "hotspot", "lobes", "crescent"}
    assert all(name == landscape.name for name, landscape in LANDSCAPES.items())


def test_density_integrates_to_one(case: Case):
    assert np.exp(case.grid.log_density).sum() * (LINE[1] - LINE[0]) ** 2 == pytest.approx(1.0, abs=1e-4)


def test_log_density_is_scipys(case: Case):
    for found in (case.data, case.grid, case.far):
        np.testing.assert_allclose(found.log_density, reference(case.landscape, found.points), rtol=2e-4, atol=2e-4)


def test_score_is_the_gradient_of_the_log_density(case: Case):
    h = 1e-5
    for found in (case.data, case.grid, case.far):
        points, score = found.points[::50].astype(np.float64), found.score[::50]
        for i, step in enumerate(h * np.eye(2)):
            ahead, behind = reference(case.landscape, points + step), reference(case.landscape, points - step)
            np.testing.assert_allclose(score[:, i], (ahead - behind) / (2 * h), rtol=1e-3, atol=2e-2)


def test_the_far_tails_are_finite_and_point_home(case: Case):
    assert np.isfinite(case.far.log_density).all()
    assert np.isfinite(case.far.score).all()
    assert (np.sum(case.far.score * FAR, axis=-1) < 0).all()
    assert case.far.off.all()


def test_sample_moments_are_those_of_the_mixture(case: Case):
    weights, means = case.landscape.weights, case.landscape.means
    mean = weights @ means
    covariance = np.einsum("k,kij->ij", weights, case.landscape.covariances)
    covariance += np.einsum("k,ki,kj->ij", weights, means - mean, means - mean)
    # Standard errors are below 0.005 and 0.004 here.
    np.testing.assert_allclose(case.data.points.mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(case.data.points.T), covariance, atol=0.015)


def test_samples_have_the_density_they_claim(case: Case):
    """Stein's identity, E[s . a] = -2 in the plane, holds only if score and samples belong to one density."""
    inner = np.sum(case.data.score * case.data.points, axis=-1)
    assert inner.mean() == pytest.approx(-2.0, abs=5 * inner.std() / np.sqrt(N))


def test_data_are_on_the_support(case: Case):
    assert case.data.off.mean() < 0.001
    assert (np.abs(case.data.points) > 1).any(-1).mean() < 0.001


def test_off_support_is_four_standard_deviations():
    landscape = get("bimodal")
    edge = 0.45 + jnp.asarray([3.99, 4.01]) * 0.08
    points = jnp.stack([edge, jnp.zeros(2)], -1)
    np.testing.assert_allclose(landscape.distance(points), [3.99, 4.01], rtol=1e-5)
    assert landscape.off_support(points).tolist() == [False, True]
    assert OFF_SUPPORT == 4.0
    assert bool(landscape.off_support(jnp.asarray([jnp.nan, 0.0])))


def test_mode_shares_are_the_weights(case: Case):
    count = len(case.landscape.mode_names)
    expected = np.bincount(case.landscape.modes, case.landscape.weights, minlength=count)
    assert expected.sum() == pytest.approx(1.0)
    assert (expected > 0).all()
    np.testing.assert_allclose(np.bincount(case.data.mode, minlength=count) / N, expected, atol=0.02)


def test_the_value_rises_from_the_data_and_is_highest_off_the_support(case: Case):
    assert -0.1 < case.data.value.min() < case.data.value.max() < 1.2
    assert np.linalg.norm(case.data.slope, axis=-1).min() > 0.01
    box = (np.abs(GRID) <= 1).all(-1)
    assert case.grid.value[box & case.grid.off].max() > case.grid.value[box & ~case.grid.off].max()


def test_the_saddle_is_a_saddle_between_the_modes():
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
    assert bool(landscape.off_support(jnp.asarray(point)))


def test_the_thin_manifold_is_a_ring_of_the_stated_thickness():
    radius = np.linalg.norm(measured("thin").data.points, axis=-1)
    assert radius.mean() == pytest.approx(0.7, abs=0.01)
    assert radius.std() == pytest.approx(0.03, abs=0.003)


def test_any_leading_shape_and_vmap_change_nothing():
    landscape, found = get("bimodal"), measured("bimodal").data

    @jax.jit
    def both(points: jax.Array) -> list[jax.Array]:
        functions = landscape.log_density, landscape.score, landscape.value
        return [f(points.reshape(3, 4, 2)) for f in functions] + [jax.vmap(f)(points) for f in functions]

    for result, flat in zip(both(found.points[:12]), 2 * (found.log_density, found.score, found.value), strict=True):
        np.testing.assert_allclose(result, flat[:12].reshape(result.shape), rtol=1e-4, atol=1e-4)


def test_an_unknown_name_gets_a_hint():
    with pytest.raises(ConfigError, match="did you mean crescent"):
        get("cresent")
    with pytest.raises(ConfigError, match="Known: bimodal, "):
        get("xyz")
