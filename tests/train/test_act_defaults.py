"""How a policy acts by default: as its preset says; the flow that is trained first acts as published."""

import json
from typing import Any

import numpy as np
import pytest

import fidec
from fidec.errors import ConfigError
from fidec.train.checks import with_data
from fidec.train.config import OnlineConfig, RunConfig
from helpers.runs import random_columns

SMALL: dict[str, Any] = {"steps": 4, "batch_size": 8, "quiet": True}


def trained(out, **fields):
    own = {} if fields.get("algo") == "bc" else {"flow_steps": 2}
    options = {"hidden": (8,), **own, **fields.pop("options", {})}
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


def test_what_a_method_cannot_do_is_refused_before_training_also_without_an_environment(tmp_path):
    with pytest.raises(ConfigError, match="there are no candidates"):
        trained(tmp_path / "x", algo="bc", candidates=4)
    with pytest.raises(ConfigError, match="--reward-rule is for methods that learn a value"):
        trained(tmp_path / "x", algo="bc", reward_rule="sparse")
    assert not (tmp_path / "x").exists()


def test_a_run_that_starts_from_another_has_its_reward_rule_and_acts_as_its_preset(nats, tmp_path):
    options = {"proposals": 4, "warmup": 3000}
    started = trained(tmp_path / "next", preset="nats", init_from=nats, options=options)
    config = json.loads((started / "config.json").read_text())
    assert (config["reward_rule"], config["candidates"], config["noise"]) == ("auto", 4, 0.5)
    with pytest.raises(ConfigError, match="its reward_rule is auto, here it is given"):
        trained(tmp_path / "other", preset="nats", init_from=nats, options=options, reward_rule="given")


def test_an_online_reward_that_counts_as_done_needs_a_rule():
    dataset = fidec.dataset_from_arrays(**random_columns())
    config = RunConfig(env="Pendulum-v1", online_steps=4, steps=4, online=OnlineConfig(reward_done=0.0))
    with pytest.raises(ConfigError, match=r"online\.reward_done 0\.0"):
        with_data(config, dataset)
