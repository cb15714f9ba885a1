"""One battery that every method passes, in each of its presets.

An update takes seconds to compile, so each case compiles one update and most tests only vary its inputs. The
programs are compiled without LLVM's optimisation, which nothing here depends on.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.types import Batch, Spec

OBS, ACT, ROWS = 4, 2, 8
CANDIDATES = 5
SPEC = Spec((OBS,), ACT)
SMALL = {"hidden": (16,), "flow_steps": 2}
CASES = {
    "fidec-recommended": ("fidec", "recommended", {}),
    "fidec-paper": ("fidec", "paper", {}),
    # The global clip couples the modules by design (see tests/invariants); here its limit is out of reach.
    "fidec-released": ("fidec", "released", {"samples": 3, "grad_clip": 1e6}),
    "fidec-isotropic": ("fidec", "recommended", {"metric": "isotropic"}),
    "fidec-local": ("fidec", "recommended", {"metric": "local"}),
    "deflow": ("deflow", "recommended", {}),
}
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
every_case = pytest.mark.parametrize("case", CASES)


@cache
def algorithm(case, spec=SPEC):
    name, preset, fields = CASES[case]
    return algos.make(name, spec, preset=preset, **{**SMALL, **fields})


def config_of(case):
    name, preset, fields = CASES[case]
    return algos.get(name).configure(preset, **{**SMALL, **fields})


@cache
def fresh(case, seed=0):
    return algorithm(case).init(jax.random.key(seed))


@cache
def jitted_update(case):
    return fast_jit(algorithm(case).update)


def make_batch(seed=0, rows=ROWS, act=ACT, **columns):
    rng = np.random.default_rng(seed)
    made = Batch(
        observations=jnp.asarray(rng.normal(size=(rows, OBS)), jnp.float32),
        actions=jnp.asarray(rng.uniform(-1, 1, (rows, act)), jnp.float32),
        rewards=jnp.asarray(rng.normal(size=rows), jnp.float32),
        masks=jnp.asarray(rng.integers(0, 2, rows), jnp.float32),
        next_observations=jnp.asarray(rng.normal(size=(rows, OBS)), jnp.float32),
        next_actions=jnp.asarray(rng.uniform(-1, 1, (rows, act)), jnp.float32),
    )
    return made._replace(**columns)


def step(case, state=None, batch=None, seed=7):
    batch = make_batch() if batch is None else batch
    return jitted_update(case)(fresh(case) if state is None else state, batch, jax.random.key(seed))


def with_params(state, **modules):
    return state._replace(params={**state.params, **modules})


def scaled(tree, factor):
    return jax.tree.map(lambda x: factor * x, tree)


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def assert_close(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


# ---- The state and the metrics


@every_case
def test_state_holds_arrays_only_and_keeps_its_types(case):
    """Same structure, shapes and types before and after, weak types included: else a second compilation."""
    state = fresh(case)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    types = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype), x.weak_type), tree)  # noqa: E731
    after, metrics = jax.eval_shape(algorithm(case).update, state, make_batch(), jax.random.key(0))
    assert types(after) == types(state)
    assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())
    for leaf in jax.tree.leaves(state):
        assert leaf.dtype in (jnp.float32, jnp.int32)
        assert not leaf.weak_type


@every_case
def test_update_moves_everything_and_stays_finite(case):
    state = fresh(case)
    after, metrics = step(case)
    assert int(after.step) == int(state.step) + 1
    assert {"loss", "critic_loss", "flow_loss", "residual_loss", "penalty", "multiplier"} <= set(metrics)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((after, metrics)))
    for name, module in state.params.items():
        assert not equal(module, after.params[name]), name
    total = metrics["critic_loss"] + metrics["flow_loss"] + metrics["residual_loss"]
    np.testing.assert_allclose(metrics["loss"], total, rtol=1e-5)


@every_case
def test_update_is_deterministic_and_uses_its_key(case):
    first, second, other = step(case), step(case), step(case, seed=8)
    assert equal(first, second)
    for name in ("critic", "flow", "residual"):
        assert not equal(first[0].params[name], other[0].params[name])


@every_case
def test_seeds_give_different_networks(case):
    assert not equal(fresh(case, 0).params["flow"], fresh(case, 1).params["flow"])
    assert equal(fresh(case, 0), algorithm(case).init(jax.random.key(0)))


# ---- The ways to run an update


@pytest.mark.slow
@every_case
def test_jit_changes_nothing(case):
    """Slow: without jit every operation of an update is compiled by itself."""
    eager = algorithm(case).update(fresh(case), make_batch(), jax.random.key(7))
    assert_close(eager, step(case), rtol=1e-4, atol=1e-5)


def by_hand(case, state, steps):
    for i in range(steps):
        state, metrics = step(case, state, make_batch(i), seed=20 + i)
    return state, metrics


def stacked(steps):
    batches = jax.tree.map(lambda *x: jnp.stack(x), *(make_batch(i) for i in range(steps)))
    return batches, jnp.stack([jax.random.key(20 + i) for i in range(steps)])


def scan(case, state, inputs):
    return jax.lax.scan(lambda s, x: algorithm(case).update(s, *x), state, inputs)


@pytest.mark.parametrize(
    "case",
    [
        "fidec-recommended",
        "fidec-paper",
        pytest.param("fidec-released", marks=pytest.mark.slow),
        pytest.param("deflow", marks=pytest.mark.slow),
    ],
)
def test_scan_and_seeds_side_by_side_equal_single_updates(case):
    """vmap over two seeds of a scan over three batches, against a Python loop for each seed.

    Equal up to rounding: a batched matrix product adds its terms in another order.
    """
    seeds = jnp.stack([jax.random.key(0), jax.random.key(1)])

    def both(seeds, inputs):
        return jax.vmap(lambda seed: scan(case, algorithm(case).init(seed), inputs)[0])(seeds)

    together = fast_jit(both)(seeds, stacked(3))
    for i in range(2):
        alone, _ = by_hand(case, fresh(case, i), 3)
        assert_close(jax.tree.map(lambda x: x[i], together), alone, rtol=1e-3, atol=2e-5)  # noqa: B023


def scanned_and_looped():
    """The training loop's program, jit(scan) that consumes its state, and the same updates one by one."""
    case = "fidec-recommended"
    program = fast_jit(lambda state, inputs: scan(case, state, inputs), donate_argnums=0)
    consumed = algorithm(case).init(jax.random.key(0))
    state, metrics = program(consumed, stacked(4))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(consumed.params))  # a fresh state shares no buffers
    return (state, jax.tree.map(lambda x: x[-1], metrics)), by_hand(case, fresh(case), 4)


