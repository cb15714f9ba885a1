"""What every registered method promises, whatever it is: one battery over all of them.

FiDec's and DeFlow's own properties are in test_algorithms.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.errors import ConfigError
from fidec.store.trees import load_tree, save_tree
from fidec.train.policy import Policy, load_policy, select_act
from fidec.types import Batch, Spec

# fmt: off
OWN = [
    "bc", "cac", "calql", "deflow", "fawac", "fbrac", "fidec",
    "fql", "idql", "ifql", "iql", "rebrac", "rlpd", "srpo",
]
# fmt: on
# Who takes images; only these seven were published on them, the others with an encoder merely work.
PUBLISHED_ON_PIXELS = ["deflow", "fbrac", "fidec", "fql", "ifql", "iql", "rebrac"]
# A case is a method, or a method on images: "fql/pixels".
PIXELS = [f"{name}/pixels" for name in PUBLISHED_ON_PIXELS]
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def cases(*quick):
    """Over all cases, those that are not named here in the slow tier."""
    marks = {case: () if case in quick else pytest.mark.slow for case in OWN + PIXELS}
    return pytest.mark.parametrize("case", [pytest.param(case, marks=marks[case]) for case in marks])


every_case = cases(*OWN, "iql/pixels")
few_cases = cases("fidec", "iql", "rebrac", "cac")  # where each test compiles the method once more


def method_of(case):
    return case.partition("/")[0]


def spec_of(case, d=2):
    return Spec((8, 8, 6), d, "uint8") if case.endswith("/pixels") else Spec((4,), d)


def options(case):
    name = method_of(case)
    known = algos.get(name).config.__dataclass_fields__
    small = {"hidden": (16,), "flow_steps": 2, "samples": 3, "ema_start": 0, "ema_interval": 1, "backup_samples": 2}
    small |= {"denoiser_width": 8, "denoiser_blocks": 1, "diffusion_steps": 2, "policy_hidden": (16,)}
    return algos.get(name).configure(**{key: value for key, value in small.items() if key in known})


@cache
def algorithm(case, d=2):
    return algos.get(method_of(case)).make(options(case), spec_of(case, d))


@cache
def jitted_init(case, d=2):
    return fast_jit(algorithm(case, d).init)


@cache
def fresh(case, seed=0):
    return jitted_init(case)(jax.random.key(seed))


@cache
def jitted_update(case):
    return fast_jit(algorithm(case).update)


@cache
def jitted_act(case):
    return fast_jit(algorithm(case).act)


def make_batch(case, rows=8, d=2, seed=0, **columns):
    rng = np.random.default_rng(seed)
    shape = spec_of(case).observation_shape
    shapes = ((rows, *shape), (rows, d), (rows,), (rows,), (rows, *shape), (rows, d), (rows,))
    batch = Batch(*(jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32) for shape in shapes))
    if case.endswith("/pixels"):
        images = jnp.asarray(rng.integers(0, 256, (2, rows, *shape)), jnp.uint8)
        batch = batch._replace(observations=images[0], next_observations=images[1])
    if not algos.get(method_of(case)).needs_returns:  # who does not ask for returns must not need them
        batch = batch._replace(returns=None)
    return batch._replace(**{"masks": jnp.asarray(rng.integers(0, 2, rows), jnp.float32), **columns})


def observations_of(case, *leading, scale=1.0):
    """Observations of one value, with these leading axes."""
    spec = spec_of(case)
    return jnp.full(
        (*leading, *spec.observation_shape), 7 if case.endswith("/pixels") else scale, spec.observation_dtype
    )


def step(case, state=None, batch=None, seed=1):
    batch = make_batch(case) if batch is None else batch
    return jitted_update(case)(fresh(case) if state is None else state, batch, jax.random.key(seed))


def critic_targets(case, state):
    """The targets by module; the residual methods have the critic's alone."""
    return {"critic": state.target} if method_of(case) in ("fidec", "deflow") else state.target


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_battery_covers_every_method_of_the_package():
    assert [name for name in algos.names() if algos.get(name).make.__module__.startswith("fidec.")] == OWN


