"""The multiplier: how each kind of it moves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fidec.algos.common.multiplier import MULTIPLIERS, SMALLEST

BUDGET = 0.2


@pytest.mark.parametrize(
    ("multiplier", "violation", "expected"),
    [(1.0, 0.5, 1.5), (1.0, -0.15, 0.85), (0.1, -0.15, 0.0), (0.0, -0.2, 0.0), (0.0, 0.3, 0.3)],
)
def test_a_projected_step(multiplier, violation, expected):
    """Up with a violation, down with slack, and never below zero, from where it can rise again."""
    kind, penalty = MULTIPLIERS["projected"], jnp.asarray(BUDGET + violation)
    stored = kind.store(jnp.asarray(multiplier))
    assert float(kind.weight(stored, penalty, BUDGET)) == pytest.approx(multiplier)
    np.testing.assert_allclose(kind.move(stored, penalty, BUDGET), expected, atol=1e-7)
    assert not kind.descends


@pytest.mark.parametrize("violation", [2.0, 1e-3, -1e-3, -0.2])
def test_a_logarithmic_step_through_adam(violation):
    """lambda moves the right way, by about the learning rate in proportion, and stays positive."""
    adam, kind, penalty = optax.adam(3e-4), MULTIPLIERS["log"], jnp.asarray(BUDGET + violation)
    stored: Any = kind.store(jnp.asarray(10.0, jnp.float32))
    state = adam.init(stored)
    assert kind.descends
    for step in range(1, 6):
        gradient = kind.move(stored, penalty, BUDGET)  # of the dual loss -log lambda (D - budget)
        np.testing.assert_allclose(gradient, -violation, rtol=1e-4)
        updates, state = adam.update(gradient, state)
        stored = optax.apply_updates(stored, updates)
        expected = 10.0 * np.exp(np.sign(violation) * 3e-4 * step)
        np.testing.assert_allclose(kind.weight(stored, penalty, BUDGET), expected, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_controller_finds_the_scale_of_the_multiplier(scale):
    """The penalty of the best displacement is (scale / lambda)^2 / 2. A learner follows it in about 200 updates."""
    kind = MULTIPLIERS["controlled"]

    def step(carry, _):
        multiplier, penalty = carry
        used, kept = kind.weight(multiplier, penalty, BUDGET), kind.move(multiplier, penalty, BUDGET)
        penalty += (0.5 * (scale / used) ** 2 - penalty) / 200
        return (kept, penalty), penalty / BUDGET

    start = (kind.store(jnp.asarray(10.0)), jnp.asarray(1e-6))
    (multiplier, _), ratios = jax.lax.scan(step, start, None, length=4000)
    assert ratios[3000:].min() > 0.95
    assert ratios[3000:].max() < 1.05
    if scale <= 1:  # from above, it does not open the region too far on the way
        assert ratios.max() < 1.05
    assert float(multiplier) == pytest.approx(scale / np.sqrt(2 * BUDGET), rel=0.05)


def test_the_controller_comes_back_from_a_region_that_did_not_bind():
    """After 20,000 updates without a violation lambda is at its lower end, not at zero."""

    def step(multiplier, penalty):
        return MULTIPLIERS["controlled"].move(multiplier, penalty, BUDGET), None

    slack, _ = jax.lax.scan(step, jnp.asarray(10.0), jnp.zeros(20_000))
    assert float(slack) == pytest.approx(SMALLEST)
    back, _ = jax.lax.scan(step, slack, jnp.full(3000, 10.0))
    assert float(back) > 10.0
