"""Jacobians, divergences and log-determinants against closed forms and dense linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.ops import jacobian
from helpers.algorithms import fast_jit

D, ROWS = 5, 3
MATRIX = 0.2 * np.random.default_rng(0).normal(size=(D, D))
POINTS = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, D)), jnp.float32)


def curved(matrix):
    return lambda x: jnp.tanh(x @ jnp.asarray(matrix, jnp.float32).T)


def dense(matrix):
    slopes = 1 - np.tanh(np.asarray(POINTS, np.float64) @ matrix.T) ** 2
    return slopes[:, :, None] * matrix


def test_the_jacobian_is_the_derivative_and_comes_with_the_value():
    value, found = jacobian.value_and_jacobian(curved(MATRIX), POINTS)
    np.testing.assert_allclose(value, curved(MATRIX)(POINTS), rtol=1e-6)
    np.testing.assert_allclose(found, dense(MATRIX), atol=1e-6)


def test_the_log_determinant_is_of_identity_plus_jacobian():
    expected = np.linalg.slogdet(np.eye(D) + dense(MATRIX))[1]
    np.testing.assert_allclose(jacobian.log_determinant(jnp.asarray(dense(MATRIX))), expected, atol=1e-5)
    folded = jnp.asarray([[[-3.0, 0.0], [0.0, 0.0]]])  # det(I + J) = -2: the sign is left out
    np.testing.assert_allclose(jacobian.log_determinant(folded), [np.log(2.0)], rtol=1e-6)


@pytest.fixture(scope="module")
def estimates():
    """Many one-probe estimates of volume and of its gradient by the field's parameters."""
    keys = jax.random.split(jax.random.key(2), 8000)
    matrix = jnp.asarray(MATRIX, jnp.float32)

    def estimate(matrix, key):
        found = jacobian.volume(curved(matrix), POINTS, key, exact_up_to=0)
        return found.log_determinant.sum(), found

    both = jax.jit(jax.vmap(jax.value_and_grad(estimate, has_aux=True), in_axes=(None, 0)))
    (_, found), gradients = both(matrix, keys)
    return jax.tree.map(np.asarray, found), np.asarray(gradients)


def within(samples, expected, sigmas=4.5):
    error = samples.std(axis=0) / np.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0) - expected) < sigmas * error + 1e-6)
    return error.max()


def test_series_estimates_are_unbiased(estimates):
    exact = jacobian.volume(curved(MATRIX), POINTS, jax.random.key(0))
    np.testing.assert_allclose(estimates[0].displacement[0], exact.displacement, rtol=1e-6)
    assert within(estimates[0].divergence, exact.divergence) < 0.02
    assert within(estimates[0].log_determinant, exact.log_determinant) < 0.02
    # A series cut at two terms, which is what the roulette must make up for, would be told apart.
    j = dense(MATRIX)
    cut = np.trace(j, axis1=1, axis2=2) - np.trace(j @ j, axis1=1, axis2=2) / 2
    assert np.abs(cut - exact.log_determinant).max() > 0.03


def test_the_gradient_of_the_series_is_unbiased(estimates):
    exact = jax.grad(lambda m: jacobian.volume(curved(m), POINTS, jax.random.key(0)).log_determinant.sum())
    expected = np.asarray(exact(jnp.asarray(MATRIX, jnp.float32)))
    assert within(estimates[1], expected) < 0.1 * np.abs(expected).max()


def test_the_estimate_is_finite_and_falls_where_the_series_diverges():
    """Its powers would overflow, or reward a rotation, whose powers alternate in sign."""
    turn = jnp.asarray([[1.0, -1.0], [1.0, 1.0]]) / 2**0.5  # by 45 degrees: tr J^4 is negative
    scales, keys = jnp.asarray([1.5, 4.0, 1e3, 1e12]), jax.random.split(jax.random.key(5), 64)

    def estimate(scale, key, matrix):
        field = lambda x: scale * x @ matrix.T  # noqa: E731
        return jacobian.volume(field, POINTS[:, :2], key, exact_up_to=0).log_determinant.mean()

    both = jax.vmap(jax.vmap(jax.value_and_grad(estimate), (None, 0, None)), (0, None, None))
    for matrix in (turn, jnp.eye(2), -jnp.eye(2)):
        values, slopes = (np.asarray(found) for found in fast_jit(both)(scales, keys, matrix))
        assert np.all(np.isfinite(values))
        assert np.all(np.isfinite(slopes))
        assert np.all(slopes <= 0)
        means = values.mean(axis=1)
        assert np.all(np.diff(means) < 0)
        exact = np.linalg.slogdet(np.eye(2) + np.asarray(scales)[:, None, None] * np.asarray(matrix))[1]
        assert np.all(means <= exact + 1e-3)  # so volume is never worth more than it is


def test_several_probes_have_less_spread():
    keys = jax.random.split(jax.random.key(3), 400)
    spread = {
        probes: np.std(
            jax.jit(
                jax.vmap(lambda k: jacobian.volume(curved(MATRIX), POINTS, k, exact_up_to=0, probes=probes)[2])  # noqa: B023
            )(keys)
        )
        for probes in (1, 16)
    }
    assert spread[16] < 0.5 * spread[1]


def test_hutchinsons_divergence_is_exact_for_diagonal_fields():
    field = lambda x: x * jnp.arange(1.0, D + 1)  # noqa: E731
    np.testing.assert_allclose(jacobian.divergence(field, POINTS, jax.random.key(4)), np.full(ROWS, 15.0), rtol=1e-6)
