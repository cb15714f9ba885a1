"""Diffusion against closed forms, and the two methods that stand on it.

With data N(m, s^2) everything is known: x_k ~ N(sqrt(abar) m, v), v = abar s^2 + 1 - abar, and the exact predictor is
sqrt(1 - abar) (x - sqrt(abar) m) / v.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, nn
from fidec.algos import idql
from fidec.algos.srpo import divide_by_rms
from fidec.errors import ConfigError
from fidec.ops import diffusion
from fidec.types import Batch, Spec
from helpers import some
from helpers.algorithms import fast_jit

MEAN, WIDTH = np.array([0.4, -0.2], np.float32), np.array([0.1, 0.3], np.float32)
FIVE = diffusion.vp_schedule(5)
KEY = jax.random.key(0)


def exact(schedule, width: np.ndarray | float = WIDTH):
    def predictor(x, k):
        _, bar = schedule.at(k.astype(int))
        return jnp.sqrt(1 - bar) * (x - jnp.sqrt(bar) * MEAN) / (bar * width**2 + 1 - bar)

    return predictor


# The schedule


@pytest.mark.parametrize(("steps", "low", "high"), [(1, 0.1, 10.0), (5, 0.1, 10.0), (50, 0.1, 20.0)])
def test_alpha_bar_is_the_product_and_the_integral(steps, low, high):
    beta, alpha_bar = diffusion.vp_schedule(steps, low, high)
    assert beta.dtype == alpha_bar.dtype == np.float32
    np.testing.assert_allclose(alpha_bar, np.cumprod(1.0 - beta.astype(float)), rtol=1e-5)
    t = np.arange(1, steps + 1) / steps  # the integral of b_min + (b_max - b_min) t
    np.testing.assert_allclose(alpha_bar, np.exp(-low * t - 0.5 * (high - low) * t**2), rtol=1e-5)
    assert ((beta > 0) & (beta < 1)).all()


def test_the_published_schedule():
    k = np.arange(1, 6)
    np.testing.assert_allclose(FIVE.beta, 1 - np.exp(-0.1 / 5 - 0.5 * 9.9 * (2 * k - 1) / 25), rtol=1e-6)


# Noising


@pytest.mark.parametrize("k", [0, 2, 4])
def test_noising_has_the_right_mean_and_variance(k):
    data = jax.random.normal(KEY, (200_000, 2)) * WIDTH + MEAN
    x = diffusion.add_noise(FIVE, data, jax.random.normal(jax.random.key(1), data.shape), k)
    bar = FIVE.alpha_bar[k]
    np.testing.assert_allclose(x.mean(axis=0), np.sqrt(bar) * MEAN, atol=0.01)
    np.testing.assert_allclose(x.var(axis=0), bar * WIDTH**2 + 1 - bar, rtol=0.02)


def test_noising_one_step_after_another_gives_the_same_variance():
    variance = 0.0
    for beta, bar in zip(*FIVE, strict=True):
        variance = (1 - beta) * variance + beta
        np.testing.assert_allclose(variance, 1 - bar, rtol=1e-5)


def test_every_level_is_drawn_equally_often_and_each_row_has_its_own():
    data = jnp.zeros((50_000, 2))
    x, noise, k = diffusion.draw(FIVE, data, KEY)
    assert k.shape == (50_000, 1)
    np.testing.assert_allclose(np.bincount(k[:, 0]) / len(k), 0.2, atol=0.01)
    np.testing.assert_allclose(x, np.sqrt(1 - FIVE.alpha_bar)[np.asarray(k)] * noise, rtol=1e-6)


# Denoising


def test_at_level_0_the_reverse_mean_is_the_clean_sample():
    data, noise = jax.random.uniform(KEY, (30, 2)), jax.random.normal(jax.random.key(1), (30, 2))
    first = diffusion.add_noise(FIVE, data, noise, 0)
    np.testing.assert_allclose(diffusion.reverse_mean(FIVE, first, noise, 0), data, atol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_reverse_mean_is_that_of_the_posterior(k):
    """The mean of q(x_{k-1} | x_k, a) at the predicted clean a, by Bayes' rule for Gaussians."""
    x, noise = jax.random.normal(KEY, (30, 2)), jax.random.normal(jax.random.key(1), (30, 2))
    beta, bar, before = FIVE.beta[k], FIVE.alpha_bar[k], FIVE.alpha_bar[k - 1]
    clean = (x - np.sqrt(1 - bar) * noise) / np.sqrt(bar)
    expected = (np.sqrt(before) * beta * clean + np.sqrt(1 - beta) * (1 - before) * x) / (1 - bar)
    np.testing.assert_allclose(diffusion.reverse_mean(FIVE, x, noise, k), expected, rtol=1e-3, atol=1e-5)


