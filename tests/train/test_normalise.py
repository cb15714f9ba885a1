"""Normalised observations: in training, in the policy and wherever the policy is used."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import fidec
from fidec.audit.run import audit
from fidec.errors import ConfigError, DataError
from fidec.train.acting import ActOptions
from fidec.train.config import RunConfig
from fidec.train.policy import Policy
from fidec.train.resolve import resolve
from fidec.train.stored import config_of
from helpers.algorithms import fast_jit, make_batch

OPTIONS = {"hidden": (8,), "flow_steps": 2}
TICKS, OFFSET = np.array([4096.0, 0.01, 1.0], np.float32), np.array([1e5, 3.0, 0.0], np.float32)


def columns(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(200, 3)).astype(np.float32)
    return {
        "observations": observations,
        "actions": np.tanh(observations[:, :2]),
        "rewards": observations[:, 0],
        "truncations": np.arange(200) % 50 == 49,
    }


def test_statistics_are_those_of_the_columns_and_a_constant_one_is_only_shifted():
    data = columns()
    data["observations"] = data["observations"] * TICKS + OFFSET
    data["observations"][:, 2] = 1e4
    dataset = fidec.dataset_from_arrays(**data)
    mean, std = dataset.observation_statistics
    np.testing.assert_allclose(mean, dataset.observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(std, [*dataset.observations.std(axis=0)[:2], 1.0], rtol=1e-4)


@pytest.mark.slow
def test_other_units_train_the_same_policy(tmp_path, compile_cache):
    """Encoder ticks with normalisation, and the same data normalised by hand without it."""
    raw, ticks = columns(), columns()
    ticks["observations"] = raw["observations"] * TICKS + OFFSET
    mean, std = fidec.dataset_from_arrays(**raw).observation_statistics
    by_hand = raw | {"observations": ((raw["observations"] - np.array(mean)) / np.array(std)).astype(np.float32)}
    runs = [(ticks, None), (by_hand, False)]
    policies = []
    for i, (data, normalize) in enumerate(runs):
        dataset = fidec.dataset_from_arrays(**data)
        common: dict[str, Any] = {"steps": 10, "batch_size": 32, "options": OPTIONS, "quiet": True}
        result = fidec.fit(dataset, tmp_path / str(i), normalize_observations=normalize, **common)
        policies.append(fidec.load_policy(result.policy))
    assert policies[0].spec.observation_std is not None
    assert policies[1].spec.observation_std is None
    actions = [policy(data["observations"][:5]) for policy, (data, _) in zip(policies, runs, strict=True)]
    np.testing.assert_allclose(actions[0], actions[1], atol=2e-3)
    single = policies[0](ticks["observations"][0], return_base=True)
    policies[0].reset()
    assert np.isfinite(single).all()
    measured = audit(policies[0], fidec.dataset_from_arrays(**ticks), states=4, samples=4)
    by_hand_measured = audit(policies[1], fidec.dataset_from_arrays(**by_hand), states=4, samples=4)
    np.testing.assert_allclose(measured["penalty"]["mean"], by_hand_measured["penalty"]["mean"], rtol=0.05)


@pytest.mark.parametrize("name", ["rlpd", "ifql"])
def test_every_function_of_a_method_sees_normalised_observations(name):
    spec = fidec.Spec((4,), 2)
    statistics = {"observation_mean": (1.0, 2.0, 3.0, 4.0), "observation_std": (2.0, 4.0, 0.5, 1.0)}
    scaled = dataclasses.replace(spec, **statistics)
    options = fidec.algos.get(name).configure(hidden=(8,))
    plain, normalised = (fidec.algos.get(name).build(options, each) for each in (spec, scaled))
    batch = make_batch()
    state, key = fast_jit(plain.init)(jax.random.key(0)), jax.random.key(1)
    own = scaled.normalise(batch.observations)
    for function in ("act", "explore", "act_with_base"):
        before, after = getattr(plain, function), getattr(normalised, function)
        assert (before is None) == (after is None)
        if before is not None:
            how = {} if function == "explore" else ActOptions(noise=0.5).dials(after)
            a, b = before(state, own, key, **how), after(state, batch.observations, key, **how)
            jax.tree.map(np.testing.assert_array_equal, a, b)
    if plain.choose is not None:
        a, b = plain.choose(state, own, key, 3), normalised.choose(state, batch.observations, key, 3)
        np.testing.assert_array_equal(a, b)


def test_the_default_is_on_for_own_data_and_off_for_a_task_and_for_older_runs():
    task = "cube-single-play-singletask-task2-v0"
    assert resolve(RunConfig(data="npz:x.npz")).normalize_observations is True
    assert resolve(RunConfig(task=task)).normalize_observations is False
    assert resolve(RunConfig(task=task, normalize_observations=True)).normalize_observations is True
    older = resolve(RunConfig(data="npz:x.npz")).to_json()
    del older["normalize_observations"]
    assert config_of(older).normalize_observations is False


def test_a_policy_of_an_older_version_is_read(tmp_path):
    method = fidec.algos.get("bc")
    spec, options = fidec.Spec((3,), 2), method.configure(hidden=(8,))
    state = fast_jit(method.build(options, spec).init)(jax.random.key(0))
    Policy("bc", options, spec, state).save(tmp_path / "policy")
    assert fidec.load_policy(tmp_path / "policy").spec == spec


def test_warnings_about_own_data_are_printed_and_errors_stop(tmp_path, tiny, capsys, monkeypatch):
    data = columns()
    data["rewards"] = np.zeros(200)
    data["observations"] = data["observations"] * 1e4
    run: dict[str, Any] = {"algo": "tiny", "steps": 2, "batch_size": 8}
    dataset = fidec.dataset_from_arrays(**data)
    fidec.fit(dataset, tmp_path / "a", **run)
    printed = capsys.readouterr().err
    assert "data, rewards: every reward is 0" in printed
    assert "data, scale" not in printed  # it is normalised
    assert "every reward is 0" in (tmp_path / "a" / "run.log").read_text()
    fidec.fit(dataset, tmp_path / "b", normalize_observations=False, **run)
    assert "data, scale: observations reach" in capsys.readouterr().err
    fidec.fit(dataset, tmp_path / "c", check_data=False, **run)
    assert "data, " not in capsys.readouterr().err
    broken = dataclasses.replace(dataset, masks=np.full(dataset.size, 0.5, np.float32))
    with pytest.raises(DataError, match=r"some masks are neither 0 nor 1.*--check-data False"):
        fidec.fit(broken, tmp_path / "d", **run)
    assert not (tmp_path / "d").exists()


def test_bounds_of_actions_on_the_command_line(cli, tiny, tmp_path):
    data = columns()
    with pytest.raises(ConfigError, match="give them to dataset_from_arrays"):
        fidec.fit(fidec.dataset_from_arrays(**data), tmp_path / "run", algo="tiny", action_low=(-1.0,))
    np.savez(tmp_path / "torque.npz", **{**data, "actions": 40 * data["actions"]})
    words = (
        "train",
        "--data",
        "npz:torque.npz",
        "--algo",
        "tiny",
        "--steps",
        "2",
        "--batch-size",
        "8",
        "--out",
        "run",
    )
    code, _, err = cli(*words)
    assert code == 1
    assert "--action-low" in err
    assert cli(*words, "--action-low", "-40", "--action-high", "40", "50")[0] == 0
    assert fidec.load_policy("run").spec.bounds == ((-40.0, -40.0), (40.0, 50.0))
    assert cli("train", "--resume", "run", "--steps", "3")[0] == 0