def test_scan_with_donation_equals_a_loop():
    (state, metrics), (alone, last) = scanned_and_looped()
    assert_close(state, alone, rtol=1e-4, atol=0.02 * 4 * config_of("fidec-recommended").learning_rate)
    assert_close(metrics, last, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # the emitters with which the normal tier compiles may fuse a loop's body in another way
def test_scan_with_donation_equals_a_loop_bit_for_bit():
    assert equal(*scanned_and_looped())


@every_case
def test_batch_of_one_and_one_dimensional_actions_have_the_right_shapes(case):
    made = algorithm(case, Spec((OBS,), 1))
    state = jax.eval_shape(made.init, jax.random.key(0))
    after, metrics = jax.eval_shape(made.update, state, make_batch(rows=1, act=1), jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, state)
    assert all(value.shape == () for value in metrics.values())


def test_batch_of_one_with_a_one_dimensional_action_runs():
    """In one dimension every metric that is scaled by its trace is the isotropic one: D = delta^2."""
    made = algorithm("fidec-recommended", Spec((OBS,), 1))
    state = fast_jit(made.init)(jax.random.key(0))
    after, metrics = fast_jit(made.update)(state, make_batch(rows=1, act=1), jax.random.key(0))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((after, metrics)))
    np.testing.assert_allclose(metrics["penalty"], metrics["displacement"] ** 2, rtol=1e-4)


# ---- What each module learns from: changing one input changes exactly the modules that should see it


def changed(case, state=None, batch=None):
    """The modules whose step differs from that of the unchanged state and batch."""
    start, start_after = fresh(case), step(case)[0]
    state = start if state is None else state
    after = step(case, state, batch)[0]
    moves = lambda new, old: jax.tree.map(jnp.subtract, new, old)  # noqa: E731
    # The optimiser's first moment is the gradient; the multiplier of a projected dual has none.
    return {
        name
        for name in start.params
        if (
            not equal(after.optimiser[name], start_after.optimiser[name])
            if name in start.optimiser
            else not equal(
                moves(after.params[name], state.params[name]), moves(start_after.params[name], start.params[name])
            )
        )
    }


def sees_updated_critic(case):
    return {"residual"} if config_of(case).order == "alternating" else set()


