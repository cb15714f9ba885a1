"""Consistency models: boundary condition, noise levels, loss and sampler in closed form; CAC, which uses them."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fidec import algos, nn
from fidec.algos.cac import CACConfig
from fidec.errors import ConfigError
from fidec.ops import consistency
from fidec.types import Batch, Spec
from helpers import some
from helpers.algorithms import fast_jit


def wild(x, sigma):
    """Some network with large outputs."""
    return 50.0 * jnp.sin(3.0 * x) + sigma


def test_the_smallest_level_changes_nothing_whatever_the_network():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    smallest = jnp.full((6, 1), consistency.SIGMA_MIN)
    np.testing.assert_array_equal(consistency.consistent(wild)(x, smallest), x)
    np.testing.assert_array_equal(jax.jit(consistency.consistent(wild))(x, smallest), x)


def test_the_coefficients_are_their_formulas_and_limits():
    sigma = np.array([0.002, 0.5, 2.0, 80.0])
    np.testing.assert_allclose(
        consistency.c_skip(jnp.asarray(sigma)), 0.25 / ((sigma - 0.002) ** 2 + 0.25), rtol=1e-5
    )
    expected = 0.5 * (sigma - 0.002) / np.sqrt(sigma**2 + 0.25)
    np.testing.assert_allclose(consistency.c_out(jnp.asarray(sigma)), expected, rtol=1e-5)
    assert consistency.c_skip(jnp.asarray(80.0)) < 1e-4
    assert consistency.c_out(jnp.asarray(80.0)) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("number", [2, 3, 37, 150])
def test_levels_rise_from_0_002_to_80(number):
    levels = np.asarray(jax.jit(consistency.level)(jnp.arange(number), jnp.asarray(number)))
    np.testing.assert_allclose(levels[[0, -1]], [0.002, 80.0], rtol=1e-5)
    assert (np.diff(levels) > 0).all()
    np.testing.assert_allclose(levels, np.linspace(0.002 ** (1 / 7), 80 ** (1 / 7), number) ** 7, rtol=1e-4)


def test_the_schedule_grows_from_2_to_150_and_restarts_or_stays():
    steps = jnp.asarray([0, 1, 12_500, 49_999, 50_000, 50_001, 99_999, 100_000, 900_000])
    restarting = jax.jit(partial(consistency.schedule, steps=50_000))(steps)
    np.testing.assert_array_equal(restarting, [2, 3, 76, 150, 2, 3, 150, 2, 2])
    staying = jax.jit(partial(consistency.schedule, steps=50_000, restart=False))(steps)
    np.testing.assert_array_equal(staying, [2, 3, 76, 150, 150, 150, 150, 150, 150])
    block = np.asarray(consistency.schedule(jnp.arange(300), steps=300))
    assert (np.diff(block) >= 0).all()
    assert (block[0], block[-1]) == (2, 150)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_solution_for_a_single_action_has_no_loss(scaled):
    """Paths a + sigma z of one action end at a + sigma_min z, which is where f must send all of their points."""
    action = jnp.asarray([0.3, -0.7])

    def exact(x, sigma):
        return action + consistency.SIGMA_MIN / sigma * (x - action)

    def wrong(x, sigma):
        return exact(x, sigma) + 0.1 * (sigma > consistency.SIGMA_MIN * 1.01)

    actions = jnp.broadcast_to(action, (256, 2))
    measure = partial(consistency.loss, actions=actions, number=20, key=jax.random.key(0), scaled=scaled)
    assert measure(exact, exact) < 1e-6
    assert measure(wrong, exact) > (0.0099 if not scaled else 0.1)


def test_the_scale_is_100_over_the_step_between_levels():
    """With two levels there is one step only, from 0.002 to 80."""
    actions = jax.random.uniform(jax.random.key(1), (16, 2))
    measure = partial(consistency.loss, wild, wild, actions, 2, jax.random.key(0))
    assert measure(scaled=True) == pytest.approx(100 / (80 - 0.002) * float(measure(scaled=False)), rel=1e-4)


def test_no_gradient_reaches_the_averaged_network():
    actions = jax.random.uniform(jax.random.key(1), (16, 2))

    def loss(online, average):
        f, fbar = (consistency.consistent(lambda x, sigma, w=w: w * jnp.tanh(x)) for w in (online, average))
        return consistency.loss(f, fbar, actions, 10, jax.random.key(0))

    online, average = jax.grad(loss, argnums=(0, 1))(1.0, 2.0)
    assert abs(online) > 1e-3
    assert average == 0.0


def test_gradients_go_through_both_sampling_steps():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        weights, noise = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=(2, 4, 3)))

        def total(w, noise):
            f = consistency.consistent(lambda x, sigma: jnp.tanh(x @ w / (1.0 + sigma)))
            return jnp.sum(consistency.sample(f, noise, (80.0, 2.0)) ** 2)

        slopes = fast_jit(jax.grad(total, argnums=(0, 1)))(weights, noise)
        total = fast_jit(total)
        for argument, entry in [(0, (0, 0)), (0, (2, 1)), (1, (0, 1, 2)), (1, (1, 3, 0))]:
            bump = [jnp.zeros_like(weights), jnp.zeros_like(noise)]
            bump[argument] = bump[argument].at[entry].set(1e-5)
            up, down = total(weights + bump[0], noise + bump[1]), total(weights - bump[0], noise - bump[1])
            expected = float(up - down) / 2e-5
            assert abs(expected) > 1e-6  # the first step's noise counts too
            np.testing.assert_allclose(slopes[argument][entry], expected, rtol=1e-5, atol=1e-8)


def test_the_sampler_is_its_two_lines():
    noise = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    f = consistency.consistent(lambda x, sigma: jnp.cos(x) + 0.1 * sigma)
    first = f(80.0 * noise[0], jnp.asarray(80.0))
    second = f(first + np.sqrt(2.0**2 - 0.002**2) * noise[1], jnp.asarray(2.0))
    np.testing.assert_allclose(consistency.sample(f, jnp.asarray(noise), (80.0, 2.0)), second, rtol=1e-5, atol=1e-6)


def test_the_network_lays_features_beside_actions():
    network = nn.ConsistencyNetwork((8,), 3)
    x, sigma = jnp.ones((4, 5, 3)), jnp.full((4, 5, 1), 2.0)
    params = fast_jit(network.init)(jax.random.key(0), jnp.ones((5, 2)), x[0], sigma[0])
    apply = fast_jit(network.apply)
    assert params["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (3 + 16 + 2, 8)
    assert [params["params"]["level"][f"Dense_{i}"]["kernel"].shape for i in (0, 1)] == [(16, 32), (32, 16)]
    stacked = apply(params, jnp.ones((5, 2)), x, sigma)
    np.testing.assert_allclose(stacked[2], apply(params, jnp.ones((5, 2)), x[0], sigma[0]), atol=1e-6)
    waves = np.asarray(nn.sinusoids(jnp.asarray([np.pi / 3]), 16))
    np.testing.assert_allclose(waves[[0, 8]], [0.75**0.5, 0.5], atol=1e-6)  # the highest frequency is 1
    np.testing.assert_allclose(waves[[7, 15]], [np.pi / 3 * 1e-4, 1.0], atol=1e-6)  # the lowest is 1e-4


# CAC itself.

ROWS = 8


@cache
def cac(**options):
    algorithm = algos.make("cac", Spec((3,), 2), hidden=(8,), **options)
    return algorithm, fast_jit(algorithm.init)(jax.random.key(0)), fast_jit(algorithm.update)


def make_batch(reward=0.0):
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(ROWS, 3)), rng.uniform(-1, 1, (ROWS, 2))
    batch = Batch(observations, actions, np.full(ROWS, reward), np.ones(ROWS), observations, actions)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), batch)


def with_constant_critic(params, heads):
    """Two critics that give a number each, whatever they see."""
    (name,) = params["params"]
    last = {"kernel": jnp.zeros((2, 8, 1)), "bias": jnp.asarray(heads, jnp.float32)[:, None]}
    return {"params": {name: {**params["params"][name], "Dense_1": last}}}


@pytest.mark.slow
def test_the_average_moves_every_fifth_step_after_the_first_thousand():
    _, state, update = cac()
    drifted = state._replace(params=jax.tree.map(lambda leaf: leaf + 1.0, state.params))
    for step, moves in [(0, False), (995, False), (1000, True), (1001, False), (1005, True)]:
        after, metrics = update(drifted._replace(step=jnp.asarray(step, jnp.int32)), make_batch(), jax.random.key(0))
        rate = 0.005 if moves else 0.0
        jax.tree.map(
            lambda new, old: np.testing.assert_allclose(new - old, rate, atol=1e-6),  # noqa: B023
            after.target["actor"],
            state.target["actor"],
        )
        assert metrics["levels"] == consistency.schedule(step, 50_000)


def test_a_coin_says_which_critic_is_climbed_and_which_gives_the_scale():
    _, state, update = cac()
    critic = with_constant_critic(state.params["critic"], (2.0, 5.0))
    state = state._replace(params={**state.params, "critic": critic})
    terms = []
    for seed in range(12):
        _, metrics = update(state, make_batch(), jax.random.key(seed))
        terms.append(float((metrics["actor_loss"] - metrics["consistency"]) / CACConfig().eta))
    distance = np.abs(np.subtract.outer(terms, [-2 / 5, -5 / 2]))
    assert distance.min(axis=1).max() < 1e-3
    assert set(distance.argmin(axis=1)) == {0, 1}


@cache
def acting():
    """(act, draws): acting on many equal observations, and values of actions that no critic has picked."""
    algorithm, state, _ = cac()
    critic = nn.Critic((8,), layer_norm=False, activation=jax.nn.mish)
    observations = jnp.ones((4000, 3))
    jitted = fast_jit(some(algorithm.choose), static_argnames="candidates")

    @fast_jit
    def q(params, actions):
        return critic.apply(params, observations, actions)

    def act(target, critics, seed):
        """The values by `critics` of actions chosen by `target`; leading axis: the critics."""
        chosen = jitted(state._replace(target={"critic": target}), observations, jax.random.key(seed), candidates=4)
        return np.asarray(q(critics, chosen))

    flat = with_constant_critic(state.target["critic"], (0.0, 0.0))
    return act, lambda critics: np.stack([act(flat, critics, seed) for seed in range(4)])


def test_the_target_is_the_best_of_the_draws_by_the_lower_critic():
    _, state, update = cac()
    target = {**state.target, "critic": with_constant_critic(state.target["critic"], (4.0, 3.0))}
    _, metrics = update(state._replace(target=target), make_batch(1.0), jax.random.key(0))
    assert metrics["td_target"] == pytest.approx(1.0 + 0.99 * 3.0)
    # The same at critics that tell actions apart: the mean of the best of ten, which at the start are the actor's.
    ones = make_batch()._replace(next_observations=jnp.ones((ROWS, 3)))
    values = [float(update(state, ones, jax.random.key(seed))[1]["td_target"]) / 0.99 for seed in range(20)]
    draws = acting()[1](state.target["critic"]).swapaxes(0, 1).reshape(2, -1, 10)
    best = draws.max(axis=2).min(axis=0)
    assert np.mean(values) == pytest.approx(best.mean(), abs=float(0.4 * best.std()))
    assert np.mean(values) > draws.min(axis=0).mean() + best.std()


def test_gradients_are_clipped_by_module():
    _, state, update = cac()
    after, metrics = update(state, make_batch(1e4), jax.random.key(0))
    assert metrics["grad_norm/critic"] > 1e3
    moments = after.optimiser["critic"][1][0].mu
    assert optax.tree.norm(moments) == pytest.approx(0.1 * 5.0, rel=1e-4)  # Adam's first moment is 0.1 of a gradient


def test_acting_draws_by_the_softmax_of_the_lower_target_critic():
    act, unpicked = acting()
    steep = jax.tree.map(lambda leaf: 2.0 * leaf, cac()[1].target["critic"])
    draws = unpicked(steep).min(axis=1)
    weights = np.exp(draws) / np.exp(draws).sum(axis=0)
    chosen = act(steep, steep, 9).min(axis=0)
    spread = float(draws.std())
    assert chosen.mean() == pytest.approx((weights * draws).sum(axis=0).mean(), abs=0.06 * spread)
    assert draws.mean() + 0.2 * spread < chosen.mean() < draws.max(axis=0).mean() - 0.2 * spread


@pytest.mark.parametrize(
    "field",
    [
        {"eta": -1.0},
        {"sample_sigmas": (2.0, 80.0)},
        {"sample_sigmas": ()},
        {"sample_sigmas": (100.0, 2.0)},
        {"schedule_steps": 0},
        {"backup_samples": 0},
        {"samples": 0},
        {"grad_clip": 0.0},
        {"ema_rate": 0.0},
        {"ema_interval": 0},
        {"ema_start": -1},
    ],
    ids=str,
)
def test_a_value_without_sense_is_refused_and_named(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        CACConfig(**field)


def test_images_are_refused():
    with pytest.raises(ConfigError, match="flat observations"):
        algos.make("cac", Spec((64, 64, 3), 2))
