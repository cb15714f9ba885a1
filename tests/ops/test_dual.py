"""The multiplier's steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fidec.ops import dual


@pytest.mark.parametrize(
    ("multiplier", "violation", "expected"),
    [(1.0, 0.5, 1.05), (1.0, -0.5, 0.95), (0.02, -0.5, 0.0), (0.0, -1.0, 0.0), (0.0, 0.3, 0.03)],
)
def test_projected_step(multiplier, violation, expected):
    """Up with a violation, down with slack, and never below zero, from where it can rise again."""
    stepped = dual.projected_step(jnp.asarray(multiplier), jnp.asarray(violation), 0.1)
    np.testing.assert_allclose(stepped, expected, atol=1e-7)


@pytest.mark.parametrize("violation", [2.0, 1e-3, -1e-3, -2.0])
def test_log_step_through_adam(violation):
    """lambda moves the right way, by about the learning rate in proportion, and stays positive."""
    adam = optax.adam(3e-4)
    log_multiplier: Any = jnp.log(jnp.asarray(10.0, jnp.float32))
    state = adam.init(log_multiplier)
    for step in range(1, 6):
        updates, state = adam.update(dual.log_gradient(jnp.asarray(violation)), state)
        log_multiplier = optax.apply_updates(log_multiplier, updates)
        expected = 10.0 * np.exp(np.sign(violation) * 3e-4 * step)
        np.testing.assert_allclose(jnp.exp(log_multiplier), expected, rtol=1e-4)


def test_log_gradient_is_that_of_the_dual_loss():
    """d/d(log lambda) of -log lambda * (D - budget)."""
    np.testing.assert_allclose(dual.log_gradient(jnp.asarray(0.7)), -0.7)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_controller_finds_the_scale_of_the_multiplier(scale):
    """The penalty of the best displacement is (scale / lambda)^2 / 2. A learner follows it in about 200 updates."""
    budget = 0.2

    def step(carry, _):
        multiplier, penalty = carry
        used, kept = dual.controlled(multiplier, dual.log_ratio(penalty, budget), 0.01)
        penalty += (0.5 * (scale / used) ** 2 - penalty) / 200
        return (kept, penalty), penalty / budget

    start = (jnp.asarray(10.0), jnp.asarray(1e-6))
    (multiplier, _), ratios = jax.lax.scan(step, start, None, length=4000)
    assert ratios[3000:].min() > 0.95
    assert ratios[3000:].max() < 1.05
    if scale <= 1:  # from above, it does not open the region too far on the way
        assert ratios.max() < 1.05
    assert float(multiplier) == pytest.approx(scale / np.sqrt(2 * budget), rel=0.05)


def test_the_controller_comes_back_from_a_region_that_did_not_bind():
    """After 20,000 updates without a violation lambda is at its lower end, not at zero."""

    def step(multiplier, penalty):
        return dual.controlled(multiplier, dual.log_ratio(penalty, 0.2), 0.01)[1], None

    slack, _ = jax.lax.scan(step, jnp.asarray(10.0), jnp.zeros(20_000))
    assert float(slack) == pytest.approx(dual.SMALLEST)
    back, _ = jax.lax.scan(step, slack, jnp.full(3000, 10.0))
    assert float(back) > 10.0


def test_a_state_over_the_limit_pays_the_square():
    np.testing.assert_allclose(dual.limited(jnp.asarray([0.1, 0.5, 2.0]), 0.5), [0.1, 0.5, 8.0])