@every_case
def test_rewards_and_target_reach_the_critic_only(case):
    batch = make_batch()
    only = {"critic"} | sees_updated_critic(case)
    assert changed(case, batch=batch._replace(rewards=-10 * batch.rewards)) == only
    # Adam's first step hardly depends on the size of a gradient, so a small change may stop at the critic.
    moved_target = fresh(case)._replace(target=scaled(fresh(case).target, 1.1))
    assert {"critic"} <= changed(case, moved_target) <= only
    later = batch._replace(next_observations=batch.next_observations * 0.9)
    assert {"critic"} <= changed(case, batch=later) <= only


@every_case
def test_data_actions_reach_critic_and_flow_only(case):
    batch = make_batch()
    expected = {"critic", "flow"} | sees_updated_critic(case)
    if case == "fidec-paper":
        expected |= {"multiplier"}  # its metric is read off the flow that has just been updated
    assert changed(case, batch=batch._replace(actions=0.9 * batch.actions)) == expected


@every_case
def test_multiplier_reaches_the_residual_only(case):
    state = fresh(case)
    assert changed(case, with_params(state, multiplier=state.params["multiplier"] * 1.1)) - {"multiplier"} == {
        "residual"
    }


@every_case
def test_critic_does_not_reach_flow_or_multiplier(case):
    state = fresh(case)
    larger = with_params(state, critic=scaled(state.params["critic"], 1.01))
    assert changed(case, larger) == {"critic", "residual"}


@every_case
def test_residual_does_not_reach_the_flow(case):
    state = fresh(case)
    larger = with_params(state, residual=scaled(state.params["residual"], 1.01))
    assert changed(case, larger) == {"critic", "residual", "multiplier"}


@every_case
def test_unused_column(case):
    batch = make_batch()
    assert changed(case, batch=batch._replace(next_actions=-batch.next_actions)) == set()


# ---- Targets and the multiplier


@every_case
def test_masks_of_zero_make_the_target_the_reward(case):
    batch = make_batch(masks=jnp.zeros(ROWS))
    _, metrics = step(case, batch=batch)
    np.testing.assert_allclose(metrics["td_target"], batch.rewards.mean(), rtol=1e-6)
    _, bootstrapped = step(case, batch=make_batch(masks=jnp.ones(ROWS)))
    assert abs(float(bootstrapped["td_target"] - metrics["td_target"])) > 1e-4


@every_case
def test_target_follows_the_critic_of_before_the_step(case):
    state = fresh(case)._replace(target=scaled(fresh(case).target, 0.5))
    after, _ = step(case, state)
    expected = jax.tree.map(lambda p, t: 0.005 * p + 0.995 * t, state.params["critic"], state.target)
    assert_close(after.target, expected, rtol=1e-5, atol=1e-7)


@every_case
def test_multiplier_rises_with_a_violation_and_falls_without(case):
    state, config = fresh(case), config_of(case)
    for factor, sign in ((10.0, 1), (0.0, -1)):
        after, metrics = step(case, with_params(state, residual=scaled(state.params["residual"], factor)))
        violation = float(metrics["penalty"]) - config.budget
        assert np.sign(violation) == sign
        move = float(after.params["multiplier"] - state.params["multiplier"])
        expected = sign * config.learning_rate if config.dual == "log" else violation * config.dual_step_size
        assert move == pytest.approx(expected, rel=2e-2)
        start = config.multiplier_init
        assert float(metrics["multiplier"]) == pytest.approx(start, rel=1e-5)


def test_projected_multiplier_reaches_zero_and_stays_there():
    state = fresh("fidec-paper")
    idle = with_params(
        state, residual=scaled(state.params["residual"], 0.0), multiplier=jnp.asarray(5e-4, jnp.float32)
    )
    after, _ = step("fidec-paper", idle)
    assert float(after.params["multiplier"]) == 0.0


# ---- A frozen flow (that all else goes on as ever is in test_battery.py)


def frozen_step(case, state, **fields):
    name, preset, own = CASES[case]
    made = algos.make(name, SPEC, preset=preset, **{**SMALL, **own, "train_flow": False, **fields})
    return fast_jit(made.update)(state, make_batch(1), jax.random.key(8))


def test_a_frozen_flow_in_turn_with_the_others():
    """The paper's order and its projected multiplier: the critic comes before the flow, the others after it."""
    case = "fidec-paper"
    state, _ = step(case)
    after, metrics = frozen_step(case, state)
    usual, logged = step(case, state, make_batch(1), seed=8)
    assert {name for name in state.params if equal(after.params[name], state.params[name])} == {"flow"}
    assert equal(after.optimiser["flow"], state.optimiser["flow"])
    assert_close(after.params["critic"], usual.params["critic"], rtol=1e-5, atol=1e-7)
    assert set(metrics) == set(logged)


