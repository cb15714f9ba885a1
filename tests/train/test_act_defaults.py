"""How a policy acts by default: as its preset says; the flow that is trained first acts as published."""

from typing import Any

import numpy as np
import pytest

import fidec
from fidec.errors import ConfigError
from helpers.runs import random_columns

SMALL: dict[str, Any] = {"steps": 4, "batch_size": 8, "quiet": True}


def trained(out, **fields):
    options = {"hidden": (8,), "flow_steps": 2, **fields.pop("options", {})}
    return fidec.fit(fidec.dataset_from_arrays(**random_columns()), out, options=options, **SMALL, **fields).directory


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run") / "nats", preset="nats", options={"proposals": 4})


def test_the_preset_nats_chooses_among_four_actions_of_half_the_noise(nats):
    policy = fidec.load_policy(nats)
    assert (policy.act.candidates, policy.act.noise) == (4, 0.5)
    observation = np.zeros(policy.spec.observation_shape, np.float32)
    given = {"candidates": 4, "noise": 0.5}
    actions = []
    for how in ({}, given, {"candidates": 1, "noise": 1.0}):
        policy.reset(3)
        actions.append(policy(observation, **how))
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])


def test_the_flow_that_is_trained_first_acts_with_all_of_its_noise(nats):
    flow = fidec.load_policy(nats / "flow")
    assert (flow.act.candidates, flow.act.noise) == (1, 1.0)


def test_a_flow_takes_at_most_two_updates_for_each_step_of_the_rest(nats):
    assert fidec.load_policy(nats / "flow").info["step"] == 2 * SMALL["steps"]


def test_other_presets_act_as_published_and_an_option_changes_it(tmp_path):
    paper = fidec.load_policy(trained(tmp_path / "paper", preset="paper")).act
    assert (paper.candidates, paper.noise, paper.strength) == (1, 1.0, 1.0)
    policy = fidec.load_policy(trained(tmp_path / "half", preset="paper", noise=0.5))
    assert (policy.act.candidates, policy.act.noise) == (1, 0.5)


@pytest.mark.parametrize("field", [{"noise": -1.0}, {"noise": float("nan")}, {"candidates": 0}])
def test_senseless_options_of_acting_are_named(tmp_path, field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        trained(tmp_path / "x", **field)
