"""FAN on a problem in which everything that it learns has a closed form.

Two states. At the last one a reward g . a ends the episode. At the first one nothing is paid, and every action leads
to the last one. The behaviour is N(m, diag(s^2)) at both.

    last    Q = Z = g . a, and flow anchoring gives mu(z) = m + 2 s z / pi + 4 d s g / (pi alpha_1)
    first   Q(a, z') = gamma (g . mu(z') - alpha_2 E_t B(z', mu(z'))), and Z is its upper expectile over z'

The anchoring of this policy is known for each z': E_t B = sum over axes of s (pi / 4 - 1 / pi) z'^2 + pi e^2 / (4 s),
where e is the last term of mu, the distance from the end that costs least. All this is for the exact flow. A small
network learns it well enough if the behaviour is wide; the flow to a narrow one is steep.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import root_scalar

from fidec import algos, nn
from fidec.types import Batch, Spec

pytestmark = pytest.mark.slow
MEAN, WIDTHS, GRADIENT = np.array([0.1, -0.2]), np.array([0.5, 0.35]), np.array([0.5, -1.0])
DISCOUNT, WEIGHT, KAPPA = 0.9, 10.0, 0.9
STEPS, ROWS, HIDDEN = 4000, 256, (64, 64)


def expectile(samples, tau):
    """e with tau E(x - e)+ = (1 - tau) E(e - x)+."""
    pull = lambda e: tau * np.maximum(samples - e, 0).mean() - (1 - tau) * np.maximum(e - samples, 0).mean()  # noqa: E731
    return root_scalar(pull, bracket=(samples.min(), samples.max())).root


def train(critic_penalty):
    """Actions at the last state, Z at the first, and the mean of B at the last."""
    options = {"actor_penalty": WEIGHT, "critic_penalty": critic_penalty, "expectile": KAPPA, "target_rate": 0.02}
    algorithm = algos.make("fan", Spec((1,), 2), hidden=HIDDEN, learning_rate=3e-3, discount=DISCOUNT, **options)

    def step(state, key):
        update_key, noise_key = jax.random.split(key)
        actions = MEAN + WIDTHS * jax.random.normal(noise_key, (ROWS, 2))
        last = (jnp.arange(ROWS) % 2).astype(jnp.float32)
        after = jnp.ones((ROWS, 1))
        batch = Batch(last[:, None], actions, last * (actions @ GRADIENT), 1.0 - last, after, actions)
        state, metrics = algorithm.update(state, batch, update_key)
        return state, metrics["next_anchoring"]

    @jax.jit
    def run(key):
        state, anchoring = jax.lax.scan(step, algorithm.init(key), jax.random.split(jax.random.key(1), STEPS))
        drawn = algorithm.act(state, jnp.ones((20_000, 1)), jax.random.key(2))
        actions = MEAN + WIDTHS * jax.random.normal(jax.random.key(3), (2000, 2))
        z: jax.Array = nn.Critic(HIDDEN).apply(state.params["upper"], jnp.zeros((2000, 1)), actions)  # pyright: ignore
        return drawn, z.mean(), anchoring[-1000:].mean()

    return jax.tree.map(np.asarray, run(jax.random.key(0)))


@pytest.mark.parametrize("critic_penalty", [0.0, 1.0])
def test_policy_and_values_are_those_of_the_closed_form(critic_penalty):
    shift = 4 * 2 * WIDTHS * GRADIENT / (np.pi * WEIGHT)
    noise = np.random.default_rng(0).normal(size=(200_000, 2))
    actions = MEAN + 2 / np.pi * WIDTHS * noise + shift
    costs = WIDTHS * (np.pi / 4 - 1 / np.pi) * noise**2 + np.pi / (4 * WIDTHS) * shift**2
    returns = DISCOUNT * (actions @ GRADIENT - critic_penalty * costs.sum(axis=1))

    drawn, first, anchoring = train(critic_penalty)
    np.testing.assert_allclose(drawn.mean(axis=0), MEAN + shift, atol=0.03)
    np.testing.assert_allclose(drawn.std(axis=0), 2 / np.pi * WIDTHS, rtol=0.15)
    np.testing.assert_allclose(anchoring, costs.sum(axis=1).mean(), rtol=0.15)
    np.testing.assert_allclose(first, expectile(returns, KAPPA), atol=0.05)
    assert expectile(returns, KAPPA) - returns.mean() > 0.15  # the mean over noise is not within the tolerance
