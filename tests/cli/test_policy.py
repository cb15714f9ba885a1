"""A policy that travels: no data, no environment, the user's own units, and nothing damaged."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from contextlib import contextmanager
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import fidec
from fidec.envs.wrappers import FrameStack
from fidec.errors import CheckpointError, ConfigError, FidecError
from fidec.store import files, trees
from fidec.store.rundir import RunDirectory
from fidec.train.acting import ActOptions
from fidec.train.policy import CompilationWarning, Frames
from helpers.runs import random_columns


@pytest.fixture
def run(tmp_path, tiny, compile_cache):
    """A run on data whose actions lie in [0, 10] x [-2, 2]."""
    columns = random_columns()
    low, high = np.array([0.0, -2.0]), np.array([10.0, 2.0])
    columns["actions"] = (low + (columns["actions"] + 1) / 2 * (high - low)).astype(np.float32)
    dataset = fidec.dataset_from_arrays(**columns, action_low=low, action_high=high)
    fidec.fit(dataset, tmp_path / "run", algo="tiny", steps=50, batch_size=8, quiet=True)
    return tmp_path / "run"


def test_a_plug_in_is_trained_and_its_policy_acts_in_the_users_units(run):
    policy = fidec.load_policy(run)
    assert (policy.algo, policy.spec.action_dim, policy.info["step"]) == ("tiny", 2, 50)
    observations = np.random.default_rng(3).normal(size=(500, 3))
    actions, base = policy(observations, return_base=True)
    assert actions.shape == base.shape == (500, 2)
    assert actions.dtype == np.float32
    assert (actions >= [0, -2]).all()
    assert (actions <= [10, 2]).all()
    assert actions[:, 0].max() > 4  # wider than [-1, 1]
    inside = (actions - [5, 0]) / [5, 2]
    expected = np.tanh(policy.spec.normalise(observations.astype(np.float32)) @ np.asarray(policy.state["weight"]))
    np.testing.assert_allclose((base - [5, 0]) / [5, 2], expected, atol=1e-5)
    assert 0.01 < np.abs(inside - expected).mean() < 0.2
    assert policy(observations[0]).shape == (2,)


def test_the_sequence_of_actions_can_be_repeated(run):
    policy, observation = fidec.load_policy(run / "policy"), np.ones(3)
    first = [policy(observation) for _ in range(3)]
    assert not np.array_equal(first[0], first[1])
    policy.reset()
    np.testing.assert_array_equal(first, [policy(observation) for _ in range(3)])
    policy.reset(seed=1)
    assert not np.array_equal(first[0], policy(observation))


def test_the_noise_can_be_scaled(run):
    policy, observation = fidec.load_policy(run), np.ones(3)
    first = policy(observation)
    policy.reset()
    np.testing.assert_array_equal(policy(observation, noise=1.0), first)
    still = policy(observation, noise=0.0)
    np.testing.assert_array_equal(still, policy(observation, noise=0))
    np.testing.assert_array_equal(still, policy(observation, noise=0.0, return_base=True)[1])
    policy.reset()
    policy.warm_up(noise=0.5)
    half = policy(observation, noise=0.5)
    np.testing.assert_allclose(half - still, 0.5 * (first - still), atol=1e-5)
    for noise in (-0.1, np.nan, np.inf):
        with pytest.raises(ConfigError, match="noise must be a finite number"):
            policy(observation, noise=noise)


def test_the_displacement_can_be_scaled(run):
    policy, observation = fidec.load_policy(run), np.ones(3)
    first, base = policy(observation, return_base=True)
    policy.reset()
    np.testing.assert_array_equal(policy(observation, strength=1), first)
    policy.reset()
    policy.warm_up(strength=0.5)
    np.testing.assert_array_equal(policy(observation, strength=0), base)
    policy.reset()
    half = policy(observation, strength=0.5)
    np.testing.assert_allclose(half, 0.5 * (first + base), atol=1e-5)
    policy.reset()
    np.testing.assert_array_equal(policy.player(strength=0.5)(observation), half)
    for strength in (-0.1, np.nan, np.inf):
        with pytest.raises(ConfigError, match="strength must be a finite number that is not negative"):
            policy(observation, strength=strength)


def test_a_method_without_the_keywords_acts_as_published_only():
    def act(state, observations, key):
        return observations

    assert ActOptions(noise=1.0, strength=1.0).dials(act) == {}
    with pytest.raises(ConfigError, match="cannot scale its noise, so noise must be 1, not 0"):
        ActOptions(noise=0).dials(act)
    with pytest.raises(ConfigError, match="displacement, so strength must be 1, not 0"):
        ActOptions(strength=0).dials(act)


def test_saved_again_it_is_the_same(run, tmp_path):
    fidec.load_policy(run).save(tmp_path / "copy")
    for path in (run / "policy").iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_a_save_that_ended_between_its_renames_loses_nothing(run):
    (run / "policy").rename(run / ".old-policy")
    RunDirectory.open(run).close()
    policy = fidec.load_policy(run)
    (run / "policy").rename(run / ".old-policy")
    policy.save(run / "policy")
    assert fidec.load_policy(run).info == policy.info
    assert not list(run.glob(".*policy*"))


def test_no_data_and_no_simulator_are_needed(tmp_path, run, plugin_site):
    """In a process that cannot import the simulators, with nothing but the policy's three files."""
    (run / "policy").rename(tmp_path / "alone")
    code = (
        "import sys\n"
        "for name in ('mujoco', 'ogbench', 'h5py', 'gymnasium'): sys.modules[name] = None\n"
        "import numpy, fidec\n"
        "print(fidec.load_policy('alone')(numpy.ones(3)).tolist())\n"
    )
    environ = {"PYTHONPATH": str(plugin_site), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(json.loads(done.stdout), fidec.load_policy(tmp_path / "alone")(np.ones(3)))


def test_any_flipped_bit_is_refused(run):
    dice = np.random.default_rng()
    for path in sorted((run / "policy").iterdir()):
        raw = path.read_bytes()
        for _ in range(15):
            damaged = bytearray(raw)
            damaged[dice.integers(len(raw))] ^= 1 << int(dice.integers(8))
            path.write_bytes(damaged)
            with pytest.raises(CheckpointError):
                fidec.load_policy(run)
        path.write_bytes(raw)
    fidec.load_policy(run)


def test_missing_files_and_other_formats(run, tmp_path):
    with pytest.raises(CheckpointError, match="no policy"):
        fidec.load_policy(tmp_path / "nowhere")
    with pytest.raises(
        CheckpointError, match=rf"neither a run nor a policy\. Name one of the runs below it: {run}\.$"
    ):
        fidec.load_policy(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"other is neither a run nor a policy\. There is no run below it\.$"):
        fidec.load_policy(tmp_path / "other")
    card = json.loads((run / "policy" / "policy.json").read_text())

    def rewrite(**changes):
        files.write_json(run / "policy" / "policy.json", {**card, **changes})
        files.write_manifest(run / "policy")

    rewrite(format=1)  # whose options of FiDec have other names
    with pytest.raises(CheckpointError, match=r"format 1, and this fidec reads format 2: .*Train again, or use"):
        fidec.load_policy(run)
    rewrite(format=3)
    with pytest.raises(CheckpointError, match="format 3, and this fidec reads format 2: update fidec"):
        fidec.load_policy(run)
    for act in ({"noise": "0"}, {"candidates": 1.5}, {"noise": -1}):
        rewrite(act=act)
        with pytest.raises(fidec.FidecError, match=next(iter(act))):
            fidec.load_policy(run)
    rewrite(algo="gone")
    with pytest.raises(ConfigError, match="no method 'gone'"):
        fidec.load_policy(run)
    rewrite(spec={**card["spec"], "action_dim": 3})
    with pytest.raises(CheckpointError, match="shape"):
        fidec.load_policy(run)
    rewrite(options={"colour": "red"})
    with pytest.raises(ConfigError, match="no option colour"):
        fidec.load_policy(run)
    rewrite()
    fidec.load_policy(run)
    (run / "policy" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        fidec.load_policy(run)


def test_numbers_that_no_policy_can_act_with_are_refused(run):
    path, card = run / "policy" / "policy.json", json.loads((run / "policy" / "policy.json").read_text())
    for changes, words in (
        ({"action_low": [0.0, 3.0]}, r"action_low \(0\.0, 3\.0\) is not below action_high"),
        ({"action_low": [0.0, 1e300]}, r"action_low is .*expected finite numbers of shape \(2,\)"),
        ({"action_high": [1.0]}, "action_high is .*expected finite numbers"),
        ({"action_high": None}, "action_high is None"),
        ({"observation_mean": [0.0, None, 0.0]}, "observation_mean"),
        ({"observation_std": [1.0, 0.0, 1.0]}, "observation_std is .*expected positive"),
        ({"action_dim": 0}, "have to be positive"),
    ):
        files.write_json(path, {**card, "spec": {**card["spec"], **changes}})
        files.write_manifest(path.parent)
        with pytest.raises(FidecError, match=words):
            fidec.load_policy(run)
    files.write_json(path, card)
    for number in (np.nan, np.inf):
        weight = load_file(path.with_name("model.safetensors"))["weight"]
        weight[1, 1] = number
        trees.save_tree(path.with_name("model.safetensors"), {"weight": weight})
        files.write_manifest(path.parent)
        with pytest.raises(CheckpointError, match="leaf 'weight' holds 1 non-finite number of 6"):
            fidec.load_policy(run)


def test_observations_of_another_shape(run):
    with pytest.raises(ConfigError, match=r"shape \(4,\)"):
        fidec.load_policy(run)(np.ones(4))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_refused_by_their_index(run, bad):
    policy, observations = fidec.load_policy(run), np.ones((4, 3))
    observations[2, 1] = bad
    with pytest.raises(ConfigError, match=r"observation at index \(2, 1\) is (nan|inf)"):
        policy(observations)
    with pytest.raises(ConfigError, match="observation at index 1 is"):
        policy(observations[2])
    with pytest.raises(ConfigError, match="candidates must be at least 1, not 0"):
        policy(np.ones(3), candidates=0)


def test_it_says_what_it_is(run):
    text = repr(fidec.load_policy(run))
    assert text == "Policy(tiny, trained for 50 steps, observations (3,) float32, actions (2,))"


def test_warming_up_draws_nothing(run):
    policy, other = fidec.load_policy(run), fidec.load_policy(run)
    policy.warm_up()
    policy.warm_up(batch=2, return_base=True)
    np.testing.assert_array_equal(policy(np.ones(3)), other(np.ones(3)))
    np.testing.assert_array_equal(policy(np.ones(3)), other(np.ones(3)))


@contextmanager
def calls(caplog):
    """(warnings, names of compiled functions) of the block."""
    compiled: list[str] = []
    caplog.clear()
    with warnings.catch_warnings(record=True) as warned, jax.log_compiles(), caplog.at_level(logging.WARNING, "jax"):
        warnings.simplefilter("always")
        yield warned, compiled
    compiled += [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]


def test_a_call_that_compiles_after_the_first_says_so_once(run, caplog):
    policy = fidec.load_policy(run)
    with calls(caplog) as (warned, compiled):
        policy(np.ones(3))
    assert len(compiled) == 1
    assert not warned  # the first call
    with calls(caplog) as (warned, compiled):
        policy(np.ones((17, 3)))
    assert len(compiled) == 1
    (warning,) = warned
    assert warning.category is CompilationWarning
    assert warning.filename == __file__  # the caller's line
    assert str(warning.message) == (
        "the policy compiles for observations of shape (17, 3): this call is slow, it may take seconds. "
        "`policy.warm_up(17)` before the loop avoids that"
    )
    with calls(caplog) as (warned, compiled):
        for number in range(3):
            policy(np.full(3, number))
            policy(np.full((17, 3), number))
        policy.reset(seed=4)
        policy(np.ones((17, 3)), noise=1, candidates=1)
    assert not compiled
    assert not warned


def test_a_call_that_was_warmed_up_does_not_compile(run, caplog):
    policy, other = fidec.load_policy(run), fidec.load_policy(run)
    other.warm_up(9)
    how: Any
    for batch, how, words in (
        ((4,), {}, "4"),
        ((2, 4), {}, "(2, 4)"),
        ((), {"return_base": True, "noise": 0.5}, "return_base=True, noise=0.5"),
        ((), {"strength": 0.5}, "strength=0.5"),
    ):
        with calls(caplog) as (warned, compiled):
            policy.warm_up(batch, **how)
        assert not warned
        assert len(compiled) == 1
        with calls(caplog) as (warned, compiled):
            policy.warm_up(batch, **how)
            policy(np.ones((*batch, 3)), **how)
        assert not warned
        assert not compiled
        with pytest.warns(CompilationWarning, match=re.escape(f"`policy.warm_up({words})`")):
            other(np.ones((*batch, 3)), **how)
    with calls(caplog) as (warned, compiled):
        policy(np.ones(3), return_base=True, noise=0.25)  # another factor is the same program
        policy(np.ones(3), strength=0)
    assert not warned
    assert not compiled


def test_a_call_that_is_refused_neither_warns_nor_counts_as_compiled(run):
    policy = fidec.load_policy(run)
    policy.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for observations in (np.full((2, 3), np.nan), np.ones((2, 4))):
            with pytest.raises(ConfigError):
                policy(observations)
        for noise, candidates in ((-1.0, 1), (1.0, 0)):
            with pytest.raises(ConfigError):
                policy(np.ones((2, 3)), noise=noise, candidates=candidates)
    with pytest.warns(CompilationWarning):
        policy(np.ones((2, 3)))


def test_large_observations_are_not_taken_for_infinite_ones(run):
    assert np.isfinite(fidec.load_policy(run)(np.full(3, 1e30))).all()  # the sum of squares is infinite


def test_frames_are_stacked_as_an_environment_stacks_them():
    frames, shown = Frames(3), np.arange(5)[:, None, None, None] * np.ones((2, 2, 1), np.uint8)
    env = FrameStack(Shown(shown), 3)
    for _ in range(2):  # two episodes
        frames.reset()
        np.testing.assert_array_equal(frames(shown[0]), env.reset()[0])
        for frame in shown[1:]:
            np.testing.assert_array_equal(frames(frame), env.step(None)[0])


class Shown(gymnasium.Env):
    """Shows these frames one after another."""

    def __init__(self, frames: np.ndarray):
        self.frames, self.at = frames, 0
        self.observation_space = gymnasium.spaces.Box(0, 255, frames.shape[1:], np.uint8)

    def reset(self, **_):
        self.at = 0
        return self.frames[0], {}

    def step(self, action):
        self.at += 1
        return self.frames[self.at], 0.0, False, False, {}