def test_a_frozen_flow_does_not_count_in_the_norm_that_clips_the_others():
    state, limit = fresh("fidec-released"), 0.01
    after, metrics = frozen_step("fidec-released", state, grad_clip=limit)
    norms = {name: float(metrics[f"grad_norm/{name}"]) for name in ("critic", "residual", "multiplier")}
    together = np.sqrt(sum(norm**2 for norm in norms.values()))
    assert together > limit
    for name, norm in norms.items():
        moments = jax.tree.leaves(after.optimiser[name][0].mu)  # a tenth of the first gradient
        moment = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in moments))
        assert moment == pytest.approx(0.1 * norm * limit / together, rel=1e-3)
    assert equal(after.optimiser["flow"], state.optimiser["flow"])


@pytest.mark.slow
def test_a_frozen_flow_under_the_closed_form():
    made = algos.make("fidec", SPEC, **SMALL, refine="closed_form", train_flow=False)
    state = fast_jit(made.init)(jax.random.key(0))
    after, metrics = fast_jit(made.update)(state, make_batch(), jax.random.key(1))
    assert equal((after.params["flow"], after.optimiser["flow"]), (state.params["flow"], state.optimiser["flow"]))
    assert not equal(after.params["critic"], state.params["critic"])
    assert metrics["flow_loss"] > 0


# ---- Acting


@pytest.fixture(scope="module")
def observations():
    return np.random.default_rng(3).normal(size=(ROWS, OBS)).astype(np.float32)


@every_case
def test_actions_are_inside_the_box_for_one_observation_and_for_many(case, observations):
    act, state, key = algorithm(case).act, fresh(case), jax.random.key(0)
    wild = with_params(state, residual=scaled(state.params["residual"], 50.0))
    for s in (state, wild):
        many, one = act(s, observations, key), act(s, observations[0], key)
        assert many.shape == (ROWS, ACT)
        assert one.shape == (ACT,)
        assert many.dtype == one.dtype == jnp.float32
        assert np.abs(many).max() <= 1.0
        assert np.abs(one).max() <= 1.0
    assert np.abs(act(wild, observations, key)).max() == 1.0  # the box was needed
    assert equal(act(state, observations, key), act(state, observations, key))
    assert not equal(act(state, observations, key), act(state, observations, jax.random.key(1)))


def test_jit_changes_no_action(observations):
    act, state, key = algorithm("fidec-recommended").act_with_base, fresh("fidec-recommended"), jax.random.key(0)
    jitted = fast_jit(act, static_argnames="candidates")
    options = {"candidates": CANDIDATES}
    assert_close(jitted(state, observations, key, **options), act(state, observations, key, **options), atol=1e-5)


@every_case
def test_base_action_is_the_flow_alone(case, observations):
    made, state, key = algorithm(case), fresh(case), jax.random.key(0)
    actions, base = made.act_with_base(state, observations, key)
    assert equal(actions, made.act(state, observations, key))
    assert not equal(actions, base)
    still = with_params(state, residual=scaled(state.params["residual"], 0.0))
    moved, same_base = made.act_with_base(still, observations, key)
    assert equal(moved, base)
    assert equal(same_base, base)


@every_case
def test_the_best_candidate_is_taken(case, observations):
    """The chosen action has the highest Q of those drawn, each with its own base action."""
    from fidec import nn

    made, state, key = algorithm(case), fresh(case), jax.random.key(0)
    chosen, base = made.act_with_base(state, observations, key, CANDIDATES)
    # All candidates at once: the same noise reaches `act` as one batch.
    repeated = np.broadcast_to(observations, (CANDIDATES, ROWS, OBS))
    every, every_base = made.act_with_base(state, repeated, key)
    q = nn.Critic(SMALL["hidden"]).apply(state.params["critic"], repeated, every).mean(axis=0)
    best = np.argmax(q, axis=0)
    assert len(set(best.tolist())) > 1
    for row in range(ROWS):
        np.testing.assert_allclose(chosen[row], every[best[row], row], atol=1e-6)
        np.testing.assert_allclose(base[row], every_base[best[row], row], atol=1e-6)
    assert made.choose(state, observations[0], key, CANDIDATES).shape == (ACT,)


@every_case
def test_the_portable_policy_acts_the_same_and_is_small(case, observations):
    made, state, key = algorithm(case), fresh(case), jax.random.key(0)
    policy = made.policy(state)
    assert policy.target is None
    assert policy.optimiser is None
    assert len(jax.tree.leaves(policy)) < 0.5 * len(jax.tree.leaves(state))
    for candidates in (1, CANDIDATES):
        both = [made.act_with_base(each, observations, key, candidates) for each in (policy, state)]
        assert equal(*both)
