"""Closed forms and limits of the methods: what each becomes where theory says what it must become.

The gradient of a module is read off the state after a first update: Adam's first moment is then a tenth of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy.optimize import minimize_scalar

from fidec import algos, nn
from fidec.algos.common import backbone
from fidec.ops import policies, values
from fidec.types import Spec
from helpers import some
from helpers.algorithms import assert_close, equal, fast_jit, scaled
from helpers.algorithms import make_batch as random_batch

SPEC, ROWS, HIDDEN = Spec((3,), 2), 8, (8,)
KEY = jax.random.key(7)


@cache
def method(name, preset="recommended", **options):
    """(algorithm, first state, jitted update) at a small size."""
    algorithm = algos.make(name, SPEC, preset=preset, hidden=HIDDEN, **options)
    return algorithm, fast_jit(algorithm.init)(jax.random.key(0)), fast_jit(algorithm.update)


def make_batch():
    return random_batch(ROWS, SPEC.observation_shape, SPEC.action_dim, masks=np.ones(ROWS))


def gradient(after, module):
    """The gradient of a module's loss, as one vector, from the state after the first update."""
    moments = jax.tree.leaves(after.optimiser[module][0].mu)
    return np.concatenate([np.ravel(leaf) for leaf in moments]).astype(np.float64) * 10.0


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


# Values and policies.


def test_an_expectile_goes_from_the_mean_to_the_maximum():
    samples = np.random.default_rng(0).uniform(-1, 3, 200).astype(np.float32)
    loss = jax.jit(lambda v, tau: values.expectile_loss(jnp.asarray(samples) - v, tau), static_argnums=1)

    def expectile(tau):
        found: Any = minimize_scalar(lambda v: float(loss(v, tau)), bounds=(-2, 4), method="bounded")
        return found.x

    found = [expectile(tau) for tau in (0.5, 0.7, 0.9, 0.99, 0.99999)]
    assert found[0] == pytest.approx(samples.mean(), abs=2e-3)
    assert np.all(np.diff(found) > 0)
    assert found[-1] == pytest.approx(samples.max(), abs=2e-2)
    # In between: the pulls of what lies above and below balance, tau E(x - v)+ = (1 - tau) E(v - x)+.
    above, below = np.maximum(samples - found[2], 0).mean(), np.maximum(found[2] - samples, 0).mean()
    assert 0.9 * above == pytest.approx(0.1 * below, rel=1e-2)


def test_advantage_weights_are_a_capped_exponential_without_a_gradient():
    advantages = jnp.asarray([-3.0, -0.1, 0.0, 0.5, 1.5, 20.0])
    weights = policies.advantage_weights(advantages, 3.0)
    np.testing.assert_allclose(weights, np.minimum(np.exp(3.0 * np.asarray(advantages)), 100.0), rtol=1e-5)
    assert policies.advantage_weights(advantages, 3.0, limit=2.0).max() == 2.0
    np.testing.assert_array_equal(policies.advantage_weights(advantages, 0.0), np.ones(6))
    slope = jax.grad(lambda a: policies.advantage_weights(a, 3.0).sum())(advantages)
    np.testing.assert_array_equal(slope, np.zeros(6))


def squashed_log_prob(actions, mean, log_std):
    """log N(arctanh a) - log(1 - a^2): the change of variables as it is taught."""
    return jnp.sum(norm.logpdf(jnp.arctanh(actions), mean, jnp.exp(log_std)) - jnp.log1p(-(actions**2)), axis=-1)


@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.7])
@pytest.mark.parametrize("std", [0.1, 0.6, 1.5])
def test_the_density_of_a_squashed_gaussian_integrates_to_one(mean, std):
    edges = np.linspace(-1.0, 1.0, 200_001)
    middles = 0.5 * (edges[1:] + edges[:-1])[:, None]
    with jax.enable_x64(True):
        mu, log_std = jnp.asarray([mean]), jnp.log(jnp.asarray([std]))
        density = np.exp(squashed_log_prob(jnp.asarray(middles), mu, log_std))
        assert density.mean() * 2.0 == pytest.approx(1.0, abs=1e-3)
        # The log-density that comes with a sample is the density's at that sample, and has its entropy.
        actions, logs = policies.tanh_normal_sample(
            KEY, *(jnp.broadcast_to(each, (4000, 1)) for each in (mu, log_std))
        )
        np.testing.assert_allclose(logs, squashed_log_prob(actions, mu, log_std), rtol=1e-6, atol=1e-8)
        entropy = -2.0 * np.mean(np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0.0))
        assert -np.mean(logs) == pytest.approx(entropy, abs=6 * float(np.std(logs)) / 4000**0.5)


def test_the_best_of_n_uniforms_has_the_mean_of_their_maximum():
    draws = jax.random.uniform(KEY, (32, 20_000, 1))
    for n in (1, 2, 8, 32):
        best = policies.best_of(draws[:n], draws[:n, :, 0])
        assert best.mean() == pytest.approx(n / (n + 1), abs=0.01)


# Methods.


@pytest.mark.slow
def test_ifql_finds_better_actions_among_more_of_them():
    algorithm, state, _ = method("ifql", flow_steps=2, samples=2)
    act = fast_jit(some(algorithm.choose), static_argnames="candidates")
    observations = jax.random.normal(KEY, (500, 3))
    critic: Any = nn.Critic(HIDDEN)

    def value(candidates):
        actions = act(state, observations, jax.random.key(1), candidates=candidates)
        return float(critic.apply(state.params["critic"], observations, actions).min(axis=0).mean())

    found = [value(n) for n in (2, 8, 64)]
    assert np.all(np.diff(found) > 0.02)


