"""FiDec under every constraint, with a calibrated time, and in closed form: what the update and the audit rely on."""

from __future__ import annotations

from functools import cache, partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, nn
from fidec.errors import ConfigError
from fidec.ops import fisher
from fidec.types import Batch, Spec

SPEC = Spec((4,), 3)
SMALL = {"hidden": (16,), "flow_steps": 2, "samples": 2}
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
CASES = {metric: {"metric": metric} for metric in get_args(fisher.Metric)}
CASES["auto"] = {"metric": "denoising", "t_eps": "auto", "calibrate_every": 2}
CASES["anchored"] = {"metric": "path", "anchor": "data", "centred": False}
CASES["closed_form"] = {"refine": "closed_form", "refine_steps": 2}


@cache
def algorithm(case):
    return algos.make("fidec", SPEC, **SMALL, **CASES[case])


@cache
def update(case):
    return fast_jit(algorithm(case).update)


@cache
def fresh(case):
    return algorithm(case).init(jax.random.key(0))


def batch(rows=6, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((rows, 4), (rows, 3), (rows,), (rows,), (rows, 4), (rows, 3))
    columns = (jnp.asarray(rng.uniform(-0.9, 0.9, shape), jnp.float32) for shape in shapes)
    return Batch(*columns)._replace(masks=jnp.ones(rows))


@pytest.mark.parametrize("case", CASES)
def test_an_update_is_finite_and_the_penalty_is_what_the_transport_says(case):
    after, metrics = update(case)(fresh(case), batch(), jax.random.key(1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    transport = algorithm(case).transport(algorithm(case).policy(after), batch().observations)
    base = transport.base(jax.random.normal(jax.random.key(2), (6, 3)))
    assert base.shape == transport.displacement(base).shape == (6, 3)
    penalty = transport.penalty(base, jax.random.key(3))
    assert penalty.shape == (6,)
    assert np.isfinite(penalty).all()
    nats = CASES[case].get("metric") in fisher.IN_NATS
    assert transport.unit == ("nats" if nats else "of the penalty")
    assert transport.budget == (0.5 if nats else 0.001)


@pytest.mark.parametrize("case", ["denoising", "closed_form"])
def test_the_transport_is_what_acting_does(case):
    """The same noise: a base action plus its displacement, clipped, is the action."""
    state = fresh(case)
    observations, key = batch().observations, jax.random.key(4)
    actions, base = algorithm(case).act_with_base(state, observations, key)
    transport = algorithm(case).transport(state, observations)
    np.testing.assert_allclose(transport.base(jax.random.normal(key, (1, 6, 3))[0]), base, atol=1e-5)
    if case == "denoising":  # the closed form draws the noise of its metric anew
        np.testing.assert_allclose(np.clip(base + transport.displacement(base), -1, 1), actions, atol=1e-5)


def test_the_budget_in_nats_drives_the_multiplier():
    """The penalty of the first step lies between a tiny budget and a huge one."""
    moved = {}
    for nats in (1e-9, 1e9):
        own = algos.make("fidec", SPEC, **SMALL, metric="stein", budget_nats=nats)
        state = own.init(jax.random.key(0))
        after, metrics = fast_jit(own.update)(state, batch(), jax.random.key(1))
        assert metrics["penalty"] > 1e-9
        moved[nats] = float(after.params["multiplier"] - state.params["multiplier"])
    assert moved[1e-9] > 0 > moved[1e9]


def test_anchored_at_the_data_a_kl_sees_the_logged_actions_and_else_the_flow_alone():
    other = batch()._replace(actions=batch(seed=1).actions)
    for case, sees in (("anchored", True), ("path", False), ("local", False)):
        costs = [update(case)(fresh(case), b, jax.random.key(1))[1]["penalty"] for b in (batch(), other)]
        assert (costs[0] != costs[1]) == sees, case


def test_the_time_is_calibrated_when_due_and_kept_otherwise():
    state, times = fresh("auto"), []
    for i in range(5):
        state, metrics = update("auto")(state, batch(), jax.random.key(i))
        times.append(float(metrics["t_eps"]))
        assert float(state.params["t_eps"]) == times[-1]
    assert times[0] == times[1] == pytest.approx(0.8)  # steps 0 and 1: not yet
    candidates = 1 - np.asarray(fisher.DISTANCES, np.float32)
    assert min(abs(candidates - times[2])) < 1e-6
    assert times[3] == times[2]


def test_the_calibrated_time_is_read():
    state = fresh("auto")
    costs = [
        update("auto")(state._replace(params={**state.params, "t_eps": jnp.float32(t)}), batch(), jax.random.key(1))
        for t in (0.6, 0.9)
    ]
    assert costs[0][1]["penalty"] != costs[1][1]["penalty"]


@pytest.mark.parametrize("metric", ["isotropic", "local", "renoised"])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_closed_form_spends_its_budget_and_climbs(metric, steps):
    own = algos.make(
        "fidec", SPEC, **SMALL, metric=metric, refine="closed_form", refine_steps=steps, budget=1e-4, damping=0.1
    )
    state = own.init(jax.random.key(0))
    transport = own.transport(state, batch().observations)
    base = transport.base(jax.random.normal(jax.random.key(5), (6, 3)))
    displacement = transport.displacement(base)
    assert np.linalg.norm(displacement, axis=-1).min() > 1e-4
    if metric == "isotropic":  # mean squared displacement; n steps in nearly one direction add up to the length
        np.testing.assert_allclose(transport.penalty(base, jax.random.key(6)), 1e-4, rtol=0.02)
    smaller = algos.make("fidec", SPEC, **SMALL, metric=metric, refine="closed_form", budget=1e-6, damping=0.1)
    shorter = smaller.transport(state, batch().observations).displacement(base)
    if steps == 1:  # the length goes with the root of the budget
        np.testing.assert_allclose(shorter, displacement / 10, rtol=1e-3, atol=1e-6)


def test_the_closed_form_raises_the_critics_value():
    # Small steps in a metric without free directions: a step to the box would be no gradient step.
    options = {**SMALL, "samples": 16, "refine": "closed_form", "budget": 1e-6}
    own = algos.make("fidec", SPEC, **options)
    state = own.init(jax.random.key(0))
    observations = batch().observations
    actions, base = own.act_with_base(state, observations, jax.random.key(7))
    critic = nn.Critic((16,))
    value = lambda a: np.asarray(critic.apply(state.params["critic"], observations, a)).mean(axis=0)  # noqa: E731
    assert np.all(value(actions) > value(base))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"metric": "stein", "refine": "closed_form"}, "quadratic metric"),
        ({"t_eps": "auto", "refine": "closed_form"}, "auto"),
        ({"damping": 0.0, "refine": "closed_form"}, "damping"),
        ({"t_eps": "often"}, "t_eps"),
        ({"t_eps": 1.0}, "t_eps"),
        ({"budget_nats": 0.0}, "budget_nats"),
        ({"nodes": 0}, "nodes"),
        ({"metric": "paths"}, "metric"),
    ],
)
def test_senseless_settings_are_refused_by_name(options, match):
    with pytest.raises(ConfigError, match=match):
        algos.get("fidec").configure(**options)
