"""The penalty against matrices built densely in float64, and the scores against a Gaussian's closed form."""

from __future__ import annotations

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from fidec.ops import fisher

MEAN, WIDTHS = np.array([0.3, -0.4]), np.array([0.1, 0.6])


def velocity(x, t):
    """The exact velocity for actions drawn from N(MEAN, diag WIDTHS^2)."""
    solved = (x - t * MEAN) / (t**2 * WIDTHS**2 + (1 - t) ** 2)
    return MEAN + (t * WIDTHS**2 - (1 - t)) * solved


def score(x, t):
    return -(x - t * MEAN) / (t**2 * WIDTHS**2 + (1 - t) ** 2)


def dense_penalty(displacement, scores, damping, scale):
    d = displacement.shape[-1]
    forms = []
    for b, delta in enumerate(displacement):
        matrix = np.eye(d)
        if scores is not None:
            matrix = scores[:, b].T @ scores[:, b] / len(scores) + damping * np.eye(d)
        constant = {"mean": 1 / np.trace(matrix), "half_trace": 0.5 / np.trace(matrix), "half": 0.5}[scale]
        forms.append(constant * delta @ matrix @ delta)
    return np.array(forms)


@pytest.mark.parametrize("samples", [None, 1, 4])
def test_the_penalty_is_the_dense_quadratic_form(samples):
    rng = np.random.default_rng(0)
    displacement = rng.normal(size=(6, 5)).astype(np.float32)
    scores = None if samples is None else 3 * rng.normal(size=(samples, 6, 5)).astype(np.float32)
    for damping, scale in itertools.product((0.0, 1e-3, 2.0), get_args(fisher.Scale)):
        given = None if scores is None else jnp.asarray(scores)
        cost = fisher.penalty(jnp.asarray(displacement), given, damping=damping, scale=scale)
        np.testing.assert_allclose(
            cost, dense_penalty(displacement, scores, damping, scale), rtol=1e-5, err_msg=scale
        )


def test_any_multiple_of_the_identity_costs_the_mean_square():
    """With scale `mean` the budgets of all quadratic constraints are on DeFlow's scale."""
    delta = jnp.asarray(np.random.default_rng(2).normal(size=(6, 3)), jnp.float32)
    expected = np.mean(np.square(delta), axis=-1)
    np.testing.assert_allclose(fisher.penalty(delta, None), expected, rtol=1e-6)
    axes = 7.0 * jnp.broadcast_to(jnp.eye(3)[:, None], (3, 6, 3))  # the mean outer product is a multiple of I
    np.testing.assert_allclose(fisher.penalty(delta, axes, damping=0.1), expected, rtol=1e-5)


def test_vanishing_scores_stay_finite():
    for scale in get_args(fisher.Scale):
        cost = fisher.penalty(jnp.ones((2, 3)), jnp.zeros((1, 2, 3)), scale=scale)
        np.testing.assert_array_equal(cost, np.zeros(2))


def shapes_in(jaxpr):
    """The shape of every value in a program, inner programs included."""
    for equation in jaxpr.eqns:
        for variable in (*equation.invars, *equation.outvars):
            yield tuple(getattr(variable.aval, "shape", ()))
        for inner in jaxprs_in_params(equation.params):
            yield from shapes_in(inner)


def builds_matrix(function, *args, d):
    shapes = shapes_in(jax.make_jaxpr(function)(*args).jaxpr)
    return any(shape.count(d) > 1 for shape in shapes)


def test_no_matrix_is_ever_built():
    d = 17
    delta, scores = jnp.ones((3, d)), jnp.ones((4, 3, d))

    def cost(delta, scores):
        return fisher.penalty(delta, scores, damping=0.1).sum()

    def outer(delta, scores):
        return jnp.einsum("bi,bij,bj->", delta, jnp.einsum("kbi,kbj->bij", scores, scores), delta)

    assert builds_matrix(outer, delta, scores, d=d)  # the detector works
    assert not builds_matrix(cost, delta, scores, d=d)
    assert not builds_matrix(jax.grad(cost), delta, scores, d=d)
    one = scores[:1]
    assert not builds_matrix(lambda g, s: fisher.natural_direction(g, s, damping=0.1), delta, one, d=d)


