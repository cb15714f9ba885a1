"""Mean flows: their identity on flows that are known in closed form, the times, the loss and the sphere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.ops import flow, meanflow

WIDTHS = np.array([0.3, 1.0, 2.0])


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def width(t):
    """The standard deviation of x_t, if a ~ N(0, diag(WIDTHS^2))."""
    return jnp.sqrt((1.0 - t) ** 2 + (t * jnp.asarray(WIDTHS, jnp.float32)) ** 2)


def velocity(x, t):
    """The flow's velocity: x_t is Gaussian and its paths are x width(t), so v = x width'(t) / width(t)."""
    return x * (t * WIDTHS**2 - (1.0 - t)) / width(t) ** 2


def exact(x, t, r):
    """g of that flow, from its path: u = x (width(r) / width(t) - 1) / (r - t)."""
    return x + x * (width(r) / width(t) - 1.0) / (r - t)


def columns(*times):
    return tuple(jnp.full((5, 1), t, jnp.float32) for t in times)


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.0, 0.5), (0.2, 0.9), (0.6, 0.7)])
def test_a_known_flow_satisfies_the_identity(start, end):
    x, (t, r) = draw(0, 5, 3), columns(start, end)
    g, target = meanflow.value_and_target(exact, x, velocity(x, t), t, r)
    np.testing.assert_allclose(g, exact(x, t, r), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(target, g, rtol=1e-3, atol=1e-4)
    # Another function does not: the velocity instead of its mean.
    _, other = meanflow.value_and_target(lambda x, t, r: x + velocity(x, t), x, velocity(x, t), t, r)
    assert np.abs(other - (x + velocity(x, t))).max() > 1e-2


def test_without_an_interval_the_identity_is_flow_matching():
    x, v, (t, r) = draw(0, 5, 3), draw(1, 5, 3), columns(0.3, 0.3)
    _, target = meanflow.value_and_target(lambda x, t, r: jnp.sin(3.0 * x) + t * r, x, v, t, r)
    np.testing.assert_allclose(target, x + v, rtol=1e-6)


def test_the_target_has_no_gradient():
    x, v, (t, r) = draw(0, 5, 3), draw(1, 5, 3), columns(0.1, 0.8)

    def total(scale):
        return meanflow.value_and_target(lambda x, t, r: scale * x * r, x, v, t, r)[1].sum()

    assert jax.grad(total)(1.0) == 0.0


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_any_number_of_steps_ends_at_the_same_action(steps):
    noise = draw(0, 5, 3)
    actions = flow.sample(lambda x, t: exact(x, t, t + 1.0 / steps) - x, noise, steps)
    np.testing.assert_allclose(actions, noise * WIDTHS, rtol=1e-4)


@pytest.mark.parametrize(("rows", "share", "intervals"), [(1000, 0.25, 250), (1000, 1.0, 1000), (1, 0.25, 1)])
def test_a_share_of_the_rows_has_an_interval(rows, share, intervals):
    t, r = meanflow.draw_times(jax.random.key(0), rows, share)
    assert t.shape == r.shape == (rows, 1)
    assert np.sum(r > t) == intervals
    assert np.all((t > 0) & (t <= r) & (r < 1))


def test_the_times_are_logit_normal():
    t, r = meanflow.draw_times(jax.random.key(0), 20_000, 1.0)
    logits = np.log(np.concatenate([t, r])) - np.log1p(-np.concatenate([t, r]))
    assert logits.mean() == pytest.approx(0.4, abs=0.03)
    assert logits.std() == pytest.approx(1.0, abs=0.03)


def test_the_loss_is_a_root_whose_slope_is_a_weight():
    errors = jnp.asarray([0.0, 0.01, 1.0, 100.0])
    weights = 1.0 / np.sqrt(np.asarray(errors) + 1e-3)
    loss, slopes = jax.value_and_grad(meanflow.adaptive_loss)(errors)
    np.testing.assert_allclose(loss, np.mean(weights * errors), rtol=1e-5)
    np.testing.assert_allclose(slopes, weights / 4, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 24])
def test_the_sphere_has_radius_sqrt_d(d):
    x = draw(0, 6, d) * np.logspace(1, 4, 6, dtype=np.float32)[:, None]
    points = meanflow.on_sphere(x)
    np.testing.assert_allclose(np.linalg.norm(points, axis=-1), np.sqrt(d), rtol=1e-3)
    np.testing.assert_allclose(np.sum(points * x, axis=-1), np.sqrt(d) * np.linalg.norm(x, axis=-1), rtol=1e-3)
    np.testing.assert_array_equal(meanflow.on_sphere(jnp.zeros((2, d))), np.zeros((2, d)))
    assert np.isfinite(jax.jacobian(meanflow.on_sphere)(jnp.zeros(d))).all()
