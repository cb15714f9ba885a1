"""The cost of a choice and of less noise: closed forms, against integrals and samples."""

import math

import numpy as np
import pytest
from scipy import stats

from fidec.ops import choice


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_the_cost_of_the_best_of_several_is_its_integral_over_ranks(count):
    # The rank u of the best of N is distributed as N u^(N - 1), of one sample uniformly.
    u = (np.arange(200_000) + 0.5) / 200_000
    density = count * u ** (count - 1)
    assert choice.best_of_nats(count) == pytest.approx(np.mean(density * np.log(density)), abs=1e-4)


def test_the_cost_with_an_affine_map_adds_up_for_a_gaussian():
    rng = np.random.default_rng(0)
    scale, shift, count = 0.8, 0.5, 4
    samples = rng.normal(size=(200_000, count))
    moved = scale * samples + shift
    best = moved.argmax(axis=1)[:, None]  # the score is the action itself
    chosen = np.take_along_axis(samples, best, axis=1)[:, 0]
    after = scale * chosen + shift
    integrand = stats.norm.logpdf(chosen) - stats.norm.logpdf(after) - math.log(scale)
    account = choice.best_of_nats(count) + integrand.mean()
    # The density of the chosen and moved action is known: N phi(z) Phi(z)^(N - 1) / scale.
    z = (after - shift) / scale
    density = np.log(count) + stats.norm.logpdf(z) + (count - 1) * stats.norm.logcdf(z) - math.log(scale)
    assert account == pytest.approx(np.mean(density - stats.norm.logpdf(after)), abs=0.01)


@pytest.mark.parametrize(("factor", "dimensions"), [(0.5, 1), (0.5, 5), (0.25, 2), (1.0, 3)])
def test_the_cost_of_less_noise_is_the_kl_of_two_normals(factor, dimensions):
    z = np.linspace(-12, 12, 400_001)
    density = stats.norm.pdf(z, scale=factor)
    integrand = np.where(density > 0, density * (stats.norm.logpdf(z, scale=factor) - stats.norm.logpdf(z)), 0)
    assert choice.noise_nats(factor, dimensions) == pytest.approx(dimensions * np.trapezoid(integrand, z), abs=1e-6)
    assert choice.noise_nats(0.0, dimensions) == math.inf


def test_the_chosen_samples_have_the_frequencies_of_drawing_and_choosing():
    rng = np.random.default_rng(1)
    values = np.array([0.3, 1.0, -2.0, 1.0, 0.3, 0.3, 5.0])
    drawn = rng.integers(0, len(values), size=(200_000, 3))
    best = values[drawn].max(axis=1)
    weights = choice.best_of_weights(values, 3)
    for value in np.unique(values):
        assert weights[values == value].sum() == pytest.approx((best == value).mean(), abs=0.005)
        assert len(set(weights[values == value])) == 1
    assert weights.sum() == pytest.approx(1.0)


def test_ties_make_a_choice_cheaper_and_many_samples_reach_the_closed_form():
    values = np.random.default_rng(2).normal(size=(50, 2000))
    nats = choice.weights_nats(choice.best_of_weights(values[:2], 4))
    np.testing.assert_allclose(nats, choice.best_of_nats(4), atol=2e-3)
    np.testing.assert_allclose(choice.weights_nats(choice.best_of_weights(np.zeros((3, 20)), 4)), 0.0, atol=1e-12)
    halves = np.repeat([[0.0, 1.0]], 10, axis=0).T.reshape(1, -1)  # two values: between nothing and log 2
    assert 0 < choice.weights_nats(choice.best_of_weights(halves, 4))[0] < math.log(2)