def test_local_score_is_the_closed_form_at_the_clean_action():
    actions = np.random.default_rng(3).normal(size=(9, 2))
    got = fisher.local_scores(velocity, jnp.asarray(actions), jax.random.key(0), t_eps=0.8)
    assert got.shape == (1, 9, 2)
    np.testing.assert_allclose(got[0], score(actions, 0.8), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("t", [0.5, 0.8, 0.9])
def test_renoised_scores_average_to_the_smoothed_fisher_information(t):
    """E[s s^T] over actions of the behaviour is that of p_t: diag 1 / (t^2 s_i^2 + (1 - t)^2)."""
    rows = 100_000
    actions = MEAN + WIDTHS * np.random.default_rng(4).normal(size=(rows, 2))
    scores = fisher.renoised_scores(
        velocity, jnp.asarray(actions, jnp.float32), jax.random.key(1), samples=2, t_eps=t
    )
    assert scores.shape == (2, rows, 2)
    outer = np.einsum("kbi,kbj->kbij", scores, scores).reshape(-1, 2, 2)
    exact = np.diag(1 / (t**2 * WIDTHS**2 + (1 - t) ** 2))
    # The two copies of an action are not independent: count rows, not copies.
    error = outer.std(axis=0) / np.sqrt(rows)
    assert np.all(np.abs(outer.mean(axis=0) - exact) < 4.5 * error)
    assert error.max() < 0.01 * exact.max()


def test_renoised_score_of_a_point_is_minus_the_noise():
    """Where the behaviour is one action, x_t = t a + (1 - t) z and the score there is -z / (1 - t)."""
    t, action = 0.8, np.array([0.3, -0.4])
    point = lambda x, t: (action - x) / (1 - t)  # noqa: E731
    scores = fisher.renoised_scores(
        point, jnp.broadcast_to(action, (20_000, 2)), jax.random.key(2), samples=1, t_eps=t
    )
    noise = -(1 - t) * np.asarray(scores[0])
    assert np.abs(noise.mean(axis=0)).max() < 0.04
    np.testing.assert_allclose(np.cov(noise.T), np.eye(2), atol=0.05)


def test_state_points_are_fresh_samples_with_fresh_noise():
    seen = {}

    def sample(noise):
        seen["noise"], seen["fresh"] = np.asarray(noise), np.asarray(MEAN + WIDTHS * noise)
        return jnp.asarray(seen["fresh"])

    options = {"samples": 5, "t_eps": 0.9, "width": 0.05}
    x, t = (np.asarray(each) for each in fisher.state_points(sample, (4000, 2), jax.random.key(3), **options))
    assert x.shape == seen["noise"].shape == (5, 4000, 2)
    assert t.shape == (5, 4000, 1)
    # x = t a + (1 - t) z with noise z that is standard normal and unrelated to the noise of the sample
    added = (x - t * seen["fresh"]) / (1 - t)
    assert added.std() == pytest.approx(1.0, abs=0.02)
    assert abs(np.corrcoef(added.ravel(), seen["noise"].ravel())[0, 1]) < 0.03


def test_scores_are_constants_of_the_penalty():
    """The gradient by delta is c (F + F^T) delta: nothing comes back through the scores."""
    rng = np.random.default_rng(5)
    delta, scores = rng.normal(size=(6, 3)), rng.normal(size=(4, 6, 3))
    matrices = np.einsum("kbi,kbj->bij", scores, scores) / 4 + 0.1 * np.eye(3)
    matrices /= np.trace(matrices, axis1=1, axis2=2)[:, None, None]
    got = jax.grad(lambda d: fisher.penalty(d, jnp.asarray(scores), damping=0.1).sum())(jnp.asarray(delta))
    np.testing.assert_allclose(got, 2 * np.einsum("bij,bj->bi", matrices, delta), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("damping", [1e-2, 1.0])
@pytest.mark.parametrize("samples", [1, 4])
def test_the_natural_direction_solves_the_dense_system(damping, samples):
    rng = np.random.default_rng(6)
    gradient, s = rng.normal(size=(8, 5)), 2 * rng.normal(size=(samples, 8, 5))
    got = fisher.natural_direction(jnp.asarray(gradient), jnp.asarray(s), damping=damping)
    for row in range(8):
        matrix = s[:, row].T @ s[:, row] / samples + damping * np.eye(5)
        expected = np.linalg.solve(matrix, gradient[row])
        np.testing.assert_allclose(got[row], expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("t_eps", "width", "low", "high"),
    [(0.8, 0.0, 0.8, 0.8), (0.9, 0.05, 0.85, 0.9), (0.05, 0.5, 1e-3, 0.05), (0.9999, 0.01, 0.9899, 0.999)],
)
def test_times_stay_inside_their_bounds(t_eps, width, low, high):
    t = np.asarray(fisher.draw_times(jax.random.key(0), (20_000, 1), t_eps, width))
    assert t.shape == (20_000, 1)
    assert low - 1e-6 <= t.min()
    assert t.max() <= high + 1e-6
    assert t.mean() == pytest.approx((low + high) / 2, abs=0.01 * (high - low) + 1e-6)