def test_the_loss_of_the_exact_predictor_is_what_noise_leaves_open():
    data = jax.random.normal(KEY, (200_000, 2)) * WIDTH + MEAN
    bar = FIVE.alpha_bar[:, None]
    remaining = bar * WIDTH**2 / (bar * WIDTH**2 + 1 - bar)
    best = diffusion.loss(FIVE, exact(FIVE), data, jax.random.key(1))
    np.testing.assert_allclose(best, remaining.sum(axis=-1).mean(), rtol=0.02)
    worse = diffusion.loss(FIVE, lambda x, k: 1.1 * exact(FIVE)(x, k), data, jax.random.key(1))
    assert worse > best


# Sampling


def moments(schedule):
    """Mean and variance of the unclipped sampler with the exact predictor: every step is affine in x."""
    mean, variance = np.zeros(2), np.ones(2)
    for k in range(len(schedule.beta))[::-1]:
        beta, bar = schedule.beta[k], schedule.alpha_bar[k]
        v = bar * WIDTH**2 + 1 - bar
        slope, offset = (1 - beta / v) / np.sqrt(1 - beta), beta * np.sqrt(bar) * MEAN / v / np.sqrt(1 - beta)
        mean, variance = slope * mean + offset, slope**2 * variance + (beta if k > 0 else 0.0)
    return mean, variance


def draw(schedule, predictor, rows=100_000, **options):
    noise = jax.random.normal(KEY, (len(schedule.beta), rows, 2))
    return noise, fast_jit(lambda z: diffusion.sample(schedule, predictor, z, **options))(noise)


