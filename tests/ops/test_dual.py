"""The multiplier's two steps."""

from __future__ import annotations

from typing import Any

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
