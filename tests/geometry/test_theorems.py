"""Measured slopes and constants of the theorems, and the exact mixtures on which they are measured."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.errors import ConfigError
from fidec.geometry import theorems
from fidec.geometry.landscapes import Mixture, axis_aligned, grid
from fidec.geometry.theorems import bias, gap, kl, precision
from fidec.geometry.theorems.result import formatted, slope
from fidec.ops import fisher, flow
from helpers.gaussians import gaussian_kl

TILTED = Mixture(
    np.array([[-0.5, 0.2], [0.6, -0.3]]),
    np.array([[[0.09, 0.04], [0.04, 0.05]], [[0.02, -0.01], [-0.01, 0.08]]]),
    np.array([0.3, 0.7]),
)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


# Exact mixtures


def test_density_and_score_are_those_of_the_noised_mixture():
    x = np.random.default_rng(0).normal(size=(7, 2))
    gradient = jax.jit(jax.vmap(jax.grad(TILTED.log_density), (0, None)))
    for t in (0.0, 0.3, 0.8, 1.0):
        density = np.zeros(7)
        for mean, covariance, weight in zip(TILTED.means, TILTED.covariances, TILTED.weights, strict=True):
            c = t**2 * covariance + (1 - t) ** 2 * np.eye(2)
            away = x - t * mean
            form = np.einsum("bi,bi->b", away, np.linalg.solve(c, away.T).T)
            density += weight * np.exp(-0.5 * form) / (2 * np.pi * np.sqrt(np.linalg.det(c)))
        np.testing.assert_allclose(TILTED.log_density(x, t), np.log(density), rtol=1e-12)
        np.testing.assert_allclose(TILTED.score(x, t), gradient(x, t), rtol=1e-10)


def test_score_is_the_conversion_of_the_velocity_and_its_limits_are_right():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(7, 2)))
    t = jnp.linspace(0.05, 0.95, 7)[:, None]
    np.testing.assert_allclose(TILTED.score(x, t), flow.velocity_to_score(TILTED.velocity(x, t), x, t), rtol=1e-10)
    np.testing.assert_allclose(TILTED.velocity(x, 1.0), x, rtol=1e-12)
    np.testing.assert_allclose(TILTED.velocity(x, 0.0), TILTED.weights @ TILTED.means - x, rtol=1e-12)


def test_samples_and_grid_agree_on_moments():
    points, weights = grid(TILTED, 0.05)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-13)
    draws = TILTED.sample(jax.random.key(0), 40000)
    mean, second = weights @ points, jnp.einsum("n,ni,nj->ij", weights, points, points)
    np.testing.assert_allclose(mean, TILTED.weights @ TILTED.means, atol=1e-13)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(draws.T @ draws / len(draws), second, atol=0.01)


# (a)


def test_kl_by_quadrature_is_the_closed_form_for_affine_maps():
    base = axis_aligned([[0.3, -0.2]], [[0.4, 0.7]])
    matrix, offset, h = np.array([[0.5, -0.3], [0.8, 0.2]]), np.array([0.2, -0.4]), 0.3
    found = kl.costs(base, lambda a: a @ matrix.T + offset, np.array([h]), 0.1)
    step = np.eye(2) + h * matrix
    exact = gaussian_kl(
        step @ base.means[0] + h * offset, step @ base.covariances[0] @ step.T, base.means[0], base.covariances[0]
    )
    assert found["kl"][0] == pytest.approx(exact, rel=1e-12)
    for name in (*kl.METHODS[2:], "centred"):  # a linear score: exact with any number of nodes
        assert found[name][0] == pytest.approx(exact, rel=1e-12)


def test_orders_of_the_forms_for_a_deforming_map():
    sizes = 0.03 * 0.5 ** np.arange(4)
    found = kl.costs(kl.MIXTURE, kl.MAPS["bend"], sizes, 0.06)
    errors = {name: np.abs(found[name] - found["kl"]) for name in kl.METHODS}
    assert slope(sizes, errors["fisher"]) == pytest.approx(2.0, abs=0.02)  # as large as the KL itself
    assert errors["fisher"][-1] / found["kl"][-1] == pytest.approx(0.095, abs=0.002)
    assert slope(sizes, errors["stein"]) == pytest.approx(3.0, abs=0.02)
    assert slope(sizes, errors["path, 2 nodes"]) == pytest.approx(5.0, abs=0.1)
    assert errors["path, 3 nodes"][0] < 1e-3 * errors["path, 2 nodes"][0]
    np.testing.assert_allclose(found["centred"], found["path, 3 nodes"], atol=1e-14)


def test_the_fisher_form_is_three_halves_of_a_stretch_and_right_for_a_shift():
    found = kl.costs(kl.GAUSSIAN, kl.MAPS["stretch"], np.array([1e-3]), 0.2)
    assert found["kl"][0] == pytest.approx(1e-3 + 0.5e-6 - np.log1p(1e-3), rel=1e-9)
    assert found["fisher"][0] / found["kl"][0] == pytest.approx(1.5, abs=1e-3)
    assert found["stein"][0] / found["kl"][0] == pytest.approx(1.0, abs=1e-3)
    shift = kl.costs(kl.GAUSSIAN, kl.MAPS["shift"], np.array([0.3]), 0.2)
    assert shift["fisher"][0] == pytest.approx(shift["kl"][0], rel=1e-12)


# (b)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "thin" else ()) for name in bias.DENSITIES]
)
def test_bias_has_the_predicted_order_and_constant(name):
    density = bias.DENSITIES[name]
    a = density.sample(jax.random.key(3), 60)
    distances = np.array([1e-4, 2e-4, bias.THIN_SD / 100, bias.THIN_SD, 0.2])
    found, law = bias.errors(density, a, distances), bias.constants(density, a)
    for query, power in (("clean", 1), ("renoised, one", 1), ("scaled", 2), ("renoised, mean", 2)):
        assert slope(distances[:2], found[query][:2]) == pytest.approx(power, abs=0.005), query
        assert found[query][0] / distances[0] ** power == pytest.approx(law[query], rel=2e-3), query
    # A thin density leaves the first-order regime far below its thickness; at t = 0.8 nothing is left of the score.
    remainder, relative = found["remainder"][2:] / (law["clean"] * distances[2:]), found["clean"][2:] / law["score"]
    assert remainder[0] < 0.03
    if name == "thin":
        assert remainder[1] > 0.5
        assert 0.9 < relative[2] < 1.1
        with_score, with_minus_a = bias.direction(density, a, 0.2)
        assert with_score < 0.3
        assert with_minus_a > 0.95
    else:
        assert remainder[1] < 0.3
        assert relative[2] < 0.6


def test_the_queries_are_the_packages_and_the_clean_constant_that_of_a_gaussian():
    gaussian = axis_aligned([[0.5, -0.2]], [[0.3, 0.6]])
    a = gaussian.sample(jax.random.key(0), 50)
    estimates, key = jax.jit(bias.estimates, static_argnums=0)(gaussian, a, 0.1), jax.random.key(0)
    clean = fisher.local_scores(gaussian.velocity, a, key, t_eps=0.9, width=0.0)
    scaled = fisher.scaled_score(gaussian.velocity, 0.9)(a, key)
    np.testing.assert_allclose(estimates["clean"][0], clean, rtol=1e-10)
    np.testing.assert_allclose(estimates["scaled"][0], scaled, rtol=1e-10)
    variance = np.array([0.3, 0.6]) ** 2
    coefficient = -(2 * a - gaussian.means[0]) / variance  # grad(a . s) for s = -(a - m) / variance
    np.testing.assert_allclose(jax.jit(bias.dilation, static_argnums=0)(gaussian, a), coefficient, rtol=1e-10)


# (c)


def test_two_sum_knows_the_rounding_error_of_float64():
    from fractions import Fraction

    rng = np.random.default_rng(0)
    x, away = rng.normal(size=50), 1e-9 * rng.normal(size=50)
    found = precision.rounding_errors(x, away, "float64")
    exact = [
        float(Fraction(float(p + q)) - Fraction(float(p)) - Fraction(float(q))) for p, q in zip(x, away, strict=True)
    ]
    np.testing.assert_array_equal(found, exact)
    assert np.abs(found).max() > 1e-18


@pytest.mark.slow
def test_best_distance_scales_with_the_square_root_of_the_precision():
    curves, constant = precision.rounding_curves()
    units = np.array(list(precision.ROUNDOFF.values()))
    clean = np.array([curves[f"{name}, clean"].best[0] for name in precision.ROUNDOFF])
    scaled = np.array([curves[f"{name}, scaled"].best[0] for name in precision.ROUNDOFF])
    assert slope(units, clean) == pytest.approx(0.5, abs=0.015)
    assert slope(units, scaled) == pytest.approx(1 / 3, abs=0.015)
    np.testing.assert_allclose(clean, np.sqrt(constant["C2"] * units / constant["C1"]), rtol=0.1)
    best = curves["float32, clean"].best[1]
    expected = np.sqrt(2 * constant["C1"] * constant["C2"] * precision.ROUNDOFF["float32"])
    assert best == pytest.approx(expected, rel=0.1)
    assert 1 < curves["float32 throughout, clean"].best[0] / curves["float32, clean"].best[0] < 4


@pytest.mark.slow
def test_a_learned_velocity_is_best_orders_of_magnitude_further_away():
    with jax.enable_x64(False):
        measured = precision.best_distance(steps=3000).measured
    assert measured["learned: eps*"] > 1000 * measured["float32: eps*"]
    assert measured["learned: velocity error"] > 1e5 * measured["float32: velocity error"]
    assert 0.1 < measured["learned: least error"] < 0.8
    assert 0.3 < measured["learned: eps*"] / measured["learned: law 1/2"] < 3


# (d)


def test_the_gap_against_solved_problems():
    rng = np.random.default_rng(5)
    for condition in (3.0, 100.0):
        for scale in gap.SCALES.values():
            found = gap.compare(gap.problem(rng, condition, scale))
            near = partial(pytest.approx, rel=1e-6, abs=1e-8)
            assert found["difference of optima"] == near(found["formula"])
            assert found["regret"] == near(found["regret in closed form"])
            assert found["difference under budgets"] == pytest.approx(
                found["formula at the mean multiplier"], rel=1e-4
            )
            assert found["ratio on one budget"] == pytest.approx(found["ratio in closed form"], rel=1e-5)
            assert found["ratio on one budget"] <= (condition + 1) / (2 * np.sqrt(condition)) * (1 + 1e-6)
            assert found["regret"] > 0
            if scale == "along":
                assert found["formula"] == near(found["regret"])
            else:
                assert abs(found["formula"] - found["regret"]) > 1e-3
            if scale == "above":
                assert found["formula"] < 0


# All of them


def test_table_cells_have_three_digits():
    assert formatted([[None, 1.23456, "x", 3]]) == [["-", "1.23", "x", "3"]]


def test_run_names_an_unknown_theorem():
    with pytest.raises(ConfigError, match="no theorem 'e'"):
        theorems.run(("a", "e"))