def test_the_sampler_follows_its_steps():
    _, x = draw(FIVE, exact(FIVE), limit=None)
    mean, variance = moments(FIVE)
    np.testing.assert_allclose(x.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(x.var(axis=0), variance, rtol=0.03)


def test_the_sampler_recovers_gaussian_data_as_steps_grow():
    errors = []
    for steps in (5, 50, 1000):
        schedule = diffusion.vp_schedule(steps, 0.1, 20.0)
        mean, variance = moments(schedule)
        errors.append(np.abs(np.concatenate([mean - MEAN, np.sqrt(variance) - WIDTH])).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01
    schedule = diffusion.vp_schedule(50, 0.1, 20.0)  # more than 16 steps: the loop that is not unrolled
    _, x = draw(schedule, exact(schedule), rows=20_000, limit=None)
    mean, variance = moments(schedule)
    np.testing.assert_allclose(x.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(x.var(axis=0), variance, rtol=0.05)


def test_a_single_point_is_found_exactly_whatever_the_noise():
    _, x = draw(FIVE, exact(FIVE, width=0.0), rows=100)
    np.testing.assert_allclose(x, np.broadcast_to(MEAN, x.shape), atol=1e-5)


def test_the_last_step_adds_no_noise():
    one = diffusion.vp_schedule(1)
    noise, x = draw(one, exact(one), rows=10, limit=None)
    expected = diffusion.reverse_mean(one, noise[0], exact(one)(noise[0], jnp.zeros(1)), 0)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


def test_every_step_is_clipped():
    seen = []

    def predictor(x, k):
        jax.debug.callback(lambda x: seen.append(np.abs(x).max()), x)
        return -5.0 * x

    noise = jax.random.normal(KEY, (5, 100, 2))
    x = diffusion.sample(FIVE, predictor, noise)
    jax.effects_barrier()
    assert np.abs(x).max() <= 1.0
    assert max(seen) > 1.0  # the start is not clipped
    assert sorted(seen)[-2] <= 1.0


# The denoiser


def test_the_denoiser_takes_many_actions_for_each_observation():
    network = nn.Denoiser(2, width=8, blocks=2)
    obs, x, k = jnp.ones((3, 4)), jax.random.normal(KEY, (7, 3, 2)), jnp.full((1,), 3.0)
    params, apply = fast_jit(network.init)(KEY, obs, x, k), fast_jit(network.apply)
    out = apply(params, obs, x, k)
    assert out.shape == x.shape
    each = apply(params, jnp.broadcast_to(obs, (7, 3, 4)), x, jnp.full((7, 3, 1), 3.0))
    np.testing.assert_allclose(out, each, rtol=1e-5, atol=1e-6)
    assert not np.allclose(out, apply(params, obs, x, k - 1.0), atol=1e-3)  # the level matters


def test_dropout_acts_in_training_only():
    network: Any = nn.Denoiser(2, width=32, dropout=0.5)
    args = (jnp.ones((3, 4)), jnp.ones((3, 2)), jnp.zeros((3, 1)))
    params = fast_jit(network.init)(KEY, *args)
    train = fast_jit(lambda key: network.apply(params, *args, training=True, rngs={"dropout": key}))
    trained = [train(jax.random.key(i)) for i in (1, 1, 2)]
    assert np.array_equal(trained[0], trained[1])
    assert not np.allclose(trained[0], trained[2])
    assert not np.allclose(network.apply(params, *args), trained[0])  # and it needs no key


# SRPO's gradient


@pytest.mark.parametrize("subtract", [False, True])
def test_the_pull_to_a_gaussian_behaviour_is_known_and_rests_at_its_mode(subtract):
    actions = np.array([0.7, -0.5], np.float32)
    bar = FIVE.alpha_bar[:, None]
    slope = ((1 - bar) ** 1.5 * np.sqrt(bar) / (bar * WIDTH**2 + 1 - bar)).mean(axis=0)

    def pull(a, key, rows):
        rows = jnp.broadcast_to(a, (rows, 2))
        return diffusion.regularisation_gradient(FIVE, exact(FIVE), rows, key, subtract).mean(axis=0)

    np.testing.assert_allclose(pull(actions, KEY, 100_000), slope * (actions - MEAN), atol=0.01)
    np.testing.assert_allclose(pull(MEAN, KEY, 100_000), 0.0, atol=0.01)
    # Descent along it ends at the mode: the policy's fixed point at beta = 0.
    keys = jax.random.split(KEY, 60)
    descend = fast_jit(lambda a: jax.lax.scan(lambda a, key: (a - 0.3 * pull(a, key, 5000), None), a, keys)[0])
    np.testing.assert_allclose(descend(jnp.asarray(actions)), MEAN, atol=0.03)


def test_subtracting_the_noise_lowers_the_variance_near_the_mode():
    rows = jnp.broadcast_to(MEAN, (10_000, 2))
    plain, less = (diffusion.regularisation_gradient(FIVE, exact(FIVE), rows, KEY, s) for s in (False, True))
    assert less.var() < 0.2 * plain.var()


SMALL = {"hidden": (16,), "denoiser_width": 8, "denoiser_blocks": 1, "diffusion_steps": 3}


@cache
def srpo(**options):
    """init and update, compiled."""
    algorithm = algos.make("srpo", Spec((4,), 2), policy_hidden=(16,), beta=0.3, **SMALL, **options)
    return fast_jit(algorithm.init), fast_jit(algorithm.update)


def batch(rows=16):
    rng = np.random.default_rng(0)
    shapes = ((rows, 4), (rows, 2), (rows,), (rows,), (rows, 4), (rows, 2))
    return Batch(*(jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32) for shape in shapes))


@pytest.mark.slow
def test_srpo_s_step_is_adams_on_the_gradient_written_out():
    """dL/dtheta = (da/dtheta)^T (w eps - beta grad Qbar) / B, by the chain rule from pieces computed apart."""
    (init, update), data, key = srpo(), batch(), jax.random.key(7)
    start = init(KEY)
    # Targets unlike their networks show which of the two is read.
    state = start._replace(target=jax.tree.map(lambda p: 1.5 * p + 0.01, start.target))
    after, metrics = update(state, data, key)

    config = algos.get("srpo").configure(policy_hidden=(16,), beta=0.3, **SMALL)
    critic, _ = idql.value_networks(config)
    behaviour = idql.DiffusionPolicy(config, Spec((4,), 2))
    actor: Any = nn.Actor((16,), 2, activation=jax.nn.relu)
    policy = lambda p: jnp.tanh(actor.apply(p, data.observations))  # noqa: E731
    actions, pullback = jax.vjp(policy, state.params["policy"])
    q = lambda a: critic.apply(state.target["critic"], data.observations, a).mean(axis=0)  # noqa: E731
    uphill = jnp.einsum("iij->ij", fast_jit(jax.jacfwd(q))(actions))
    x, _, k = diffusion.draw(behaviour.schedule, actions, jax.random.split(key)[1])
    eps = behaviour.network.apply(state.target["denoiser"], data.observations, x, k.astype(jnp.float32))
    away = (1 - behaviour.schedule.alpha_bar[np.asarray(k)]) * eps
    (gradient,) = pullback((away - 0.3 * uphill) / len(actions))
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    np.testing.assert_allclose(metrics["grad_norm/policy"], norm, rtol=1e-4)
    # Adam's first moment after one step is a tenth of the gradient.
    moment = after.optimiser["policy"][0].mu
    jax.tree.map(lambda m, g: np.testing.assert_allclose(m, 0.1 * g, rtol=1e-3, atol=1e-7), moment, gradient)
    np.testing.assert_allclose(metrics["q_policy"], q(actions).mean(), rtol=1e-4, atol=1e-6)


def test_srpo_divides_the_gradient_of_q_by_its_root_mean_square_if_asked():
    rows = jnp.asarray([[3.0, -4.0], [0.0, 0.0], [-1e-6, 0.0]])
    expected = [[3 / 12.5**0.5, -4 / 12.5**0.5], [0.0, 0.0], [-(2**0.5), 0.0]]
    np.testing.assert_allclose(divide_by_rms(rows), expected, rtol=1e-5)
    init, update = srpo(normalize_value_gradient=True)
    np.testing.assert_allclose(update(init(KEY), batch(), KEY)[1]["value_push"], 0.3 * 2**0.5, rtol=1e-5)


def test_the_policy_s_loss_reaches_neither_denoiser_nor_critic():
    init, update = srpo(normalize_value_gradient=True)
    state = init(KEY)
    other = state._replace(params=state.params | {"policy": init(jax.random.key(1)).params["policy"]})
    first, second = update(state, batch(), KEY)[0], update(other, batch(), KEY)[0]
    for module in ("value", "critic", "denoiser"):
        jax.tree.map(np.testing.assert_array_equal, first.params[module], second.params[module])


# IDQL


def test_the_best_of_n_grows_with_n():
    algorithm = algos.make("idql", Spec((4,), 2), **SMALL)
    state, observations = fast_jit(algorithm.init)(KEY), jax.random.normal(KEY, (200, 4))
    critic, _ = idql.value_networks(algos.get("idql").configure(**SMALL))
    act = fast_jit(some(algorithm.act_with_base), static_argnames="candidates")
    heights = []
    for n in (2, 64):
        chosen = act(state, observations, KEY, candidates=n)
        best, base = (critic.apply(state.target["critic"], observations, a).min(axis=0) for a in chosen)
        assert (best >= base - 1e-5).all()  # rounding: Q is computed again here
        heights.append(float(best.mean()))
    assert heights[-1] > heights[0] + 1e-3
    # It acts by its targets alone.
    other = state._replace(params={})
    assert np.array_equal(*(act(each, observations, KEY, candidates=2) for each in (other, state)))


def test_the_actor_s_learning_rate_falls_along_a_cosine():
    falling, constant = (idql.optimisers(algos.get("idql").configure(decay_steps=n))["denoiser"] for n in (10, 0))
    ones = {"w": jnp.ones(3)}
    sizes = {"falling": [], "constant": []}
    for name, optimiser in (("falling", falling), ("constant", constant)):
        state = optimiser.init(ones)
        for _ in range(12):
            updates, state = optimiser.update(ones, state, ones)
            sizes[name].append(float(-jax.tree.leaves(updates)[0][0]))
    np.testing.assert_allclose(sizes["constant"], 3e-4, rtol=1e-4)
    expected = 3e-4 * 0.5 * (1 + np.cos(np.pi * np.minimum(np.arange(12), 10) / 10))
    np.testing.assert_allclose(sizes["falling"], expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", ["idql", "srpo"])
def test_senseless_options_and_images_are_refused(name):
    bad = {"diffusion_steps": 0, "dropout": 1.0, "ema_rate": 0.0, "weight_decay": -1.0, "decay_steps": -1}
    bad |= {"samples": 0} if name == "idql" else {"beta": -1.0, "policy_hidden": ()}
    for option, value in bad.items():
        with pytest.raises(ConfigError, match=option):
            algos.get(name).configure(**{option: value})
    with pytest.raises(ConfigError, match="flat observations"):
        algos.make(name, Spec((64, 64, 3), 2, "uint8"))
