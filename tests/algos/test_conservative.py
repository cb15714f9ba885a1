"""Cal-QL and RLPD: the conservative term and its calibration, the entropy's temperature, and who moves by what."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, nn
from fidec.errors import ConfigError
from fidec.ops import policies, values
from fidec.types import Batch, Spec
from helpers.algorithms import equal, fast_jit
from helpers.algorithms import make_batch as random_batch

ROWS = 16
SMALL = {"hidden": (16,), "learning_rate": 3e-3}
LAGRANGE = {"lagrange_gap": 100.0, "action_samples": 1}


@cache
def algorithm(name, **options):
    return algos.make(name, Spec((3,), 2), **SMALL, **options)


@cache
def jitted(name, **options):
    """Compilation is nearly all of this file's time: tests vary states and batches where they can, not options."""
    return fast_jit(algorithm(name, **options).update)


@cache
def start(name, **options):
    return fast_jit(algorithm(name, **options).init)(jax.random.key(0))


def strong(tree):
    """Without the weak types of Python's numbers, for which an update is compiled again."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def with_params(state, **modules):
    return state._replace(params=state.params | strong(modules))


def make_batch(**columns):
    return random_batch(ROWS, (3,), 2, **{"masks": np.ones(ROWS), **columns})


def step(name, state=None, batch=None, **options):
    state = start(name, **options) if state is None else state
    return jitted(name, **options)(state, batch or make_batch(), jax.random.key(1))


def q_1d(actions):
    """A Q function of a one-dimensional action, rough enough to be no Gaussian."""
    return jnp.sin(4.0 * actions) + 2.0 * actions


def test_the_soft_maximum_is_the_integral_of_exp_q():
    """Uniform and policy draws, weighted by their densities, estimate one integral, as well as sqrt(n) says."""
    grid = np.linspace(-1, 1, 20_001)
    exact = np.log(np.trapezoid(np.exp(np.asarray(q_1d(grid), np.float64)), grid))

    def error(key, n):
        uniform_key, policy_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, (n, 100, 1), minval=-1.0, maxval=1.0)
        mean, log_std = jnp.full((n, 100, 1), 0.3), jnp.full((n, 100, 1), -0.2)
        drawn, drawn_log = policies.tanh_normal_sample(policy_key, mean, log_std)
        q = q_1d(jnp.concatenate([uniform, drawn])).squeeze(-1)
        log_densities = jnp.concatenate([jnp.full((n, 100), np.log(0.5)), drawn_log])
        gap = values.conservative_gap(q[None], log_densities, jnp.zeros((1, 100)))
        return jnp.sqrt(jnp.mean((gap - np.log(2 * n) - exact) ** 2))

    errors = [float(fast_jit(partial(error, n=n))(jax.random.key(n))) for n in (20, 2000)]
    assert errors[1] < 0.03
    assert 5.0 < errors[0] / errors[1] < 20.0  # ten for a hundred times the samples


def test_the_gap_is_taken_against_the_data_and_its_gradient_is_a_softmax():
    q, log_densities = jnp.array([[[1.0], [2.0], [-1.0]]]), jnp.array([[0.5], [-0.5], [0.0]])
    data = jnp.array([[4.0]])
    np.testing.assert_allclose(
        values.conservative_gap(q, log_densities, data), values.conservative_gap(q, log_densities, 0 * data) - 4.0
    )
    by_q, by_data = jax.grad(lambda q, d: values.conservative_gap(q, log_densities, d).sum(), (0, 1))(q, data)
    np.testing.assert_allclose(by_q[0, :, 0], jax.nn.softmax(q[0, :, 0] - log_densities[:, 0]), rtol=1e-6)
    np.testing.assert_allclose(by_data, -1.0)


def test_calibration_stops_the_push_exactly_where_the_return_is_above_q():
    rng = np.random.default_rng(0)
    q, returns = jnp.asarray(rng.normal(size=(2, 5, 6)), jnp.float32), jnp.asarray(rng.normal(size=6), jnp.float32)
    gradient = jax.grad(
        lambda q: values.conservative_gap(values.calibrate(q, returns), jnp.zeros((5, 6)), q[:, 0]).sum()
    )
    pushed = np.asarray(gradient(q))[:, 1:]  # the first one also counts as the data's
    below = np.asarray(q < returns)[:, 1:]
    assert below.any()
    assert not below.all()
    np.testing.assert_array_equal(pushed[below], 0.0)
    assert (pushed[~below] > 0).all()


@pytest.mark.slow
def test_with_low_returns_calql_is_cql_and_with_high_ones_every_policy_action_is_bounded():
    plain, metrics = step("calql", calibrate=False, batch=make_batch(returns=None))
    assert metrics["calibrated"] == 0.0
    low, metrics = step("calql", batch=make_batch(returns=jnp.full(ROWS, -1e3)))
    assert metrics["calibrated"] == 0.0
    # Two programs, equal up to rounding: allowed is a fiftieth of a step.
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=0.02 * 1e-4)
    jax.tree.map(close, low, plain)
    high, metrics = step("calql", batch=make_batch(returns=jnp.full(ROWS, 1e3)))
    assert metrics["calibrated"] == 1.0
    assert {module for module in high.params if not equal(high.params[module], low.params[module])} == {"critic"}


def test_returns_are_in_the_rewards_scale():
    """Where the returns are all that counts, the gap grows by reward_scale times what they grow by."""
    low, high = (step("calql", batch=make_batch(returns=jnp.full(ROWS, g)))[1] for g in (50.0, 60.0))
    np.testing.assert_allclose(high["conservative_gap"] - low["conservative_gap"], 100.0, rtol=1e-4)


def test_returns_are_asked_for():
    with pytest.raises(ConfigError, match=r"batch\.returns.*dataset\.batch\(discount\)"):
        algorithm("calql").update(start("calql"), make_batch(returns=None), jax.random.key(0))
    assert algos.get("calql").needs_returns
    assert not algos.get("rlpd").needs_returns


def trained(state, **options):
    """300 steps on actions around (-0.5, -0.5), all worth nothing."""
    rng, metrics = np.random.default_rng(1), {}
    nothing, zeros = jnp.zeros((ROWS, 3)), jnp.zeros(ROWS)
    for i in range(300):
        actions = jnp.asarray(-0.5 + 0.05 * rng.normal(size=(ROWS, 2)), jnp.float32)
        batch = Batch(nothing, actions, zeros, zeros, nothing, actions, zeros - 100.0)
        state, metrics = jitted("calql", **options)(state, batch, jax.random.key(i))
    return metrics


@pytest.mark.slow
def test_conservatism_lowers_q_away_from_the_data():
    state = start("calql", **LAGRANGE)
    # A multiplier of e^-30 stands for a weight of nothing.
    free = trained(with_params(state, multiplier=jnp.full((), -30.0)), **LAGRANGE)
    conservative = trained(start("calql"))
    assert free["conservative_weight"] < 1e-9
    assert abs(free["q_data"] - free["q_random"]) < 0.1
    assert conservative["q_data"] - conservative["q_random"] > 1.0


def test_the_multiplier_rises_while_the_gap_is_above_its_goal_and_falls_below():
    for returns, sign in ((1e3, 1.0), (-1e3, -1.0)):  # the returns make the gap large, or leave it small
        after, metrics = step("calql", batch=make_batch(returns=jnp.full(ROWS, returns)), **LAGRANGE)
        assert np.sign(metrics["conservative_gap"] - LAGRANGE["lagrange_gap"]) == sign
        assert metrics["conservative_weight"] == pytest.approx(5.0 * np.e, rel=1e-5)
        np.testing.assert_allclose(after.params["multiplier"], 1.0 + sign * SMALL["learning_rate"], rtol=1e-5)
        # Its loss is minus the conservative part of a head's; the critic's has two heads.
        part = metrics["conservative_weight"] * (metrics["conservative_gap"] - LAGRANGE["lagrange_gap"])
        np.testing.assert_allclose(metrics["multiplier_loss"], -part, rtol=1e-5)
        np.testing.assert_allclose(metrics["critic_loss"], 2 * (metrics["td_loss"] + part), rtol=1e-5)
    assert "multiplier" not in start("calql").params


@pytest.mark.slow
def test_the_target_is_the_best_of_the_sampled_next_actions():
    batch = make_batch(rewards=jnp.zeros(ROWS))

    def target(**options):
        state = start("calql", **options)
        steep = jax.tree.map(lambda leaf: 10.0 * leaf, state.target)
        return step("calql", state._replace(target=steep), batch, **options)[1]["td_target"]

    assert target() > target(**LAGRANGE)  # ten samples, and one


def narrowed(name):
    """The state whose policy has almost no width."""
    state = start(name)
    inner = dict(state.params["actor"]["params"])
    if name == "calql":
        inner["log_std_offset"] = jnp.full((), -10.0)
    else:
        layers = inner["MLP_0"]
        bias = layers["Dense_1"]["bias"].at[2:].set(-10.0)
        inner["MLP_0"] = layers | {"Dense_1": layers["Dense_1"] | {"bias": bias}}
    return with_params(state, actor={"params": inner})


@pytest.mark.parametrize("name", ["calql", "rlpd"])
def test_the_temperature_follows_the_entropy(name):
    """A wide policy lets it fall, a narrow one raises it."""
    goal = {"calql": -2.0, "rlpd": -1.0}[name]
    for state, sign in ((start(name), -1.0), (narrowed(name), 1.0)):
        after, metrics = step(name, state)
        assert np.sign(goal - metrics["entropy"]) == sign
        assert np.sign(after.params["temperature"]) == sign
        assert metrics["temperature"] == 1.0
        weight = 1.0 if name == "rlpd" else 0.0  # alpha, or log alpha
        np.testing.assert_allclose(metrics["temperature_loss"], weight * (metrics["entropy"] - goal), rtol=1e-5)


@pytest.mark.parametrize("weight", [jnp.exp, lambda log_temperature: log_temperature])
def test_entropy_comes_to_its_target(weight):
    """A Gaussian on one concave Q, its temperature learnt along: both forms of the loss meet H*."""
    target = -0.7

    def losses(actor, log_temperature, key):
        mean, log_std = (jnp.broadcast_to(x, (256, 1)) for x in actor)
        actions, log_probs = policies.tanh_normal_sample(key, mean, log_std)
        q = -5.0 * (actions.squeeze(-1) - 0.2) ** 2
        own = policies.soft_policy_loss(q, log_probs, jnp.exp(log_temperature))
        return own + policies.temperature_loss(weight(log_temperature), log_probs, target), -log_probs.mean()

    def one(carry, key):
        grads, entropy = jax.grad(losses, (0, 1), has_aux=True)(*carry, key)
        return jax.tree.map(lambda x, g: x - 0.03 * g, carry, grads), entropy

    begin = ((jnp.zeros(()), jnp.zeros(())), jnp.zeros(()))
    entropy = np.asarray(jax.lax.scan(one, begin, jax.random.split(jax.random.key(0), 3000))[1])
    assert entropy[0] > target + 0.5
    np.testing.assert_allclose(entropy[-300:].mean(), target, atol=0.05)


def test_stop_gradients_of_the_entropy_losses():
    q, log_probs = jnp.arange(3.0), jnp.ones(3)
    assert jax.grad(lambda t: policies.soft_policy_loss(q, log_probs, t))(jnp.ones(())) == 0.0
    gradient = jax.grad(lambda x: policies.temperature_loss(jnp.ones(()), x, -1.0))(log_probs)
    np.testing.assert_array_equal(gradient, np.zeros(3))


@pytest.mark.parametrize("name", ["calql", "rlpd"])
def test_the_actors_loss_moves_the_actor_alone(name):
    """The temperature weighs the actor's loss; it must not reach the critic, whose targets have no entropy."""
    state = start(name)
    cold, hot = step(name, state)[0], step(name, with_params(state, temperature=jnp.full((), 2.0)))[0]
    assert not equal(cold.params["actor"], hot.params["actor"])
    assert equal(cold.params["critic"], hot.params["critic"])


