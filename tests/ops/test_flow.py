"""The linear path against a Gaussian target N(m, S), whose velocity and score are known at every time."""

from __future__ import annotations

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fidec.ops import flow
from helpers import some

MEAN = np.array([0.5, -0.3, 0.8])
_ROOT = np.array([[0.6, 0.0, 0.0], [0.3, 0.4, 0.0], [-0.2, 0.1, 0.9]])
COV = _ROOT @ _ROOT.T
TARGET = multivariate_normal(MEAN, COV)  # pyright: ignore[reportArgumentType] - it has no annotations
VARIANCES, AXES = np.linalg.eigh(COV)
TIMES = (0.0, 0.1, 0.5, 0.8, 0.95)


def exact(x, t):
    """Velocity, score and E[noise | x] of the Gaussian target, in float64.

    x_t is N(t m, C) with C = t^2 S + (1 - t)^2 I, so everything is a linear regression on x.
    """
    cov = t**2 * COV + (1 - t) ** 2 * np.eye(3)
    solved = np.linalg.solve(cov, (x - t * MEAN).T).T
    noise, clean = (1 - t) * solved, MEAN + t * solved @ COV
    return clean - noise, -solved, noise


def velocity(x, t):
    """The exact velocity as a JAX function of a column of times."""
    mean, axes, variances = (jnp.asarray(y, x.dtype) for y in (MEAN, AXES, VARIANCES))
    solved = ((x - t * mean) @ axes) / (t**2 * variances + (1 - t) ** 2)
    return mean + ((t * variances - (1 - t)) * solved) @ axes.T


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).normal(size=(40, 3))


def test_interpolation_and_its_velocity(points):
    noise, data = jnp.asarray(points[:20]), jnp.asarray(points[20:])
    np.testing.assert_allclose(flow.interpolate(noise, data, 0.0), noise)
    np.testing.assert_allclose(flow.interpolate(noise, data, 1.0), data)
    column = jnp.linspace(0.0, 1.0, 20)[:, None]
    np.testing.assert_allclose(flow.interpolate(noise, data, column), (1 - column) * noise + column * data, rtol=1e-6)
    _, slope = jax.jvp(lambda t: flow.interpolate(noise, data, t), (0.3,), (1.0,))
    np.testing.assert_allclose(flow.target_velocity(noise, data), slope, rtol=1e-6)


@pytest.mark.parametrize("t", TIMES)
def test_conversions_match_the_closed_form(points, t):
    v, score, noise, points = (jnp.asarray(array) for array in (*exact(points, t), points))
    column = jnp.full((len(points), 1), t)
    for time in (t, column):
        np.testing.assert_allclose(flow.velocity_to_noise(v, points, time), noise, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(flow.velocity_to_score(v, points, time), score, rtol=1e-5, atol=1e-5)


def test_matching_loss_of_the_exact_velocity_is_the_conditional_variance():
    """No field does better than E|a - z - E[a - z | x]|^2 / d, an integral over t of a posterior variance."""
    grid, weights = np.polynomial.legendre.leggauss(60)
    minimum = 0.0
    for t, weight in zip((grid + 1) / 2, weights / 2, strict=True):
        cross = t * COV - (1 - t) * np.eye(3)  # Cov(a - z, x_t)
        marginal = t**2 * COV + (1 - t) ** 2 * np.eye(3)
        minimum += weight * np.trace(COV + np.eye(3) - cross @ np.linalg.solve(marginal, cross.T)) / 3

    rng = np.random.default_rng(1)
    blocks = jnp.asarray(rng.multivariate_normal(MEAN, COV, size=(50, 2000)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 50)
    loss = jax.jit(
        lambda field: jax.vmap(lambda a, k: flow.matching_loss(field, a, k))(blocks, keys), static_argnums=0
    )
    best = np.asarray(loss(velocity))
    error = best.std() / np.sqrt(len(best))
    assert abs(best.mean() - minimum) < 4 * error
    assert error < 0.01 * minimum  # the check above has teeth
    # A field that is off by a constant c costs c^2 more, the same draws being used.
    worse = np.asarray(loss(lambda x, t: velocity(x, t) + 0.5))
    assert worse.mean() - best.mean() == pytest.approx(0.25, abs=4 * error)


def test_the_straight_path_that_a_gaussian_flow_fits_best_ends_at_two_over_pi_of_its_width(points):
    """Along each axis, E_t of the squared residual is quadratic in the end a, for every noise z.

    With D = (1 - t)^2 + t^2 S it is E [((1 - t) (a - m) - t S z)^2 / D^2], as for m = 0. The integrals of (1 - t)^2,
    t (1 - t) and t^2 over D^2 are pi / (4 s), 1 / (2 s^2) and pi / (4 s^3), s^2 = S. So a - m = 2 s z / pi is best,
    and s (pi / 4 - 1 / pi) z^2 is left.
    """
    grid, weights = np.polynomial.legendre.leggauss(60)
    widths = np.sqrt(VARIANCES)
    with jax.enable_x64(True):

        def cost(ends):
            residual = jax.vmap(lambda t: flow.path_residual(velocity, jnp.asarray(points), ends, t))((grid + 1) / 2)
            return jnp.tensordot(weights / 2, jnp.sum(residual**2, axis=-1), axes=1)

        best = MEAN + (points @ AXES * widths * 2 / np.pi) @ AXES.T
        slopes = jax.grad(lambda ends: cost(ends).sum())(jnp.asarray(best))
        left = np.sum(widths * (np.pi / 4 - 1 / np.pi) * (points @ AXES) ** 2, axis=-1)
        np.testing.assert_allclose(slopes, np.zeros_like(points), atol=1e-8)
        np.testing.assert_allclose(cost(jnp.asarray(best)), left, rtol=1e-8)
        # A step e along the axes costs pi / (4 s) e^2 more. The end of the flow itself is such a step.
        step = points @ AXES * widths * (1 - 2 / np.pi)
        more = np.sum(np.pi / (4 * widths) * step**2, axis=-1)
        np.testing.assert_allclose(cost(jnp.asarray(best + step @ AXES.T)), left + more, rtol=1e-8)


def test_a_straight_flow_leaves_no_residual(points):
    shift, t = jnp.asarray([0.3, -0.2, 0.1]), jnp.linspace(0, 1, 40)[:, None]
    noise = jnp.asarray(points)
    residual = flow.path_residual(lambda x, t: jnp.broadcast_to(shift, x.shape), noise, noise + shift, t)
    np.testing.assert_allclose(residual, np.zeros_like(points), atol=1e-6)


def moments(steps, method):
    """Exact mean and covariance of the sampler's output: here it is an affine map of the noise."""
    inputs = jnp.concatenate([jnp.zeros((1, 3)), jnp.eye(3)]).astype(jnp.float64)
    out = np.asarray(flow.sample(velocity, inputs, steps, method))
    linear = (out[1:] - out[0]).T
    return out[0], linear @ linear.T


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("heun", 2)])
def test_sampler_converges_to_the_target_with_its_order(method, order):
    with jax.enable_x64(True):
        results = [moments(steps, method) for steps in (16, 32, 64)]
    for mean, _ in results:  # the path of the mean is straight: any step is exact on it
        np.testing.assert_allclose(mean, MEAN, atol=1e-12)
    errors = [np.abs(cov - COV).max() for _, cov in results]
    assert errors[-1] < (0.05 if method == "euler" else 1e-3)
    assert np.log2(errors[1] / errors[2]) == pytest.approx(order, abs=0.2), errors


