"""One way to act: options with their checks and defaults, and the batched policy."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fidec
from fidec import algos, rng
from fidec.algos import Method
from fidec.errors import ConfigError, RunError
from fidec.serve.batching import ServedPolicy
from fidec.store import files
from fidec.store.rundir import RunDirectory
from fidec.train.acting import (
    DIALS,
    NAMES,
    PUBLISHED,
    ActArguments,
    ActOptions,
    CallArguments,
    batched_policy,
)
from fidec.train.evaluation import PolicyEvaluation
from helpers.runs import random_columns

SETTINGS: dict[str, Any] = {"steps": 4, "batch_size": 8, "log_interval": 2, "quiet": True}


def test_what_is_not_given_is_a_default_and_what_is_given_stays():
    defaults = ActOptions(candidates=4, noise=0.5, replan=3)
    assert ActOptions().resolved(defaults) == defaults
    assert ActOptions(noise=0.0, ensemble=0.1).resolved(defaults) == ActOptions(4, 0.0, None, 3, 0.1)
    assert ActOptions().resolved(PUBLISHED) == ActOptions(1, 1.0, 1.0)
    assert ActOptions.of(SimpleNamespace(**{**dict.fromkeys(NAMES), "noise": 2, "other": 1})).given() == {"noise": 2}


def test_arguments_are_the_fields():
    assert set(ActArguments.__annotations__) == set(NAMES)
    assert set(CallArguments.__annotations__) == {"candidates", *DIALS}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"candidates": 0}, "candidates must be at least 1, not 0"),
        ({"replan": 0}, "replan must be at least 1, not 0"),
        ({"noise": float("nan")}, "noise must be a finite number"),
        ({"strength": -1.0}, "strength must be a finite number that is not negative, not -1.0"),
    ],
)
def test_options_are_checked_in_one_place(options, words):
    with pytest.raises(ConfigError, match=words):
        ActOptions(**options)


def test_a_row_has_its_own_key_and_dial_whatever_the_others_are():
    def act(state, observation, key, noise=1.0):
        return state + observation + noise * jax.random.normal(key, observation.shape)

    run, key = batched_policy(act, rng.at), jax.random.key(0)
    observations, steps = np.ones((3, 2), np.float32), np.arange(3)
    noises = np.array([1.0, 0.5, 0.0], np.float32)
    rows = run(jnp.ones(()), observations, (key, steps, steps), {"noise": noises})
    for row in range(3):
        expected = act(1.0, observations[row], rng.at(key, row, row), noises[row])
        np.testing.assert_allclose(rows[row], expected, atol=1e-6)
    shared = run(jnp.ones(()), observations, (key, steps, steps), {"noise": np.float32(0.5)})
    np.testing.assert_allclose(shared[1], rows[1], atol=1e-6)


@pytest.fixture
def run(tiny, tiny_env, tmp_path, compile_cache):
    dataset = fidec.dataset_from_arrays(**random_columns())
    fidec.fit(dataset, tmp_path / "run", algo="tiny", env=tiny_env, candidates=3, eval_interval=0, **SETTINGS)
    return tmp_path / "run"


def test_a_policy_records_how_it_acts_and_all_take_it_from_there(run):
    policy = fidec.load_policy(run)
    assert json.loads((run / "policy" / "policy.json").read_text())["act"] == {
        "candidates": 3,
        "noise": 1.0,
        "strength": 1.0,
    }
    assert policy.act == ActOptions(3, 1.0, 1.0, 1)
    assert PolicyEvaluation.of(run).act == PolicyEvaluation.of(run / "policy").act == policy.act
    assert ServedPolicy(policy, largest=1).act == policy.act
    assert PolicyEvaluation.of(run, ActOptions(noise=0)).act == dataclasses.replace(policy.act, noise=0)
    with pytest.raises(ConfigError, match="no argument of a policy's call 'nois'; did you mean noise"):
        policy(np.ones(3), nois=1)  # type: ignore[call-arg]


def test_an_evaluation_does_not_need_the_data_or_the_package_that_reads_it(run):
    """The run was trained on data of a plug-in's scheme, which is not installed here."""
    config = json.loads((run / "config.json").read_text())
    config.pop("sha256")
    config = {**config, "data": "warehouse:shelf-3", "buffer": "warehouse:shelf-4"}
    files.write_json(run / "config.json", {**config, "sha256": files.sha256_json(config)})
    result = fidec.evaluate(run, episodes=2)
    assert result["refined"]["n"] == 2


def test_runs_of_format_1_are_refused_with_what_to_do(run):
    files.write_json(run / "run.json", {"format": "fidec-run", "version": 1})
    words = r"run has format 1, and this fidec reads format 2: .* Train again, or use the version .* its commit"
    for read_only in (True, False):
        with pytest.raises(RunError, match=words):
            RunDirectory.open(run, read_only=read_only)
    with pytest.raises(RunError, match=words):
        fidec.resume(run, quiet=True)


def test_a_method_says_which_modules_are_critics():
    nothing: Any = None
    assert algos.get("fan").critics == ("critic", "upper")
    assert algos.get("iql").learns_values
    assert not algos.get("bc").learns_values

    @dataclasses.dataclass(frozen=True)
    class WithDiscount:
        discount: float = 0.9

    @dataclasses.dataclass(frozen=True)
    class Without:
        rate: float = 0.9

    assert Method("a", "", WithDiscount, nothing).critics == ("critic", "value")  # of a plug-in that says nothing
    assert Method("b", "", Without, nothing).critics == ()
    assert Method("c", "", WithDiscount, nothing, critics=("q",)).critics == ("q",)
    assert not Method("d", "", WithDiscount, nothing, critics=()).learns_values