@every_case
def test_the_state_holds_arrays_of_stable_type(case):
    state = fresh(case)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype), x.weak_type), tree)  # noqa: E731
    after, metrics = jax.eval_shape(algorithm(case).update, state, make_batch(case), jax.random.key(0))
    assert describe(after) == describe(state)
    assert "loss" in metrics
    assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())


@every_case
def test_an_update_is_finite_deterministic_and_moves_every_module(case):
    (after, metrics), (again, same) = step(case), step(case)
    assert equal(after, again)
    assert equal(metrics, same)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert int(after.step) == 1
    for module, before in fresh(case).params.items():
        assert not equal(before, after.params[module]), module


# Whose parameters a module's gradient may depend on, besides its own: a loss that leaks into another module shows as
# a dependence that is not here, and a forgotten one as a dependence that is missing.
RESIDUAL = {
    "critic": {"flow", "residual"},
    "flow": set(),
    "residual": {"critic", "flow", "multiplier"},
    "multiplier": {"flow", "residual"},
}
EXPECTILE = {"value": set(), "critic": {"value"}}
SEES = {
    "bc": {"actor": set()},
    "cac": {"critic": set(), "actor": {"critic"}},
    "calql": {"critic": {"actor"}, "actor": {"critic", "temperature"}, "temperature": {"actor"}},
    "deflow": RESIDUAL,
    "fawac": {"critic": {"flow"}, "value": set(), "flow": {"critic", "value"}},
    "fbrac": {"critic": {"flow"}, "flow": {"critic"}},
    "fidec": RESIDUAL,
    "fql": {"critic": {"policy"}, "flow": set(), "policy": {"critic", "flow"}},
    "idql": {**EXPECTILE, "denoiser": set()},
    "ifql": {**EXPECTILE, "flow": set()},
    "iql": {**EXPECTILE, "actor": {"critic", "value"}},
    "rebrac": {"critic": set(), "actor": {"critic"}},
    "rlpd": {"critic": {"actor"}, "actor": {"critic", "temperature"}, "temperature": {"actor"}},
    "srpo": {**EXPECTILE, "denoiser": set(), "policy": set()},
}


@every_case
def test_gradients_reach_the_parameters_they_should_and_no_others(case):
    """After one step Adam's first moment is the gradient; it is read from there."""
    plain, metrics = step(case)
    sees = {module: set() for module in plain.params}
    for other, parameters in fresh(case).params.items():
        shaken = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf) + np.float32(0.02), parameters)
        state = fresh(case)._replace(params={**fresh(case).params, other: shaken})
        after, _ = step(case, state=state)
        for module in sees:
            if module != other and not equal(plain.optimiser[module], after.optimiser[module]):
                sees[module].add(other)
    assert sees == SEES[method_of(case)]
    for module, moments in plain.optimiser.items():
        assert metrics[f"grad_norm/{module}"] > 0
        for path, leaf in jax.tree.leaves_with_path(moments):  # every layer is reached, encoders too
            assert np.any(leaf != 0), (module, jax.tree_util.keystr(path))


@every_case
def test_rewards_reach_the_critic_alone(case):
    plain, _ = step(case)
    rewards = jnp.full(8, 5.0, jnp.float32)  # a weak type would compile the update again
    rewarded, _ = step(case, batch=make_batch(case, rewards=rewards))
    moved = {m for m in plain.params if not equal(plain.params[m], rewarded.params[m])}
    # Within one simultaneous step rewards enter the critic's target and nothing else.
    assert moved == ({"critic"} if "critic" in plain.params else set())


@every_case
def test_no_bootstrapping_where_the_mask_is_zero(case):
    rewards = jnp.linspace(-1.0, 1.0, 8)
    _, metrics = step(case, batch=make_batch(case, masks=jnp.zeros(8), rewards=rewards + 3.0))
    if "td_target" in metrics:
        expected = 3.0 * getattr(options(case), "reward_scale", 1.0)
        np.testing.assert_allclose(metrics["td_target"], expected, rtol=1e-5)
    else:
        assert case == "bc"