@pytest.mark.slow
def test_fbrac_climbs_q_through_every_step_of_its_ode():
    """alpha = 0 leaves -E Q(s, mu(s, z)); its slopes must be those of the loss itself, by differences."""
    algorithm, state, _ = method("fbrac", alpha=0.0, flow_steps=4)

    def double(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, tree)

    with jax.enable_x64(True):
        start, batch = double(state), double(make_batch())
        flat, rebuild = jax.flatten_util.ravel_pytree(start.params["flow"])
        update = fast_jit(algorithm.update)

        def loss(weights):
            params = {**start.params, "flow": rebuild(weights)}
            return float(update(start._replace(params=params), batch, KEY)[1]["flow_loss"])

        slopes = gradient(update(start, batch, KEY)[0], "flow")
        entries = np.argsort(-np.abs(slopes))[[0, 1, 5, 20, 40]]
        for i in entries:
            bump = jnp.zeros_like(flat).at[i].set(1e-6)
            assert slopes[i] == pytest.approx((loss(flat + bump) - loss(flat - bump)) / 2e-6, rel=1e-4)


@pytest.mark.slow
def test_rebrac_as_released_moves_its_actor_by_momentum_on_skipped_steps():
    _, state, update = method("rebrac", preset="released")
    for key in (jax.random.key(8), KEY):  # the second step is the actor's first
        state, _ = update(state, make_batch(), key)
    skipped, _ = update(state, make_batch(), jax.random.key(8))
    assert equal(skipped.target, state.target)
    # Adam on a zero gradient: the first moment decays by 0.9, and the actor goes on.
    before, after = (s.optimiser["actor"][0].mu for s in (state, skipped))
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, 0.9 * old, rtol=1e-5, atol=1e-12), after, before)
    assert not equal(skipped.params["actor"], state.params["actor"])


@pytest.mark.slow
def test_fawac_without_a_temperature_is_flow_matching():
    _, state, update = method("fawac", alpha=0.0, flow_steps=2)
    after, metrics = update(state, make_batch(), KEY)
    assert metrics["weight"] == 1.0
    flow = backbone.FlowPolicy(HIDDEN, SPEC, 2)
    plain_loss = fast_jit(jax.grad(lambda p, b, key: flow.loss(p, b, key)))
    # The second of the update's two keys is that of the flow.
    plain = plain_loss(state.params["flow"], make_batch(), jax.random.split(KEY)[1])
    plain = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(plain)])
    np.testing.assert_allclose(gradient(after, "flow"), plain, rtol=1e-4, atol=1e-6)


def test_fql_asks_its_critic_only_where_there_is_a_choice():
    algorithm, state, _ = method("fql", flow_steps=2)
    observations = make_batch().observations
    blind = state._replace(params={name: state.params[name] for name in ("flow", "policy")})
    alone, base = some(algorithm.act_with_base)(blind, observations, KEY)
    assert equal(alone, algorithm.act(blind, observations, KEY))
    assert alone.shape == base.shape == (ROWS, 2)
    with pytest.raises(KeyError, match="critic"):
        some(algorithm.choose)(blind, observations, KEY, 2)


@pytest.mark.slow
def test_fql_with_a_huge_weight_only_distils():
    alpha = 1e4
    _, state, update = method("fql", alpha=alpha, flow_steps=2)
    # Without a critic to climb what is left is the distillation.
    nothing = {**state.params, "critic": jax.tree.map(jnp.zeros_like, state.params["critic"])}
    both = gradient(update(state, make_batch(), KEY)[0], "policy")
    distilling = gradient(update(state._replace(params=nothing), make_batch(), KEY)[0], "policy")
    assert cosine(both, distilling) > 1.0 - 1e-6
    # The rest is the gradient of Q, which turns it at a small weight.
    assert cosine(both - distilling + 0.1 * distilling / alpha, distilling) < 0.99


@pytest.mark.slow
def test_fan_with_a_huge_weight_only_anchors_and_without_one_does_not_ask_the_flow():
    _, state, update = method("fan", actor_penalty=1e4)
    blind = {name: jax.tree.map(jnp.zeros_like, state.params[name]) for name in ("critic", "upper")}
    both = gradient(update(state, make_batch(), KEY)[0], "policy")
    anchoring = gradient(update(state._replace(params=state.params | blind), make_batch(), KEY)[0], "policy")
    assert cosine(both, anchoring) > 1.0 - 1e-6
    # Without weights the flow has no effect on any other module.
    _, state, update = method("fan", actor_penalty=0.0, critic_penalty=0.0)
    other = state._replace(params={**state.params, "flow": scaled(state.params["flow"], 2.0)})
    usual, changed = (update(each, make_batch(), KEY)[0] for each in (state, other))
    assert all(equal(usual.params[name], changed.params[name]) for name in ("critic", "upper", "policy"))


@pytest.mark.slow
def test_fan_asks_for_the_upper_value_only_where_there_is_a_choice():
    algorithm, state, _ = method("fan", flow_steps=2)
    observations = make_batch().observations
    blind = state._replace(params={name: state.params[name] for name in ("flow", "policy")})
    assert equal(algorithm.act(blind, observations, KEY), algorithm.act(state, observations, KEY))
    upper: Any = nn.Critic(HIDDEN)

    def value(candidates):
        actions = some(algorithm.choose)(state, observations, KEY, candidates)
        return upper.apply(state.params["upper"], observations, actions).mean()

    assert value(64) > value(8) > value(2)


@pytest.mark.slow
def test_a_frozen_flow_changes_nothing_else_of_fan():
    algorithm, state, _ = method("fan", train_flow=False)
    joint, _ = fast_jit(algorithm.update)(state, make_batch(), KEY)
    frozen, _ = fast_jit(algorithm.update)(state, make_batch()._replace(proposals={}), KEY)
    assert_close(frozen, joint, rtol=1e-5, atol=1e-7)
