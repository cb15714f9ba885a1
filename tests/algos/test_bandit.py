"""Learning on a bandit whose answer is known: three modes of behaviour, a linear reward, no next state.

With reward g . a and DeFlow's budget on mean(delta^2), the best displacement is the same everywhere and gains
|g| sqrt(d * budget). FiDec's metric is not the identity: it spends the same budget where the behaviour is wide,
and gains more here.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.types import Batch, Spec
from helpers import some

CENTRES = np.array([[-0.5, -0.5], [0.5, 0.0], [-0.3, 0.6]])
MASSES = np.array([0.5, 0.3, 0.2])
WIDTHS = np.array([0.15, 0.08])
GRADIENT = np.array([0.6, 0.8])
BUDGET, STEPS, ROWS = 0.01, 1200, 128
IDEAL_GAIN = float(np.linalg.norm(GRADIENT) * np.sqrt(2 * BUDGET))


def behaviour(rows):
    rng = np.random.default_rng(0)
    mode = rng.choice(3, rows, p=MASSES)
    return np.clip(CENTRES[mode] + WIDTHS * rng.normal(size=(rows, 2)), -1, 1).astype(np.float32)


def masses(actions):
    distance = np.linalg.norm(np.asarray(actions)[:, None] - CENTRES, axis=-1)
    return np.bincount(distance.argmin(axis=1), minlength=3) / len(actions)


def train(name, base=True, **options):
    name, _, preset = name.partition(":")
    options = {"hidden": (32, 32), "learning_rate": 3e-3, "preset": preset or "recommended", **options}
    algorithm = algos.make(name, Spec((1,), 2), **options)
    data = jnp.asarray(behaviour(20_000))

    def step(state, key):
        update_key, row_key = jax.random.split(key)
        actions = data[jax.random.randint(row_key, (ROWS,), 0, len(data))]
        nothing = jnp.zeros((ROWS, 1))
        rewards = actions @ jnp.asarray(GRADIENT, jnp.float32)
        batch = Batch(nothing, actions, rewards, jnp.zeros(ROWS), nothing, actions, returns=rewards)
        return algorithm.update(state, batch, update_key)

    @jax.jit
    def run(key):
        start = algorithm.init(key)
        state, metrics = jax.lax.scan(step, start, jax.random.split(jax.random.key(1), STEPS))
        act = some(algorithm.act_with_base if base else algorithm.act)
        return metrics, act(state, jnp.zeros((5000, 1)), jax.random.key(2))

    return data, *jax.tree.map(np.asarray, run(jax.random.key(0)))


@pytest.mark.parametrize("name", ["fidec", pytest.param("deflow", marks=pytest.mark.slow)])
def test_refined_policy_gains_value_inside_its_budget(name):
    data, metrics, (refined, base) = train(name, flow_steps=5, budget=BUDGET, multiplier_init=15.0)
    # The flow is the behaviour: its mean and the share of each mode.
    np.testing.assert_allclose(base.mean(axis=0), np.mean(data, axis=0), atol=0.06)
    np.testing.assert_allclose(masses(base), MASSES, atol=0.08)
    # The constraint holds in the long run, and is used.
    late = metrics["penalty"][-STEPS // 3 :].mean()
    assert 0.6 * BUDGET < late < 1.25 * BUDGET
    # The refinement has learnt to go uphill.
    gain = ((refined - base) @ GRADIENT).mean()
    assert gain > 0.7 * IDEAL_GAIN
    if name == "deflow":
        assert gain < 1.2 * IDEAL_GAIN
    assert np.abs(masses(refined) - masses(base)).max() < 0.15  # it moves actions, it does not swap modes
    # The critic has learnt the reward.
    assert metrics["critic_loss"][-100:].mean() < 0.01 * np.var(np.asarray(data) @ GRADIENT)


# What a method's own trade-off between value and data is set to here, and the gain over the behaviour's mean value
# that it must reach. A weight of the data that is not too strong for a reward of this size. The behaviour's mean
# value is -0.2: a policy that has learnt nothing and stays at zero gains about 0.2, and every margin is above that.
RIVALS = {
    "cac": ({"eta": 0.3, "schedule_steps": STEPS, "ema_start": 0, "ema_interval": 1, "ema_rate": 0.05}, 0.3),
    "iql": ({"alpha": 3.0}, 0.35),
    "ifql": ({"flow_steps": 5, "samples": 16}, 0.5),
    "fql": ({"flow_steps": 5, "alpha": 3.0}, 0.28),
    "fan": ({"flow_steps": 5, "actor_penalty": 3.0}, 0.28),
    "fawac": ({"flow_steps": 5, "alpha": 3.0}, 0.35),
    # Five seeds gained 0.36 to 0.81, some of it outside the data: up to 4 deviations from the nearest mode. One step
    # from a circle of noise is a coarse model of three modes; its own samples are 2 to 4 deviations away.
    "lps": ({}, 0.3),
    "fbrac": ({"flow_steps": 5, "alpha": 1.0}, 0.6),
    # Its ten steps tilt between the modes too little: they gain 0.38, and the exact policy 0.49.
    "qam": ({"inverse_temperature": 3.0, "critics": 2}, 0.3),
    "qam:edit": ({"inverse_temperature": 3.0, "critics": 2}, 0.33),
    "qam:one_step": ({"flow_steps": 5, "inverse_temperature": 3.0, "critics": 2, "alpha": 3.0}, 0.45),
    "rebrac": ({"actor_penalty": 0.3}, 0.5),
    # Four seeds gained 0.67 to 0.77; the policy stays at the edge of a mode.
    "calql": ({"alpha": 0.01, "reward_scale": 1.0, "policy_learning_rate": 3e-3}, 0.5),
    # Plain SAC: nothing holds it near the data, and it leaves for (0.7, 0.8), where there is none. It gains 1.25 to
    # 1.28 because this reward goes on as the critic guesses. That shows that it optimises, not that it is safe.
    "rlpd": ({}, 0.9),
    "idql": ({"denoiser_width": 32, "denoiser_blocks": 1, "ema_rate": 0.01, "samples": 16}, 0.4),
    "srpo": (
        {"denoiser_width": 32, "denoiser_blocks": 1, "ema_rate": 0.01, "policy_hidden": (32, 32), "beta": 0.1},
        0.25,
    ),
}


def test_bc_is_the_mean_of_the_behaviour():
    data, _, actions = train("bc", base=False)
    np.testing.assert_allclose(actions, np.broadcast_to(np.mean(data, axis=0), actions.shape), atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIVALS)
def test_rivals_beat_the_behaviour(name):
    options, margin = RIVALS[name]
    data, metrics, actions = train(name, base=False, **options)
    gain = (actions @ GRADIENT).mean() - np.mean(np.asarray(data) @ GRADIENT)
    assert gain > margin
    error = metrics.get("td_loss", metrics["critic_loss"])  # Cal-QL's critic has another term in its loss
    assert error[-100:].mean() < 0.05 * np.var(np.asarray(data) @ GRADIENT)


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.0, 3.0])
def test_qam_is_the_behaviour_tilted_by_the_reward(tau):
    """exp(tau g . a) moves a mode by tau S g, and multiplies its mass by exp(tau g . c + tau^2 g . S g / 2)."""
    _, _, (actions, base) = train("qam", flow_steps=40, inverse_temperature=tau, critics=2)
    np.testing.assert_allclose(masses(base), MASSES, atol=0.08)
    weights = MASSES * np.exp(tau * CENTRES @ GRADIENT + 0.5 * tau**2 * (WIDTHS * GRADIENT) @ (WIDTHS * GRADIENT))
    expected = weights / weights.sum()
    np.testing.assert_allclose(masses(actions), expected, atol=0.08)
    mean = expected @ CENTRES + tau * WIDTHS**2 * GRADIENT
    np.testing.assert_allclose(actions.mean(axis=0), mean, atol=0.06)