@every_case
def test_targets_follow_the_networks_as_they_were(case):
    state, _ = step(case)  # one step on: targets and networks differ
    after, _ = step(case, state=state, batch=make_batch(case, seed=1))
    for module, target in critic_targets(case, state).items():
        rate = 0.001 if module == "denoiser" else 0.005  # a moving average, slower than a target
        rate = 0.0 if method_of(case) == "rebrac" else rate  # its second step is not an actor step
        expected = jax.tree.map(lambda new, old: rate * new + (1 - rate) * old, state.params[module], target)  # noqa: B023
        moved = critic_targets(case, after)[module]
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), moved, expected)


@few_cases
def test_scan_is_a_loop(case):
    batch, keys = make_batch(case), jax.random.split(jax.random.key(3), 3)
    looped = fresh(case)
    for key in keys:
        looped, _ = jitted_update(case)(looped, batch, key)
    scan = fast_jit(  # the state is donated, as in the training loop
        lambda s, keys: jax.lax.scan(lambda s, k: (algorithm(case).update(s, batch, k)[0], None), s, keys),
        donate_argnums=0,
    )
    scanned, _ = scan(jitted_init(case)(jax.random.key(0)), keys)
    # Adam makes rounding visible where a gradient is nearly zero: allowed is a fiftieth of what three steps move.
    rounding = 0.02 * 3 * options(case).learning_rate
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=rounding), scanned, looped)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("iql", "rebrac") else pytest.mark.slow) for name in OWN]
)
def test_compiled_and_interpreted_agree(name):
    compiled, metrics = step(name)
    plain, same = algorithm(name).update(fresh(name), make_batch(name), jax.random.key(1))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), metrics, same)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), compiled.params, plain.params)


@every_case
def test_a_state_from_the_disk_goes_on_as_the_one_in_memory(case, tmp_path):
    middle, _ = step(case)
    save_tree(tmp_path / "state.safetensors", middle)
    template = jax.eval_shape(lambda: fresh(case))
    restored = jax.tree.map(jnp.asarray, load_tree(tmp_path / "state.safetensors", template))
    through, _ = step(case, state=middle, seed=2)
    resumed, _ = step(case, state=restored, seed=2)
    assert equal(through, resumed)


@few_cases
def test_seeds_side_by_side_equal_single_ones(case):
    batch, key = make_batch(case), jax.random.key(3)
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), fresh(case, 0), fresh(case, 1))
    both, _ = fast_jit(jax.vmap(algorithm(case).update, in_axes=(0, None, None)))(states, batch, key)
    for i in range(2):
        single, _ = jitted_update(case)(fresh(case, i), batch, key)
        row = jax.tree.map(lambda leaf: leaf[i], both)  # noqa: B023
        jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-5), row, single)


@every_case
def test_actions_lie_in_the_box_for_one_observation_and_for_many(case):
    act, key = jitted_act(case), jax.random.key(0)
    wide = jax.tree.map(lambda leaf: 30.0 * leaf, fresh(case)._replace(optimiser=None, step=None))
    many = act(wide, observations_of(case, 5, scale=10.0), key)
    assert many.shape == (5, 2)
    assert np.abs(many).max() <= 1.0
    assert act(fresh(case), observations_of(case), key).shape == (2,)


@every_case
def test_a_method_says_whether_it_has_candidates_and_base_actions(case):
    made, state, observations, key = algorithm(case), fresh(case), observations_of(case, 3), jax.random.key(0)
    small = made.policy(state)
    if made.choose is None:
        with pytest.raises(ConfigError, match="no candidates"):
            select_act(made, candidates=2)
    else:
        choose = fast_jit(partial(made.choose, candidates=2))
        assert choose(state, observations, key).shape == (3, 2)
        assert equal(choose(state, observations, key), choose(small, observations, key))
    if made.act_with_base is None:
        with pytest.raises(ConfigError, match="no base policy"):
            select_act(made, return_base=True)
    else:
        act_with_base = fast_jit(made.act_with_base)
        actions, base = act_with_base(state, observations, key)
        assert base.shape == (3, 2)
        assert equal(actions, jitted_act(case)(state, observations, key))
        assert equal((actions, base), act_with_base(small, observations, key))


