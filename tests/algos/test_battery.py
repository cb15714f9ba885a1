"""What every built-in method promises, in each of its presets: one battery over the register.

A case is "METHOD", "METHOD-PRESET" or "METHOD/pixels". Each case compiles one update, which most tests share and only
vary the inputs of.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.algos.common.base import METHODS
from fidec.errors import ConfigError
from fidec.store.trees import load_tree, save_tree
from fidec.train.acting import ActOptions
from fidec.train.policy import Policy, load_policy
from fidec.types import Spec
from helpers.algorithms import assert_close, equal, fast_jit, make_batch, with_params

FLAT, IMAGES = Spec((4,), 2), Spec((8, 8, 6), 2, "uint8")


def takes_images(name):
    try:
        algos.make(name, IMAGES)
    except ConfigError:
        return False
    return True


# One method of each kind. The others are in the slow tier, and their losses are compared in test_references.
KINDS = ("fidec", "fql", "iql", "calql", "qam", "bc")


def all_cases():
    """Every built-in method. Presets and images are in the slow tier, but for the paper's own preset."""
    for name in METHODS.builtin():
        yield pytest.param(name, id=name, marks=() if name in KINDS else pytest.mark.slow)
        for preset in algos.get(name).presets:
            yield pytest.param(
                f"{name}-{preset}", marks=() if (name, preset) == ("fidec", "paper") else pytest.mark.slow
            )
        if takes_images(name):
            yield pytest.param(f"{name}/pixels", marks=pytest.mark.slow)


every_case = pytest.mark.parametrize("case", list(all_cases()))
# Tests that compile a further program.
few_cases = pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name == "fidec" else pytest.mark.slow) for name in METHODS.builtin()]
)


def name_of(case):
    return case.partition("/")[0].partition("-")[0]


def spec_of(case):
    return IMAGES if case.endswith("/pixels") else FLAT


def options(case):
    method, preset = algos.get(name_of(case)), case.partition("/")[0].partition("-")[2]
    small = {"hidden": (16,), "flow_steps": 2, "samples": 3, "ema_start": 0, "ema_interval": 1, "backup_samples": 2}
    small |= {"denoiser_width": 8, "denoiser_blocks": 1, "diffusion_steps": 2, "policy_hidden": (16,)}
    small |= {"critics": 2}
    # A global clip couples the modules by design; here its limit is out of reach. Every step is one of the actor's.
    small |= {"grad_clip": 1e12, "actor_interval": 1}
    known = method.config.__dataclass_fields__
    return method.configure(preset or "recommended", **{key: v for key, v in small.items() if key in known})


@cache
def algorithm(case, spec=None):
    return algos.get(name_of(case)).make(options(case), spec or spec_of(case))


@cache
def fresh(case, seed=0):
    return fast_jit(algorithm(case).init)(jax.random.key(seed))


@cache
def compiled(case, function="update"):
    return fast_jit(getattr(algorithm(case), function))


def batch_of(case, **columns):
    batch = make_batch(observations=spec_of(case).observation_shape, **columns)
    # A method that does not ask for returns must not need them.
    return batch if algos.get(name_of(case)).needs_returns else batch._replace(returns=None)


def observations_of(case, *leading, scale=1.0):
    """Observations of one value, with these leading axes."""
    spec = spec_of(case)
    return jnp.full((*leading, *spec.observation_shape), 7 if spec.images else scale, spec.observation_dtype)


def step(case, state=None, batch=None, seed=1):
    batch = batch_of(case) if batch is None else batch
    return compiled(case)(fresh(case) if state is None else state, batch, jax.random.key(seed))


def draws_numbers(jaxpr):
    """Whether a program, or one inside it, draws random numbers. To print the program takes longer."""
    for equation in jaxpr.eqns:
        inner = [part for part in jax.tree.leaves(list(equation.params.values())) if hasattr(part, "eqns")]
        if equation.primitive.name == "random_bits" or any(map(draws_numbers, inner)):
            return True
    return False


@every_case
def test_an_update_keeps_the_types_is_finite_and_deterministic_and_moves_every_module(case):
    state = fresh(case)
    (after, metrics), (again, same), (other, _) = step(case), step(case), step(case, seed=2)
    assert equal((after, metrics), (again, same))
    key = jax.random.key(1)
    draws = draws_numbers(compiled(case).trace(state, batch_of(case), key).jaxpr)
    assert draws != equal(after.params, other.params)  # the key matters if the method draws anything
    # The same structure and types before and after, weak types included. Otherwise a second call compiles again.
    types = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)  # noqa: E731
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    assert types(after) == types(state)
    assert "loss" in metrics
    assert all(value.shape == () and value.dtype == jnp.float32 for value in metrics.values())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert int(after.step) == 1
    assert not equal(state.params, fresh(case, 1).params)
    for module, before in state.params.items():
        assert not equal(before, after.params[module]), module


