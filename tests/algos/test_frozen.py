"""Training with a frozen flow: on stored proposals it does what the joint update does with the same base actions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos
from fidec.algos import fidec
from fidec.errors import ConfigError
from fidec.types import Spec
from helpers import some
from helpers.algorithms import assert_close, equal, fast_jit, make_batch, scaled, with_params

SPEC = Spec((4,), 2)
SMALL = {"hidden": (16,), "flow_steps": 2, "proposals": 1}
KEY = jax.random.key(3)


def made(name, **options):
    algorithm = algos.make(name, SPEC, **SMALL, **options)
    return algorithm, fast_jit(algorithm.init)(jax.random.key(0)), make_batch()


def after(algorithm, state, batch):
    return fast_jit(algorithm.update)(state, batch, KEY)


@pytest.mark.parametrize("order", ["joint", pytest.param("alternating", marks=pytest.mark.slow)])
def test_fidec_learns_the_same_from_a_stored_base_action_as_from_a_fresh_one(order):
    options = {**SMALL, "constraint": "isotropic", "order": order, "train_flow": False}
    algorithm = fidec.make(algos.get("fidec").configure(**options), SPEC, solve_at=("next_observations",))
    state, batch = fast_jit(algorithm.init)(jax.random.key(0)), make_batch()
    noise = jax.random.normal(jax.random.split(KEY, 3)[0], batch.actions.shape)  # what the joint update draws
    base = some(algorithm.transport)(state, batch.next_observations).base(noise)
    joint, logged = after(algorithm, state, batch)
    stored = batch._replace(proposals={"actions": base[:, None]})
    frozen, metrics = after(algorithm, state, stored)
    assert_close(frozen, joint, rtol=1e-4, atol=1e-6)
    assert set(logged) - set(metrics) == {"flow_loss", "grad_norm/flow"}
    np.testing.assert_allclose(metrics["critic_loss"], logged["critic_loss"], rtol=1e-5)
    np.testing.assert_allclose(metrics["penalty"], logged["penalty"], rtol=1e-5)


def test_fql_distils_the_stored_pairs_of_noise_and_action():
    algorithm, state, batch = made("fql")
    state = with_params(state, policy=scaled(state.params["policy"], 0.5))  # no action is clipped
    key = jax.random.key(8)
    noise = jax.random.normal(key, (1, *batch.actions.shape))[0]  # what acting draws from this key
    student, taught = fast_jit(some(algorithm.act_with_base))(state, batch.next_observations, key)
    proposals = {"noise": noise[:, None], "actions": taught[:, None]}
    _, metrics = after(algorithm, state, batch._replace(proposals=proposals))
    assert np.abs(student).max() < 1
    np.testing.assert_allclose(metrics["distillation"], jnp.mean((student - taught) ** 2), rtol=1e-4)


WITH_FROZEN = [name for name in algos.METHODS.builtin() if algos.make(name, SPEC).propose is not None]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("fql", "ifql") else pytest.mark.slow) for n in WITH_FROZEN]
)
def test_a_frozen_flow_does_not_change_and_its_proposals_are_its_samples(name):
    known = algos.get(name).config.__dataclass_fields__
    options: dict[str, Any] = {"hidden": (16,), "flow_steps": 2, "proposals": 3}
    algorithm = algos.make(name, SPEC, **{key: value for key, value in options.items() if key in known})
    state, batch = fast_jit(algorithm.init)(jax.random.key(0)), make_batch()
    proposals = fast_jit(some(algorithm.propose))(state, batch.next_observations, KEY)
    if proposals:
        assert proposals["actions"].shape == (8, 3, 2)
        noise = jax.random.normal(KEY, (8 * 3, 2))
        states = jnp.repeat(batch.next_observations, 3, axis=0)
        if algorithm.transport is not None:
            samples = algorithm.transport(state, states).base(noise)
            np.testing.assert_allclose(proposals["actions"].reshape(-1, 2), samples, rtol=1e-4, atol=1e-6)
        else:
            assert_close(proposals["noise"].reshape(-1, 2), noise, rtol=1e-5)
    new, metrics = after(algorithm, state, batch._replace(proposals=proposals))
    assert equal(new.params["flow"], state.params["flow"])
    assert not equal(new.params["critic"], state.params["critic"])
    assert all(np.isfinite(value) for value in metrics.values())
    assert "flow_loss" not in metrics
    joint, metrics = after(algorithm, state, batch)
    assert not equal(joint.params["flow"], state.params["flow"])
    assert np.isfinite(metrics["flow_loss"])


def penalty(algorithm, state, batch):
    """Of one update with a frozen flow. The gradients are not compiled."""
    return fast_jit(lambda state, batch: algorithm.update(state, batch, KEY)[1]["penalty"])(state, batch)


@pytest.mark.parametrize(
    ("constraint", "stored"),
    [
        ("renoised", "scores"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("path", "anchors"), ("isotropic", None))),
    ],
)
def test_what_a_constraint_reads_of_the_flow_is_stored(constraint, stored):
    algorithm, state, batch = made("fidec", constraint=constraint)
    proposals = fast_jit(some(algorithm.propose))(state, batch.next_observations, KEY)
    assert set(proposals) == {"actions", stored} - {None}
    assert np.isfinite(penalty(algorithm, state, batch._replace(proposals=proposals)))
    if stored == "scores":  # the penalty follows the stored scores: one direction costs nothing without damping
        flat = {**proposals, "scores": jnp.zeros_like(proposals["scores"]).at[..., 0].set(1.0)}
        algorithm, state, _ = made("fidec", constraint=constraint, damping=0.0)
        logged = penalty(algorithm, state, batch._replace(proposals=flat))
        displacement = some(algorithm.transport)(state, batch.next_observations).displacement(
            proposals["actions"][:, 0]
        )
        np.testing.assert_allclose(logged, jnp.mean(displacement[:, 0] ** 2), rtol=1e-3)


def test_the_precision_of_a_state_is_stored_once():
    """It is that of the stored proposals, and the penalty follows it."""
    _, state, batch = made("fidec", constraint="precision")
    options = {**SMALL, "proposals": 5, "constraint": "precision"}
    algorithm = algos.make("fidec", SPEC, **options)
    proposals = fast_jit(some(algorithm.propose))(state, batch.next_observations, KEY)
    variance = np.var(proposals["actions"], axis=1, ddof=1) * 4 / 2
    np.testing.assert_allclose(proposals["states"]["precision"], 1 / np.maximum(variance, 0.01**2), rtol=1e-4)
    wide = {**proposals, "states": {"precision": jnp.full_like(proposals["states"]["precision"], 8.0)}}
    _, metrics = after(algorithm, state, batch._replace(proposals=wide))
    assert float(metrics["penalty"]) == pytest.approx(4 * float(metrics["displacement"]) ** 2, rel=1e-3)
    with pytest.raises(ConfigError, match="at least 4 proposals"):
        some(made("fidec", constraint="precision")[0].propose)(state, batch.next_observations, KEY)


def test_flow_bc_acts_with_the_moving_average():
    algorithm = algos.make("flow_bc", SPEC, hidden=(16,), flow_steps=2, average=0.5)
    state, batch = fast_jit(algorithm.init)(jax.random.key(0)), make_batch()
    new, _ = after(algorithm, state, batch)
    decay = 0.1  # (1 + 0) / (10 + 0) at the first step
    mixed = jax.tree.map(lambda old, now: decay * old + (1 - decay) * now, state.params["flow"], new.params["flow"])
    assert_close(new.params["average"], mixed, rtol=1e-5, atol=1e-7)
    last = with_params(new, average=new.params["flow"])
    seen = batch.observations
    assert not equal(algorithm.act(new, seen, KEY), algorithm.act(last, seen, KEY))
    assert equal(algorithm.act(algorithm.policy(new), seen, KEY), algorithm.act(new, seen, KEY))
