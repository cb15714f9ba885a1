"""Exploration of the methods: the noise against its closed form, and properties of every exploration."""

from __future__ import annotations

from functools import cache
from math import erf, exp, pi, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.algos.common import base
from fidec.types import Spec
from helpers.algorithms import fast_jit

SPEC = Spec((3,), 2)
ROWS = 20_000
OWN_NOISE = ("calql", "iql", "lps", "rebrac", "rlpd")
ONLINE = sorted(name for name in base.METHODS.builtin() if not algos.get(name).offline_only)


def normal_cdf(z):
    return 0.5 * (1.0 + np.vectorize(erf)(np.asarray(z) / sqrt(2.0)))


@cache
def algorithm(name, **fields):
    small = {"hidden": (8,), "flow_steps": 2, "samples": 3, "denoiser_width": 8, "denoiser_blocks": 1}
    known = algos.get(name).config.__dataclass_fields__
    return algos.make(name, SPEC, **{key: value for key, value in small.items() if key in known}, **fields)


def exploration(name, **fields) -> Any:
    made = algorithm(name, **fields)
    return made.explore or made.act


@cache
def some_state(name):
    """Random parameters, because an initialisation would have to be compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(algorithm(name).init, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)


def with_constant_output(state, bias):
    """The actor answers every observation with `bias`: that of its last layer, and all other weights are zero.

    Cal-QL's learnt scale and offset of the log standard deviation are those that it begins with, 1 and -1.
    """
    scalars = {"log_std_scale": 1.0, "log_std_offset": -1.0}

    def set_leaf(path, leaf):
        return bias if leaf.shape == bias.shape else np.full_like(leaf, scalars.get(path[-1].key, 0.0))

    actor = jax.tree_util.tree_map_with_path(set_leaf, state.params["actor"])
    assert sum(leaf.shape == bias.shape for leaf in jax.tree.leaves(actor)) == 1
    return state._replace(params={**state.params, "actor": actor})


def acted(name, state, **fields):
    return fast_jit(algorithm(name, **fields).act)(state, np.ones((4, 3), np.float32), jax.random.key(0))


def explored(name, bias, **fields):
    """Many explorations of one observation, (ROWS, 2), for an actor of constant output."""
    state = with_constant_output(some_state(name), np.asarray(bias, np.float32))
    actions = fast_jit(exploration(name, **fields))(state, np.ones((ROWS, 3), np.float32), jax.random.key(1))
    return np.asarray(actions, np.float64), state


def assert_distribution(samples, cdf):
    """Kolmogorov and Smirnov: the largest distance of the two distribution functions; beyond it once in 10,000."""
    ordered = np.sort(samples)
    distance = np.abs(cdf(ordered) - (np.arange(len(ordered)) + 0.5) / len(ordered)).max()
    assert distance < 2.3 / sqrt(len(ordered))


def test_iql_explores_with_a_gaussian_around_its_mean():
    actions, _ = explored("iql", [0.1, -0.2], exploration_noise=0.1)  # seven deviations from the box: nothing clipped
    for column, mean in zip(actions.T, (0.1, -0.2), strict=True):
        assert_distribution(column, lambda x: normal_cdf((x - mean) / 0.1))  # noqa: B023
    correlation = np.mean(np.prod((actions - [0.1, -0.2]) / 0.1, axis=1))
    assert abs(correlation) < 4 / sqrt(ROWS)  # each component has its own noise


def test_iqls_noise_has_unit_variance_and_is_added_before_the_clip():
    actions, _ = explored("iql", [0.0, 3.0])
    for column, mean in zip(actions.T, (0.0, 3.0), strict=True):
        for end, share in ((1.0, 1 - normal_cdf(1.0 - mean)), (-1.0, normal_cdf(-1.0 - mean))):
            assert np.mean(column == end) == pytest.approx(share, abs=4 * sqrt(0.25 / ROWS))


def test_rebracs_noise_is_clipped():
    actions, state = explored("rebrac", [0.0, 0.3])
    mean = np.tanh([0.0, 0.3])
    noise = actions - mean
    assert np.abs(noise).max() == pytest.approx(0.5, abs=1e-6)
    # Clipped at c = 2.5 deviations: var = s^2 [P(|z| < c) - 2 c phi(c) + c^2 P(|z| > c)].
    c, inside = 2.5, 2 * normal_cdf(2.5) - 1
    variance = 0.2**2 * (inside - 2 * c * exp(-c * c / 2) / sqrt(2 * pi) + c * c * (1 - inside))
    np.testing.assert_allclose(noise.var(axis=0), variance, rtol=0.05)
    assert np.mean(np.abs(noise) > 0.5 - 1e-6) == pytest.approx(1 - inside, abs=0.002)
    np.testing.assert_allclose(acted("rebrac", state)[0], mean, rtol=1e-6)  # evaluations have no noise


def test_rebrac_explores_inside_the_box_and_with_its_own_options():
    actions, _ = explored("rebrac", [0.0, 3.0], exploration_noise=1.0, exploration_noise_limit=0.7, noise=0.0)
    assert actions.max() == 1.0
    assert np.abs(actions[:, 0]).max() == pytest.approx(0.7, abs=1e-6)
    assert actions[:, 1].min() == pytest.approx(np.tanh(3.0) - 0.7, abs=1e-6)


@pytest.mark.parametrize(("name", "offset"), [("rlpd", 0.0), ("calql", -1.0)])  # Cal-QL's log std begins at -1
def test_tanh_gaussians_explore_with_a_sample_and_act_with_the_mean(name, offset):
    means, log_stds = np.array([0.5, -1.0]), np.array([-0.7, 0.3])
    actions, state = explored(name, [*means, *log_stds])
    for column, mean, std in zip(actions.T, means, np.exp(log_stds + offset), strict=True):
        # P(tanh(u) < a) = P(u < artanh(a)). In float32 a tanh may round to the border.
        assert_distribution(column, lambda a: normal_cdf((np.arctanh(np.clip(a, -1 + 1e-9, 1 - 1e-9)) - mean) / std))  # noqa: B023
    np.testing.assert_allclose(acted(name, state)[0], np.tanh(means), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "fields"), [("iql", {"exploration_noise": 0.0}), ("rebrac", {"exploration_noise_limit": 0.0})]
)
def test_without_noise_it_explores_as_it_acts(name, fields):
    state = some_state(name)
    explored = fast_jit(exploration(name, **fields))(state, np.ones((4, 3), np.float32), jax.random.key(0))
    np.testing.assert_array_equal(explored, acted(name, state))


@pytest.mark.parametrize("name", OWN_NOISE)
def test_a_lane_does_not_depend_on_the_others(name):
    """vmap over (observation, key), as environments are run, against single ones; the policy against the state."""
    made, state = algorithm(name), some_state(name)
    observations = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(5), 3)
    lanes = fast_jit(jax.vmap(exploration(name), in_axes=(None, 0, 0)))(made.policy(state), observations, keys)
    alone = fast_jit(exploration(name))
    for row, observation, key in zip(lanes, observations, keys, strict=True):
        np.testing.assert_allclose(alone(state, observation, key), row, atol=1e-6)
    assert len(np.unique(np.asarray(lanes), axis=0)) == 3


@pytest.mark.parametrize("name", ONLINE)
def test_every_exploration_can_be_mapped_over_observations(name):
    """Traced only. tests/algos runs the actions of every method."""
    made = algorithm(name)
    explore = jax.vmap(exploration(name), in_axes=(None, 0, 0))
    keys = jax.random.split(jax.random.key(0), 4)
    policy = jax.eval_shape(lambda key: made.policy(made.init(key)), keys[0])
    assert jax.eval_shape(explore, policy, jnp.ones((4, 3)), keys) == jax.ShapeDtypeStruct((4, 2), jnp.float32)