# The modules that a module's gradient may depend on, besides itself. A loss that leaks into another module shows as a
# dependence that is not here, a forgotten one as a dependence that is missing. A preset with other modules has an
# entry of its own.
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
    "fan": {
        "critic": {"flow", "policy", "upper"},
        "upper": set(),
        "flow": set(),
        "policy": {"critic", "flow", "upper"},
    },
    "fawac": {"critic": {"flow"}, "value": set(), "flow": {"critic", "value"}},
    "fbrac": {"critic": {"flow"}, "flow": {"critic"}},
    "fidec": RESIDUAL,
    "fidec_closed_form": {"critic": {"flow"}, "flow": set()},
    "flow_bc": {"flow": set()},
    "fql": {"critic": {"policy"}, "flow": set(), "policy": {"critic", "flow"}},
    "idql": {**EXPECTILE, "denoiser": set()},
    "ifql": {**EXPECTILE, "flow": set()},
    "iql": {**EXPECTILE, "actor": {"critic", "value"}},
    "lps": {"critic": {"flow", "policy"}, "flow": set(), "policy": {"critic", "flow"}},
    "qam": {"critic": {"policy"}, "flow": set(), "policy": set()},  # the policy sees targets alone
    "qam-edit": {
        "critic": {"policy", "edit"},
        "flow": set(),
        "policy": set(),
        "edit": {"critic", "policy", "temperature"},
        "temperature": {"policy", "edit"},
    },
    "qam-one_step": {"critic": {"student"}, "flow": set(), "policy": set(), "student": {"critic", "policy"}},
    "rebrac": {"critic": set(), "actor": {"critic"}},
    "rlpd": {"critic": {"actor"}, "actor": {"critic", "temperature"}, "temperature": {"actor"}},
    "srpo": {**EXPECTILE, "denoiser": set(), "policy": set()},
}


@every_case
def test_gradients_reach_the_parameters_they_should_and_no_others(case):
    """After one step Adam's first moment is the gradient; it is read from there."""
    usual, metrics = step(case)
    for module, moments in usual.optimiser.items():
        assert metrics[f"grad_norm/{module}"] > 0
        for path, leaf in jax.tree.leaves_with_path(moments):  # every layer is reached, encoders too
            assert np.any(leaf != 0), (module, jax.tree_util.keystr(path))
    sees = {module: set() for module in usual.optimiser}
    for other, parameters in fresh(case).params.items():
        shaken = jax.tree.map(lambda leaf: 1.1 * np.asarray(leaf) + np.float32(0.02), parameters)
        after, _ = step(case, state=with_params(fresh(case), **{other: shaken}))
        for module in sees:
            if module != other and not equal(usual.optimiser[module], after.optimiser[module]):
                sees[module].add(other)
    known = SEES.get(case.partition("/")[0]) or SEES.get(name_of(case), sees)
    expected = {module: known[module] for module in sees}
    assert sees == expected


@every_case
def test_rewards_reach_the_critic_alone(case):
    """In one simultaneous step. If modules step in turn, those after the critic see the changed critic."""
    usual, _ = step(case)
    rewarded, _ = step(case, batch=batch_of(case, rewards=np.full(8, 5.0)))
    moved = {m for m in usual.params if not equal(usual.params[m], rewarded.params[m])}
    in_turn = {"residual"} if getattr(options(case), "order", "joint") == "alternating" else set()
    assert moved - in_turn == ({"critic"} if "critic" in usual.params else set())


@every_case
def test_no_bootstrapping_where_the_mask_is_zero(case):
    targets = {}
    for mask in (0.0, 1.0):
        batch = batch_of(case, masks=np.full(8, mask), rewards=np.linspace(2.0, 4.0, 8))
        targets[mask] = step(case, batch=batch)[1].get("td_target")
    if targets[0.0] is not None:
        scale = getattr(options(case), "reward_scale", 1.0)
        np.testing.assert_allclose(targets[0.0], 3.0 * scale, rtol=1e-5)
        assert abs(float(targets[1.0] - targets[0.0])) > 1e-4