def test_rlpd_backs_the_entropy_up_only_if_asked():
    batch = make_batch(rewards=jnp.zeros(ROWS))
    plain, soft = (step("rlpd", batch=batch, **options)[1] for options in ({}, {"backup_entropy": True}))
    # The entropy is that of other draws at other states; a fresh policy has nearly the same everywhere.
    assert soft["td_target"] - plain["td_target"] == pytest.approx(0.99 * float(plain["entropy"]), abs=0.5)


def test_rlpd_has_as_many_critics_as_asked():
    shapes = jax.eval_shape(algorithm("rlpd", critics=5).init, jax.random.key(0)).params["critic"]
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes)} == {5}


def test_calqls_networks_are_orthogonal_and_begin_small():
    critic = nn.Critic((8, 8), layer_norm=False, output_scale=0.01, kernel=nn.orthogonal_init)
    params = fast_jit(critic.init)(jax.random.key(0), jnp.zeros((1, 3)), jnp.zeros((1, 2)))["params"]["VmapMLP_0"]
    assert not any("LayerNorm" in name for name in params)
    for head in range(2):
        hidden = params["Dense_1"]["kernel"][head]
        np.testing.assert_allclose(hidden.T @ hidden, 2.0 * np.eye(8), atol=1e-5)
        assert np.linalg.norm(params["Dense_2"]["kernel"][head]) == pytest.approx(0.01, rel=1e-5)


