"""QAM: its limits, what its variants put on top of the flow, and the clip of all gradients together."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from fidec import algos
from fidec.errors import ConfigError
from fidec.train.protocol import resolve_options
from fidec.types import Spec
from helpers import some
from helpers.algorithms import equal, fast_jit, make_batch, scaled, with_params

SPEC, KEY = Spec((4,), 2), jax.random.key(5)
SMALL = {"hidden": (16,), "flow_steps": 2, "critics": 3}


def made(preset="recommended", **options):
    algorithm = algos.make("qam", SPEC, preset=preset, **{**SMALL, **options})
    return algorithm, fast_jit(algorithm.init)(jax.random.key(0))


def metric(name, change=lambda state: state, **options) -> float:
    """One metric of a first update; nothing else is compiled."""
    algorithm, state = made(**options)
    update = fast_jit(lambda state, batch, key: algorithm.update(state, batch, key)[1][name])
    return float(update(change(state), make_batch(), KEY))


@pytest.mark.slow
@pytest.mark.parametrize("flat", ["temperature", "critic"])
def test_without_a_slope_of_q_the_policy_stays_at_the_behaviour(flat):
    algorithm, state = made(inverse_temperature=0.0 if flat == "temperature" else 2.0)
    if flat == "critic":
        state = state._replace(target={**state.target, "critic": scaled(state.target["critic"], 0.0)})
    update = fast_jit(algorithm.update)
    _, metrics = update(state, make_batch(), KEY)
    assert metrics["policy_loss"] > 0.0  # it begins elsewhere
    state = with_params(state, policy=state.target["flow"])
    after, metrics = update(state, make_batch(), KEY)
    assert metrics["policy_loss"] == metrics["path_kl"] == metrics["grad_norm/policy"] == 0.0
    assert equal(after.params["policy"], state.params["policy"])


@pytest.mark.slow
def test_the_temperature_scales_the_slope():
    """From the behaviour, the loss is that of the adjoints alone, which are linear in tau."""
    at_the_behaviour = lambda state: with_params(state, policy=state.target["flow"])  # noqa: E731
    losses = [metric("policy_loss", at_the_behaviour, inverse_temperature=tau) for tau in (0.5, 1.0, 2.0)]
    np.testing.assert_allclose(losses, losses[1] * np.array([0.25, 1.0, 4.0]), rtol=1e-4)


@pytest.mark.slow
def test_an_edit_is_bounded_and_without_a_scale_it_is_the_flow():
    observations = make_batch().observations
    plain, state = made()
    flow_actions = plain.act(state, observations, KEY)
    for scale in (0.0, 0.3):
        edit, edited = made("edit", edit_scale=scale)
        same = with_params(edited, **state.params)  # the same flows, and an edit on top
        actions = edit.act(same, observations, KEY)
        assert np.abs(actions - flow_actions).max() <= scale + 1e-6
        assert equal(actions, flow_actions) == (scale == 0.0)


@pytest.mark.slow
def test_the_one_step_policy_acts_without_a_flow():
    algorithm, state = made("one_step")
    observations = make_batch().observations
    other = with_params(state, policy=scaled(state.params["policy"], 2.0))
    assert equal(algorithm.act(state, observations, KEY), algorithm.act(other, observations, KEY))
    assert equal(
        *(some(algorithm.act_with_base)(each, observations, KEY)[1] for each in (state, other))
    )  # the base is the behaviour's


@pytest.mark.slow
def test_gradients_are_clipped_by_one_norm():
    """After the first step Adam's first moment is a tenth of the gradient that it got."""
    gradients = {}
    for limit in (None, 1e-2):
        algorithm, state = made("edit", grad_clip=limit)
        after, metrics = fast_jit(algorithm.update)(state, make_batch(), KEY)
        gradients[limit] = {name: 10.0 * optax.tree.norm(m[0].mu) for name, m in after.optimiser.items()}
        for name, norm in gradients[None].items():
            assert metrics[f"grad_norm/{name}"] == pytest.approx(float(norm), rel=1e-3)  # before the clip
    whole = {limit: np.linalg.norm(list(norms.values())) for limit, norms in gradients.items()}
    assert whole[None] > 0.1
    assert whole[1e-2] == pytest.approx(1e-2, rel=1e-3)
    for name, norm in gradients[None].items():
        assert gradients[1e-2][name] == pytest.approx(float(norm / whole[None] * 1e-2), rel=1e-2)


@pytest.mark.slow
def test_a_frozen_flow_is_the_behaviour_itself_and_not_its_average():
    algorithm, state = made()
    state = state._replace(target={**state.target, "flow": scaled(state.target["flow"], 2.0)})
    state = with_params(state, policy=state.params["flow"])
    after, metrics = fast_jit(algorithm.update)(state, make_batch()._replace(proposals={}), KEY)
    assert metrics["path_kl"] == 0.0
    assert equal(after.params["flow"], state.params["flow"])
    assert not equal(after.params["policy"], state.params["policy"])
    assert "flow_loss" not in metrics


@pytest.mark.slow
def test_pessimism_lowers_the_target_by_the_spread_of_the_critics():
    goals = [metric("td_target", pessimism=rho) for rho in (0.0, 0.5, 1.0)]
    assert goals[0] > goals[1] > goals[2]
    assert goals[0] - goals[1] == pytest.approx(goals[1] - goals[2], rel=1e-3)
    # One critic has no spread.
    assert metric("td_target", critics=1, pessimism=0.0) == metric("td_target", critics=1, pessimism=1.0)


@pytest.mark.parametrize(
    "options", [{"grad_clip": 0.0}, {"variant": "both"}, {"critics": 0}, {"inverse_temperature": -1.0}]
)
def test_options_out_of_range_are_named(options):
    ((name, _),) = options.items()
    with pytest.raises(ConfigError, match=rf"^({name} must|there is no {name} )"):
        algos.get("qam").configure(**options)


def test_a_task_sets_what_was_published_for_the_variant():
    large, double = "antmaze-large-navigate-singletask-task1-v0", "cube-double-play-singletask-task2-v0"
    humanoid = "humanoidmaze-large-navigate-singletask-task1-v0"
    plain, edit, one = (resolve_options("qam", p, large) for p in ("recommended", "edit", "one_step"))
    assert (plain.variant, plain.inverse_temperature, plain.pessimism) == ("plain", 10.0, 0.5)
    assert (edit.variant, edit.inverse_temperature, edit.edit_scale) == ("edit", 1.0, 0.1)
    assert (one.variant, one.inverse_temperature, one.alpha) == ("one_step", 3.0, 30.0)
    assert resolve_options("qam", "edit", double) == resolve_options("qam", "recommended", double)  # as published
    assert resolve_options("qam", "recommended", humanoid).pessimism == 0.0
    assert resolve_options("qam", "recommended", humanoid).discount == 0.995
    assert resolve_options("qam", "edit", "cube-single-play-singletask-task2-v0").variant == "edit"  # none published