@every_case
def test_targets_follow_the_networks_as_they_were(case):
    state, _ = step(case)  # one step on, so that targets and networks differ
    after, _ = step(case, state=state, batch=batch_of(case, seed=1))
    for module, target in state.target.items():
        rate = options(case).ema_rate if module == "denoiser" else options(case).target_rate
        expected = jax.tree.map(lambda new, old: rate * new + (1 - rate) * old, state.params[module], target)  # noqa: B023
        assert_close(after.target[module], expected, rtol=1e-5, atol=1e-7)


@every_case
def test_a_state_from_the_disk_goes_on_as_the_one_in_memory(case, tmp_path):
    middle, _ = step(case)
    save_tree(tmp_path / "state.safetensors", middle)
    restored = jax.tree.map(jnp.asarray, load_tree(tmp_path / "state.safetensors", jax.eval_shape(lambda: middle)))
    assert equal(step(case, state=middle, seed=2), step(case, state=restored, seed=2))


@few_cases
def test_a_scan_and_seeds_side_by_side_equal_single_updates(case):
    """vmap over two seeds of a scan over three keys, with its state donated, against a loop for each seed."""
    batch, keys = batch_of(case), jax.random.split(jax.random.key(3), 3)

    def run(state, keys):
        return jax.lax.scan(lambda state, key: (algorithm(case).update(state, batch, key)[0], None), state, keys)[0]

    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), fresh(case, 0), fresh(case, 1))
    together = fast_jit(jax.vmap(run, in_axes=(0, None)), donate_argnums=0)(states, keys)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states.params))
    # Adam makes rounding visible where a gradient is nearly zero. Allowed is a fiftieth of what three steps move.
    rounding = 0.02 * 3 * options(case).learning_rate
    for seed in range(2):
        alone = fresh(case, seed)
        for key in keys:
            alone, _ = compiled(case)(alone, batch, key)
        assert_close(jax.tree.map(lambda leaf: leaf[seed], together), alone, rtol=2e-3, atol=rounding)  # noqa: B023


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in METHODS.builtin()])
def test_compiled_and_interpreted_agree(name):
    state, metrics = step(name)
    interpreted, same = algorithm(name).update(fresh(name), batch_of(name), jax.random.key(1))
    assert_close(metrics, same, rtol=1e-3, atol=1e-5)
    assert_close(state.params, interpreted.params, rtol=1e-3, atol=1e-4)


@every_case
def test_shapes_of_a_batch_of_one_with_a_one_dimensional_action(case):
    spec = replace(spec_of(case), action_dim=1)
    small, key = algorithm(case, spec), jax.random.key(0)
    state = jax.eval_shape(small.init, key)
    batch = make_batch(rows=1, observations=spec.observation_shape, actions=1)
    after, metrics = jax.eval_shape(small.update, state, batch, key)
    assert jax.tree.map(lambda leaf: leaf.shape, after) == jax.tree.map(lambda leaf: leaf.shape, state)
    assert all(value.shape == () for value in metrics.values())
    for leading in ((), (1,), (5,)):
        assert jax.eval_shape(small.act, state, observations_of(case, *leading), key).shape == (*leading, 1)


@every_case
def test_actions_lie_in_the_box_and_the_portable_policy_gives_the_same(case, tmp_path):
    state, act, key = fresh(case), compiled(case, "act"), jax.random.key(5)
    wide = jax.tree.map(lambda leaf: 30.0 * leaf, state._replace(optimiser=None, step=None))
    actions = act(wide, observations_of(case, 3, scale=10.0), key)
    assert actions.shape == (3, 2)
    assert np.abs(actions).max() <= 1.0
    small = algorithm(case).policy(state)
    assert len(jax.tree.leaves(small)) < len(jax.tree.leaves(state))
    observations = observations_of(case, 3)
    assert equal(act(state, observations, key), act(small, observations, key))
    Policy(name_of(case), options(case), spec_of(case), state).save(tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.options == options(case)
    assert equal(loaded.state, small)


@every_case
def test_a_method_says_whether_it_has_candidates_and_base_actions(case):
    made, state, observations, key = algorithm(case), fresh(case), observations_of(case, 3), jax.random.key(0)
    if made.choose is None:
        with pytest.raises(ConfigError, match="no candidates"):
            ActOptions(candidates=2).function(made)
    else:
        shapes = jax.eval_shape(partial(made.choose, candidates=2), made.policy(state), observations, key)
        assert shapes.shape == (3, 2)
    if made.act_with_base is None:
        with pytest.raises(ConfigError, match="no base policy"):
            ActOptions().function(made, "too")
    else:
        actions, base = compiled(case, "act_with_base")(made.policy(state), observations, key)
        assert base.shape == (3, 2)
        assert equal(actions, compiled(case, "act")(state, observations, key))


def any_policy(case):
    """A policy with noise in every parameter. For a method that is not in KINDS, `fresh` would be compiled for it."""
    made, rng = algorithm(case), np.random.default_rng(0)
    shapes = made.policy(jax.eval_shape(made.init, jax.random.key(0)))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.1, leaf.shape), leaf.dtype), shapes)


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in METHODS.builtin()]
)
def test_the_noise_of_acting_is_scaled(case):
    """By 1 not at all, and by 0 so that the key has no effect. One program serves all factors.

    As an argument, the factor 1 may change how XLA combines constants. So `ActOptions.dials` does not pass it.
    """
    made, observations, state = algorithm(case), observations_of(case, 3), any_policy(case)
    act: Any = compiled(case, "act" if made.act_with_base is None else "act_with_base")
    first, second = jax.random.key(0), jax.random.key(1)
    given = ActOptions(noise=1.0)
    assert given.dials(given.function(made, "no" if made.act_with_base is None else "too")) == {}
    assert_close(act(state, observations, first), act(state, observations, first, noise=np.float32(1)), atol=1e-5)
    programs = act._cache_size()
    still = [act(state, observations, key, noise=np.float32(0)) for key in (first, second)]
    assert equal(*still)
    draws = not equal(act(state, observations, first), act(state, observations, second))
    assert draws != equal(still[0], act(state, observations, first, noise=np.float32(0.5)))
    assert act._cache_size() == programs


