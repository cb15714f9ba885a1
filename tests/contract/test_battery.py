"""What every registered method promises, whatever it is: one battery over all of them.

FiDec's and DeFlow's own properties are in test_algorithms.py.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.errors import ConfigError
from fidec.train.policy import Policy, load_policy
from fidec.types import Batch, Spec

OWN = ["bc", "deflow", "fawac", "fbrac", "fidec", "fql", "ifql", "iql", "rebrac"]
SPEC = Spec((4,), 2)
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
every_method = pytest.mark.parametrize("name", OWN)


def options(name):
    known = algos.get(name).config.__dataclass_fields__
    small = {"hidden": (16,), "flow_steps": 2, "samples": 3}
    return algos.get(name).configure(**{key: value for key, value in small.items() if key in known})


@cache
def algorithm(name, spec=SPEC):
    return algos.get(name).make(options(name), spec)


@cache
def fresh(name, seed=0):
    return algorithm(name).init(jax.random.key(seed))


@cache
def jitted_update(name):
    return fast_jit(algorithm(name).update)


def make_batch(rows=8, d=2, seed=0, **columns):
    rng = np.random.default_rng(seed)
    shapes = ((rows, 4), (rows, d), (rows,), (rows,), (rows, 4), (rows, d))
    batch = Batch(*(jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32) for shape in shapes))
    return batch._replace(**{"masks": jnp.asarray(rng.integers(0, 2, rows), jnp.float32), **columns})


def step(name, state=None, batch=None, seed=1):
    return jitted_update(name)(fresh(name) if state is None else state, batch or make_batch(), jax.random.key(seed))


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_battery_covers_every_method_of_the_package():
    assert [name for name in algos.names() if algos.get(name).make.__module__.startswith("fidec.")] == OWN


@every_method
def test_the_state_holds_arrays_of_stable_type(name):
    state = fresh(name)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype), x.weak_type), tree)  # noqa: E731
    after, metrics = jax.eval_shape(algorithm(name).update, state, make_batch(), jax.random.key(0))
    assert describe(after) == describe(state)
    assert "loss" in metrics
    assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())


@every_method
def test_an_update_is_finite_deterministic_and_moves_every_module(name):
    (after, metrics), (again, same) = step(name), step(name)
    assert equal(after, again)
    assert equal(metrics, same)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert int(after.step) == 1
    for module, before in fresh(name).params.items():
        assert not equal(before, after.params[module]), module


@every_method
def test_a_module_moves_by_its_own_loss_alone(name):
    """Changing what one loss sees must not reach the modules whose losses do not see it."""
    plain, _ = step(name)
    rewarded, _ = step(name, batch=make_batch(rewards=jnp.full(8, 5.0)))
    moved = {m for m in plain.params if not equal(plain.params[m], rewarded.params[m])}
    # Rewards enter the critic's target and nothing else within one simultaneous step.
    assert moved == ({"critic"} if "critic" in plain.params else set())


@every_method
def test_no_bootstrapping_where_the_mask_is_zero(name):
    rewards = jnp.linspace(-1.0, 1.0, 8)
    _, metrics = step(name, batch=make_batch(masks=jnp.zeros(8), rewards=rewards + 3.0))
    if "td_target" in metrics:
        np.testing.assert_allclose(metrics["td_target"], 3.0, rtol=1e-5)
    else:
        assert name == "bc"


@every_method
def test_targets_follow_the_networks_as_they_were(name):
    state, _ = step(name)  # one step on: targets and networks differ
    after, _ = step(name, state=state, batch=make_batch(seed=1))
    targets = state.target if name not in ("fidec", "deflow") else {"critic": state.target}
    moved = after.target if name not in ("fidec", "deflow") else {"critic": after.target}
    rate = 0.0 if name == "rebrac" else 0.005  # rebrac's second step is not an actor step
    for module, target in targets.items():
        expected = jax.tree.map(lambda new, old: rate * new + (1 - rate) * old, state.params[module], target)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), moved[module], expected)


@every_method
def test_scan_is_a_loop(name):
    batch, keys = make_batch(), jax.random.split(jax.random.key(3), 3)
    looped = fresh(name)
    for key in keys:
        looped, _ = jitted_update(name)(looped, batch, key)
    scan = fast_jit(
        lambda s, keys: jax.lax.scan(lambda s, k: (algorithm(name).update(s, batch, k)[0], None), s, keys)
    )
    scanned, _ = scan(fresh(name), keys)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), scanned, looped)


@every_method
def test_seeds_side_by_side_equal_single_ones(name):
    batch, key = make_batch(), jax.random.key(3)
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), fresh(name, 0), fresh(name, 1))
    both, _ = fast_jit(jax.vmap(algorithm(name).update, in_axes=(0, None, None)))(states, batch, key)
    for i in range(2):
        single, _ = jitted_update(name)(fresh(name, i), batch, key)
        row = jax.tree.map(lambda leaf: leaf[i], both)  # noqa: B023
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-5), row, single)


@every_method
def test_actions_lie_in_the_box_for_one_observation_and_for_many(name):
    act, key = fast_jit(algorithm(name).act), jax.random.key(0)
    wide = jax.tree.map(lambda leaf: 30.0 * leaf, fresh(name).params)
    many = act(fresh(name)._replace(params=wide), 10.0 * jnp.ones((5, 4)), key)
    assert many.shape == (5, 2)
    assert np.abs(many).max() <= 1.0
    assert act(fresh(name), jnp.ones(4), key).shape == (2,)


@every_method
def test_candidates_and_base_actions_are_given_or_refused(name):
    state, observations, key = fresh(name), jnp.ones((3, 4)), jax.random.key(0)
    if name in ("bc", "iql", "rebrac"):
        with pytest.raises(ConfigError, match="no base policy"):
            algorithm(name).act(state, observations, key, return_base=True)
        with pytest.raises(ConfigError, match="no candidates"):
            algorithm(name).act(state, observations, key, candidates=2)
        return
    if name in ("fawac", "fbrac"):  # the flow itself is the policy
        with pytest.raises(ConfigError, match="no base policy"):
            algorithm(name).act(state, observations, key, return_base=True)
        assert algorithm(name).act(state, observations, key, candidates=2).shape == (3, 2)
        return
    actions, base = algorithm(name).act(state, observations, key, candidates=2, return_base=True)
    assert actions.shape == base.shape == (3, 2)


@every_method
def test_a_batch_of_one_with_a_one_dimensional_action(name):
    small = algorithm(name, Spec((4,), 1))
    state = jax.eval_shape(small.init, jax.random.key(0))
    after, _ = jax.eval_shape(small.update, state, make_batch(rows=1, d=1), jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)


@every_method
def test_the_portable_policy_acts_as_the_state_does(name, tmp_path):
    state, observations, key = fresh(name), jnp.ones((3, 4)), jax.random.key(5)
    small = algorithm(name).policy(state)
    assert len(jax.tree.leaves(small)) < len(jax.tree.leaves(state))
    act = algorithm(name).act
    assert equal(act(state, observations, key), act(small, observations, key))
    policy = Policy(name, options(name), SPEC, state)
    policy.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert np.array_equal(policy(np.ones((3, 4))), loaded(np.ones((3, 4))))
