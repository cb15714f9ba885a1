"""Adjoint matching on a Gaussian behaviour N(m, S), which a quadratic R tilts to a known Gaussian.

beta(a) exp(R(a)) with R(a) = g . a - a . K a / 2 is N(m', S') with S'^-1 = S^-1 + K and m' = S' (S^-1 m + g).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.ops import adjoint, flow

MEAN = np.array([0.5, -0.3])
COV = np.array([[0.5, 0.2], [0.2, 0.3]])
SLOPE = np.array([2.0, 1.0])
CURVATURE = np.array([[1.5, 0.5], [0.5, 1.0]])
KEY = jax.random.key(3)


def gaussian(mean, cov) -> Any:
    """The velocity of N(mean, cov): x_t is N(t m, C), C = t^2 S + (1 - t)^2 I, and v is linear in x."""
    variances, axes = np.linalg.eigh(cov)

    def velocity(x, t):
        solved = ((x - t * mean) @ axes) / (t**2 * variances + (1 - t) ** 2)
        return mean + ((t * variances - (1 - t)) * solved) @ axes.T

    return velocity


def tilted(curvature):
    """Mean and covariance of the tilted Gaussian."""
    precision = np.linalg.inv(COV)
    cov = np.linalg.inv(precision + curvature)
    return cov @ (precision @ MEAN + SLOPE), cov


BETA = gaussian(MEAN, COV)


def reward_slope(a, curvature) -> Any:
    return SLOPE - a @ curvature


def draw(velocity, rows, steps, key=KEY):
    start_key, path_key = jax.random.split(key)
    return adjoint.sample_path(velocity, velocity, jax.random.normal(start_key, (rows, 2)), path_key, steps)


def test_the_lean_adjoint_is_the_gradient_through_the_steps_of_the_base():
    """Automatic differentiation of the whole walk, from each of its points to a reward at its end."""
    with jax.enable_x64(True):
        steps, rows = 7, 5
        rng = np.random.default_rng(0)
        weights, shocks = jnp.asarray(rng.normal(size=(2, 2))), jnp.asarray(rng.normal(size=(steps, rows, 2)))
        velocity = lambda x, t: (1.0 + t) * jnp.tanh(x @ weights + t)  # noqa: E731
        reward = lambda x: jnp.sin(x).sum()  # noqa: E731

        def walk(x, first):
            points = [x]
            for i in range(first, steps):
                later = (i + 1) / steps
                x = x + (2.0 * velocity(x, later) - x / later) / steps + shocks[i]
                points.append(x)
            return points

        *points, end = walk(jnp.asarray(rng.normal(size=(rows, 2))), 0)
        times = jnp.broadcast_to(jnp.arange(steps)[:, None, None] / steps, (steps, rows, 1))
        path = adjoint.Path(jnp.stack(points), times, end)
        found = adjoint.lean_adjoint(velocity, path, jax.grad(reward)(end))
        for i, point in enumerate(points):
            expected = jax.grad(lambda x: reward(walk(x, i)[-1]))(point)  # noqa: B023
            np.testing.assert_allclose(found[i], expected, rtol=1e-9, atol=1e-12)


def test_the_adjoint_of_a_gaussian_flow_has_a_closed_form():
    """lambda(t) = t C_t^-1 S lambda(1) on every path, and its error falls with the step."""
    errors = []
    for steps in (100, 400):
        path = draw(BETA, 3, steps)
        end = jnp.broadcast_to(jnp.asarray(SLOPE, jnp.float32), (3, 2))
        found = adjoint.lean_adjoint(BETA, path, end)
        error = 0.0
        for i in range(steps // 5, steps):
            t = i / steps
            expected = t * np.linalg.solve(t**2 * COV + (1 - t) ** 2 * np.eye(2), COV @ SLOPE)
            error = max(error, np.abs(found[i] - expected).max())
        errors.append(error)
    assert errors[0] < 0.1
    assert errors[1] < 0.4 * errors[0]


def test_the_sde_has_the_marginals_of_the_ode_and_forgets_its_start():
    steps = 200
    path = draw(BETA, 10_000, steps)
    for i in (50, 100, 150):
        t = i / steps
        cov = t**2 * COV + (1 - t) ** 2 * np.eye(2)
        np.testing.assert_allclose(np.mean(path.points[i], axis=0), t * MEAN, atol=0.03)
        np.testing.assert_allclose(np.cov(np.asarray(path.points[i]).T), cov, atol=0.03)
    np.testing.assert_allclose(np.mean(path.end, axis=0), MEAN, atol=0.03)
    np.testing.assert_allclose(np.cov(np.asarray(path.end).T), COV, atol=0.03)
    together = np.corrcoef(np.asarray(path.points[0]).T, np.asarray(path.end).T)[:2, 2:]
    np.testing.assert_allclose(together, 0.0, atol=0.04)


@pytest.mark.parametrize("curvature", [np.zeros((2, 2)), CURVATURE], ids=["linear", "quadratic"])
def test_the_tilted_flow_is_where_the_regression_stays(curvature):
    """On the paths of the tilted Gaussian's flow, -sigma^2 lambda / 2 is on average its difference to the behaviour.

    The average is a linear regression on x, one for each time. The KL of the paths is that of the two Gaussians.
    """
    steps = 200
    mean, cov = tilted(curvature)
    policy = gaussian(mean, cov)
    path = draw(policy, 10_000, steps)
    adjoints = adjoint.lean_adjoint(BETA, path, -reward_slope(path.end, curvature))
    for i in (40, 100, 160):
        x, t = np.asarray(path.points[i], np.float64), i / steps
        aims = np.asarray(-(path.sigma[i] ** 2) / 2 * adjoints[i])
        inputs = np.concatenate([np.ones((len(x), 1)), x], axis=1)
        regression = inputs @ np.linalg.lstsq(inputs, aims, rcond=None)[0]
        np.testing.assert_allclose(regression, policy(x, t) - BETA(x, t), atol=0.05, rtol=0.05)
    _, kl = adjoint.matching_loss(policy, BETA, path, adjoints)
    shift = np.linalg.solve(COV, mean - MEAN) @ (mean - MEAN)
    ratio = np.linalg.solve(COV, cov)
    assert kl == pytest.approx(0.5 * (np.trace(ratio) - 2 - np.log(np.linalg.det(ratio)) + shift), rel=0.05)


def linear(coefficients) -> flow.Velocity:
    """The behaviour's velocity plus (1, x) . c_i, with coefficients (3, 2) for each step."""

    def velocity(x, t):
        chosen = coefficients[jnp.round(t[..., 0] * len(coefficients)).astype(int)]
        return BETA(x, t) + chosen[..., 0, :] + jnp.einsum("...i,...ij->...j", x, chosen[..., 1:, :])

    return velocity


