"""The scale and the start of values, the time constant of the targets, and presets that set them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, dataset_from_arrays, fit
from fidec.algos.common.base import METHODS
from fidec.errors import ConfigError
from fidec.train.config import RunConfig
from fidec.train.resolve import resolve
from fidec.train.value_scale import data_value, describe_time_constant, reward_factor, start_at, time_constant
from fidec.types import Spec
from helpers.runs import random_columns

SETTINGS = {"steps": 4, "batch_size": 8, "quiet": True}


@pytest.fixture
def dataset():
    return dataset_from_arrays(**random_columns())


def with_options(algo: str = "fql", **changes) -> RunConfig:
    run = {name: changes.pop(name) for name in list(changes) if name in RunConfig.__dataclass_fields__}
    return RunConfig(algo=algo, options=algos.get(algo).configure(**changes), **run)


def test_the_time_constant_is_that_of_the_mean_value():
    """All rewards 1, no function approximation: q <- 1 + gamma qbar, qbar <- qbar + tau (q - qbar)."""
    for n_step, rate, discount in ((1, 0.01, 0.9), (5, 0.02, 0.95)):
        config = with_options(steps=10, n_step=n_step, target_rate=rate, discount=discount)
        constant, target, value = time_constant(config), 0.0, 1.0 / (1.0 - discount)
        assert constant is not None
        for _ in range(round(constant)):
            q = (1.0 - discount**n_step) / (1.0 - discount) + discount**n_step * target
            target += rate * (q - target)
        assert (value - target) / value == pytest.approx(np.exp(-1.0), rel=0.02)
    assert time_constant(with_options("bc")) is None


def test_a_run_that_is_shorter_than_the_time_constant_is_warned():
    text = describe_time_constant(with_options(steps=1000))
    assert text is not None
    assert "a time constant of 20,000 updates" in text
    assert "the run has 1,000. This run is shorter than that, so Q will stay near its initial value. Raise" in text
    longer = describe_time_constant(with_options(steps=50_000))
    assert longer is not None
    assert longer.endswith("the run has 50,000")


@pytest.mark.parametrize("name", ["fql", "iql", "fan", "calql", "qam"])
def test_values_start_at_the_mean_return_of_the_data(dataset, name):
    method, spec = algos.get(name), Spec((3,), 2)
    algorithm = method.build(method.configure(hidden=(8, 8)), spec)
    shapes = jax.eval_shape(algorithm.init, jax.random.key(0))
    zeros = lambda shapes: jax.tree.map(lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), shapes)  # noqa: E731
    state = shapes._replace(params=zeros(shapes.params), target=zeros(shapes.target))
    value = data_value(with_options(name, value_start="data", discount=0.9), dataset)
    assert value == pytest.approx(dataset.returns(0.9).mean() * (10.0 if name == "calql" else 1.0), rel=1e-5)
    moved = start_at(state, 7.0, method.critics)
    for modules, before in ((moved.params, state.params), (moved.target, state.target)):
        for module in modules.keys() & {"critic", "value", "upper"}:
            changes = jax.tree.map(lambda a, b: np.unique(a - b).tolist(), modules[module], before[module])
            assert sorted(jax.tree.leaves(changes, is_leaf=lambda x: isinstance(x, list)))[-1] == [7.0]
            assert (
                sum(change == [7.0] for change in jax.tree.leaves(changes, is_leaf=lambda x: isinstance(x, list)))
                == 1
            )


def test_a_run_starts_there(dataset, tmp_path, compile_cache, capfd):
    zero = fit(dataset, tmp_path / "zero", algo="iql", options={"hidden": (8,)}, **SETTINGS)
    data = fit(dataset, tmp_path / "data", algo="iql", options={"hidden": (8,)}, value_start="data", **SETTINGS)
    rows = [(run.directory / "train.jsonl").read_text() for run in (zero, data)]
    assert rows[0] != rows[1]
    assert "values settle with a time constant" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="--value-start data is for methods that learn a value: bc"):
        fit(dataset, tmp_path / "bc", algo="bc", value_start="data", **SETTINGS)
    assert not (tmp_path / "bc").exists()


def test_scaled_rewards_train_as_rewards_of_that_scale(dataset, tmp_path, compile_cache):
    """A power of two, so that no rounding differs."""
    twice = dataclasses.replace(dataset, rewards=2 * dataset.rewards)
    how = {"algo": "iql", "options": {"hidden": (8,)}, **SETTINGS}
    first = fit(twice, tmp_path / "twice", **how)
    second = fit(dataset, tmp_path / "scaled", reward_scale=2.0, **how)
    rows = [(run.directory / "train.jsonl").read_text() for run in (first, second)]
    assert rows[0] == rows[1]


def test_the_scale_of_the_data_gives_values_a_spread_of_one(dataset):
    config = with_options("iql", reward_scale="data", value_start="data", discount=0.9)
    factor = reward_factor(config, dataset)
    assert (factor * dataset.returns(0.9)).std() == pytest.approx(1.0, rel=1e-5)
    assert data_value(config, dataset) == pytest.approx(factor * dataset.returns(0.9).mean(), rel=1e-5)
    constant = dataclasses.replace(dataset, rewards=np.zeros_like(dataset.rewards))
    assert reward_factor(config, constant) == 1.0
    with pytest.raises(ConfigError, match="reward_scale must be a positive number or data, not 0"):
        RunConfig(reward_scale=0.0)


def test_a_preset_sets_up_a_run_and_what_is_given_goes_first():
    task = "cube-single-play-singletask-task2-v0"
    config = resolve(RunConfig(task=task, preset="nats"))
    assert (config.flow_updates, config.value_start, config.reward_scale) == (20_000, "data", "data")
    assert (config.normalize_observations, config.n_step) == (True, 5)
    assert resolve(RunConfig(task=task, preset="nats", chunk=7)).n_step == 7
    assert config.options == algos.get("fidec").configure("nats")  # nothing by task
    given = resolve(RunConfig(task=task, preset="nats", flow_updates=0, value_start="zero", reward_scale=1.0))
    assert (given.flow_updates, given.value_start, given.reward_scale) == (0, "zero", 1.0)
    assert resolve(RunConfig(task=task, preset="nats", flow=Path("other"))).flow_updates == 0
    started = resolve(RunConfig(task=task, preset="nats", init_from=Path("other")))
    assert (started.flow_updates, started.value_start, started.normalize_observations) == (0, "zero", None)
    usual = resolve(RunConfig(task=task))
    assert (usual.flow_updates, usual.value_start, usual.reward_scale) == (0, "zero", 1.0)


def test_every_method_with_a_value_has_the_options_of_its_critics():
    learners = [name for name in METHODS.builtin() if "discount" in METHODS.get(name).config.__dataclass_fields__]
    assert len(learners) >= 16
    for name in learners:
        method, critics = METHODS.get(name), {"critics": 3, "q_aggregate": "random_pair", "pessimism": 0.0}
        algorithm = method.build(method.configure(hidden=(8,), **critics), Spec((3,), 2))
        critic = jax.eval_shape(algorithm.init, jax.random.key(0)).params["critic"]
        assert {leaf.shape[0] for leaf in jax.tree.leaves(critic)} == {3}
    with pytest.raises(ConfigError, match="pessimism lowers the mean"):
        METHODS.get("fql").configure(pessimism=1.0, q_aggregate="min")
    with pytest.raises(ConfigError, match="random_pair needs at least 2 critics"):
        METHODS.get("fql").configure(critics=1, q_aggregate="random_pair")