@pytest.mark.parametrize("case", METHODS.builtin())
def test_only_methods_that_move_a_base_action_scale_the_displacement(case):
    made = algorithm(case)
    for base in ("no", "too", "only") if made.act_with_base else ("no",):
        act = ActOptions().function(made, base)
        assert ActOptions(strength=1.0).dials(act) == {}
        if case in ("fidec", "deflow", "fidec_closed_form"):
            assert ActOptions(noise=0.5, strength=0).dials(act) == {"noise": 0.5, "strength": 0}
        else:
            with pytest.raises(ConfigError, match="does not move a base action by a displacement, so strength must"):
                ActOptions(strength=0.5).dials(act)


@every_case
def test_exploring_is_random_inside_the_box_and_reads_the_policy_alone(case):
    made, observations = algorithm(case), observations_of(case, 3)
    explore = compiled(case, "act" if made.explore is None else "explore")
    first, other = (explore(made.policy(fresh(case)), observations, jax.random.key(seed)) for seed in (5, 6))
    assert np.abs(first).max() <= 1.0
    if not algos.get(name_of(case)).offline_only:
        assert len(np.unique(first, axis=0)) > 1  # three times one observation; two may end in one corner of the box
        assert not equal(first, other)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=() if name == "fidec" else pytest.mark.slow)
        for name in METHODS.builtin()
        if "train_flow" in algos.get(name).config.__dataclass_fields__
    ],
)
def test_a_frozen_flow_stays_and_the_other_modules_learn_as_before(case):
    """Neither the flow nor its moments move, not by a bit; in one simultaneous step no other module notices."""
    state, _ = step(case)  # a step on, so that there is momentum
    frozen = algos.get(name_of(case)).make(replace(options(case), train_flow=False), spec_of(case))
    after, metrics = fast_jit(frozen.update)(state, batch_of(case, seed=1), jax.random.key(2))
    usual, logged = step(case, state=state, batch=batch_of(case, seed=1), seed=2)
    for name, module in state.params.items():
        assert equal(after.params[name], module) == (name == "flow"), name
    assert equal(after.optimiser["flow"], state.optimiser["flow"])
    assert not equal(usual.params["flow"], state.params["flow"])
    expected = usual._replace(
        params={**usual.params, "flow": state.params["flow"]},
        optimiser={**usual.optimiser, "flow": state.optimiser["flow"]},
    )
    assert_close(after, expected, rtol=1e-5, atol=1e-7)
    assert set(metrics) == set(logged)  # both phases of a run share one log
    np.testing.assert_allclose(metrics["flow_loss"], logged["flow_loss"], rtol=1e-5)
    assert metrics["grad_norm/flow"] == 0.0


@pytest.mark.parametrize("name", [name for name in METHODS.builtin() if not takes_images(name)])
def test_a_method_without_an_encoder_says_that_it_takes_no_images(name):
    with pytest.raises(ConfigError, match=rf"{name} takes flat observations, not of shape \(8, 8, 6\)"):
        algos.make(name, IMAGES)