@pytest.mark.slow
def test_learning_by_adjoint_matching_ends_at_the_tilted_gaussian():
    """From the behaviour, the loss is minimised exactly over linear fields, again and again on new paths."""
    steps, rows = 100, 4000

    @jax.jit
    def improve(coefficients, key):
        path = draw(linear(coefficients), rows, steps, key)
        adjoints = adjoint.lean_adjoint(BETA, path, -reward_slope(path.end, CURVATURE))

        def loss(coefficients):
            return adjoint.matching_loss(linear(coefficients), BETA, path, adjoints)[0]

        # The loss is quadratic in the coefficients and has a term for each step: one Newton step for each of them.
        inputs = jnp.concatenate([jnp.ones((steps, rows, 1)), path.points], axis=-1)
        curvature = 8.0 / rows * jnp.einsum("sri,srj->sij", inputs, inputs) / path.sigma[:, :1] ** 2
        return coefficients - jnp.linalg.solve(curvature, jax.grad(loss)(coefficients))

    coefficients = jnp.zeros((steps, 3, 2))
    for key in jax.random.split(KEY, 8):
        coefficients = improve(coefficients, key)
    samples = flow.sample(linear(coefficients), jax.random.normal(jax.random.key(9), (20_000, 2)), steps)
    mean, cov = tilted(CURVATURE)
    assert np.linalg.norm(mean - MEAN) > 0.3
    np.testing.assert_allclose(np.mean(samples, axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(np.asarray(samples).T), cov, atol=0.03)


@pytest.mark.parametrize(
    ("steps", "std", "ratio"), [(10, 0.05, 6.94), (10, 0.1, 1.97), (10, 1.0, 0.88), (20, 0.1, 1.35), (100, 0.3, 1.01)]
)
def test_few_steps_move_a_narrow_gaussian_too_far(steps, std, ratio):
    """The table of the documentation. For a linear R the adjoint does not depend on the path, nor v - v_beta on x."""
    beta = gaussian(np.zeros(1), np.array([[std**2]]))
    path = adjoint.sample_path(beta, beta, jnp.zeros((1, 1)), KEY, steps)
    adjoints = adjoint.lean_adjoint(beta, path, -jnp.ones((1, 1)))
    shifts = -(path.sigma**2) / 2 * adjoints

    def policy(x, t):
        return beta(x, t) + shifts[jnp.round(t[..., 0] * steps).astype(int), 0]

    moved = flow.sample(policy, jnp.zeros((1, 1)), steps)
    assert float(moved[0, 0]) / std**2 == pytest.approx(ratio, abs=0.006)


def test_without_a_slope_the_loss_is_least_at_the_behaviour():
    path = draw(BETA, 8, 10)
    adjoints = adjoint.lean_adjoint(BETA, path, jnp.zeros_like(path.end))
    np.testing.assert_array_equal(adjoints, 0.0)
    away = lambda size: lambda x, t: BETA(x, t) + size  # noqa: E731
    loss = lambda size: adjoint.matching_loss(away(size), BETA, path, adjoints)[0]  # noqa: E731
    assert loss(0.0) == jax.grad(loss)(0.0) == 0.0
    assert loss(0.1) > 0.0


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_a_path_has_a_point_for_each_step(steps):
    shifted = lambda x, t: BETA(x, t) + 1.0  # noqa: E731
    noise = jax.random.normal(KEY, (3, 5, 2))
    path = adjoint.sample_path(shifted, BETA, noise, KEY, steps)
    assert path.points.shape == (steps, 3, 5, 2)
    assert path.times.shape == path.sigma.shape == (steps, 3, 5, 1)
    np.testing.assert_array_equal(path.points[0], noise)
    np.testing.assert_allclose(path.times[:, 0, 0, 0], np.arange(steps) / steps, rtol=1e-6)
    last = path.points[-1]  # the last step is without noise, and of the other flow
    np.testing.assert_allclose(path.end, last + BETA(last, 1.0 - 1.0 / steps) / steps, rtol=1e-5, atol=1e-6)
    assert adjoint.lean_adjoint(BETA, path, path.end).shape == path.points.shape