def test_sampler_is_the_euler_recursion(points):
    """Ten steps at t = 0, 0.1, ..., 0.9, as the methods define it; leading axes are free."""
    x = points.astype(np.float64)
    for i in range(10):
        x = x + exact(x, i / 10)[0] / 10
    start = jnp.asarray(points.reshape(4, 10, 3), jnp.float32)
    np.testing.assert_allclose(flow.sample(velocity, start).reshape(40, 3), x, rtol=1e-5, atol=1e-5)


def nonlinear(x, t):
    turned = jnp.stack([x[..., 1], -x[..., 0], jnp.tanh(x[..., 2] * x[..., 0])], axis=-1)
    return jnp.sin(1.5 * x) * (1 + t) + jnp.cos(t) * turned - 0.1 * x**2


def test_divergence_is_the_trace_of_the_jacobian(points):
    x, t = jnp.asarray(points, jnp.float32), jnp.linspace(0, 1, 40)[:, None]
    v, div = jax.jit(lambda x, t: flow.divergence(nonlinear, x, t))(x, t)
    jacobian = jax.vmap(lambda x, t: jax.jacfwd(lambda y: nonlinear(y, t))(x))(x, t)
    np.testing.assert_allclose(v, nonlinear(x, t), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(div, jnp.trace(jacobian, axis1=-2, axis2=-1), rtol=1e-5, atol=1e-5)


def test_log_density_of_a_gaussian_and_its_order(points):
    truth = TARGET.logpdf(points)
    with jax.enable_x64(True):
        x = jnp.asarray(points)
        density = jax.jit(lambda x, n: flow.log_density(velocity, x, n), static_argnums=1)
        errors = [np.abs(density(x, steps) - truth).max() for steps in (32, 64, 128)]
    assert errors[-1] < 5e-3
    assert np.log2(errors[1] / errors[2]) == pytest.approx(2, abs=0.25), errors


def test_log_density_in_single_precision(points):
    truth = TARGET.logpdf(points)
    np.testing.assert_allclose(
        flow.log_density(velocity, jnp.asarray(points, jnp.float32), 256), truth, rtol=1e-3, atol=3e-3
    )


def test_agreement_with_diffrax_on_a_nonlinear_field(points):
    """Sampling and log-density against an adaptive solver at tight tolerance."""
    with jax.enable_x64(True):
        start = jnp.asarray(points[:8])

        def solve(initial, t0, t1, dt0):
            def field(t, y, args):
                v, div = flow.divergence(nonlinear, y[0], flow.times(y[0], t))
                return v, div

            return diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                diffrax.Tsit5(),
                t0,
                t1,
                dt0,
                (initial, jnp.zeros(len(initial))),
                stepsize_controller=diffrax.PIDController(rtol=1e-9, atol=1e-9),
            ).ys

        end, change = (y[0] for y in some(solve(start, 0.0, 1.0, 0.01)))
        np.testing.assert_allclose(flow.sample(nonlinear, start, 400, "heun"), end, rtol=1e-4, atol=1e-4)
        truth = jnp.sum(jax.scipy.stats.norm.logpdf(start), axis=-1) - change
        errors = [np.abs(flow.log_density(nonlinear, end, n) - truth).max() for n in (100, 200)]
        assert errors[1] < 1e-3
        assert np.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.3)