@few_cases
def test_a_batch_of_one_with_a_one_dimensional_action(case):
    small = algorithm(case, d=1)
    state = jitted_init(case, 1)(jax.random.key(0))
    after, metrics = fast_jit(small.update)(state, make_batch(case, rows=1, d=1), jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert all(np.isfinite(value) for value in metrics.values())
    assert small.act(after, observations_of(case, 1), jax.random.key(0)).shape == (1, 1)


@every_case
def test_the_portable_policy_acts_as_the_state_does(case, tmp_path):
    state, observations, key = fresh(case), observations_of(case, 3), jax.random.key(5)
    small = algorithm(case).policy(state)
    assert len(jax.tree.leaves(small)) < len(jax.tree.leaves(state))
    act = jitted_act(case)
    assert equal(act(state, observations, key), act(small, observations, key))
    policy = Policy(method_of(case), options(case), spec_of(case), state)
    policy.save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert np.array_equal(policy(np.asarray(observations)), loaded(np.asarray(observations)))


@every_case
def test_exploring_is_random_inside_the_box_and_reads_the_policy_alone(case):
    method, made = algos.get(method_of(case)), algorithm(case)
    observations, key = observations_of(case, 3), jax.random.key(5)
    if method.offline_only:  # what it would do is the same action again and again
        assert made.explore is None
        assert len(np.unique(jitted_act(case)(fresh(case), observations, key), axis=0)) == 1
        return
    explore = jitted_act(case) if made.explore is None else fast_jit(made.explore)
    actions = explore(made.policy(fresh(case)), observations, key)
    assert np.abs(actions).max() <= 1.0
    assert len(np.unique(actions, axis=0)) > 1  # three times one observation; two may end in one corner of the box
    assert not equal(actions, explore(made.policy(fresh(case)), observations, jax.random.key(6)))


@pytest.mark.parametrize(
    "case", ["fidec", *(pytest.param(name, marks=pytest.mark.slow) for name in ("deflow", "fql", "ifql"))]
)
def test_a_frozen_flow_stays_and_the_others_learn_as_ever(case):
    """Neither the flow nor its moments move, not by a bit; in one simultaneous step nobody else notices."""
    state, _ = step(case)  # a step on, so that there is momentum
    frozen = algos.get(method_of(case)).make(replace(options(case), train_flow=False), spec_of(case))
    after, metrics = fast_jit(frozen.update)(state, make_batch(case, seed=1), jax.random.key(2))
    usual, logged = step(case, state=state, batch=make_batch(case, seed=1), seed=2)
    for name, module in state.params.items():
        assert equal(after.params[name], module) == (name == "flow"), name
    assert equal(after.optimiser["flow"], state.optimiser["flow"])
    assert not equal(usual.params["flow"], state.params["flow"])
    expected = usual._replace(
        params={**usual.params, "flow": state.params["flow"]},
        optimiser={**usual.optimiser, "flow": state.optimiser["flow"]},
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), after, expected)
    assert set(metrics) == set(logged)  # both phases of a run share one log
    np.testing.assert_allclose(metrics["flow_loss"], logged["flow_loss"], rtol=1e-5)
    assert metrics["grad_norm/flow"] == 0.0


def test_calql_reads_the_returns_of_both_halves_of_a_balanced_batch():
    """Returns far below every Q bound nothing, those far above it bound every policy action of their rows."""
    for offline, online, share in ((-1e3, 1e3, 0.5), (1e3, -1e3, 0.5), (1e3, 1e3, 1.0)):
        returns = jnp.asarray([offline] * 4 + [online] * 4, jnp.float32)
        after, metrics = step("calql", batch=make_batch("calql", returns=returns))
        assert float(metrics["calibrated"]) == share
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((after, metrics)))


@pytest.mark.parametrize("name", ["cac", "calql", "idql", "rlpd", "srpo"])
def test_methods_without_an_encoder_refuse_images(name):
    with pytest.raises(ConfigError, match=rf"{name} takes flat observations, not of shape \(8, 8, 6\)"):
        algorithm(f"{name}/pixels")