def test_gaussian_actors():
    observations = 1e6 * jnp.ones((4, 3))
    plain: Any = nn.GaussianActor((8,), 2)
    mean, log_std = plain.apply(fast_jit(plain.init)(jax.random.key(0), observations), observations)
    assert mean.shape == log_std.shape == (4, 2)
    assert set(np.unique(log_std)) <= {-5.0, 2.0}
    affine: Any = nn.GaussianActor((8,), 2, affine_log_std=True, log_std_bounds=(-20.0, 2.0))
    params = fast_jit(affine.init)(jax.random.key(0), observations)
    np.testing.assert_allclose(affine.apply(params, jnp.zeros((4, 3)))[1], -1.0)
    assert params["params"]["log_std_scale"] == 1.0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("calql", {"alpha": -1.0}),
        ("calql", {"action_samples": 0}),
        ("calql", {"reward_scale": 0.0}),
        ("calql", {"policy_learning_rate": float("nan")}),
        ("rlpd", {"critics": 0}),
        ("rlpd", {"q_aggregate": "max"}),
    ],
)
def test_senseless_options_are_refused(name, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        algos.get(name).configure(**options)


@pytest.mark.parametrize("name", ["calql", "rlpd"])
def test_images_are_refused(name):
    with pytest.raises(ConfigError, match="flat observations"):
        algos.make(name, Spec((64, 64, 3), 2, "uint8"))
