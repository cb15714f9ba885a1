"""The ant's expert: its policy, its training, its files, and the data that it makes."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidec.errors import ConfigError, DataError
from fidec.extras import global_numpy_seed
from fidec.make import make_dataset
from fidec.make.expert import (
    FLIPPED_STEPS,
    Policy,
    expert_directory,
    find_expert,
    flipped,
    layers_of,
    load_expert,
    save_expert,
    turned,
)
from fidec.make.expert_training import Track, Trainer, Training, _learner, train_expert
from fidec.store.files import sha256_file
from helpers import some

TINY = Training(
    steps=64, hidden=(16,), batch=8, environments=2, block=4, random_steps=16, capacity=40, episode_steps=7
)


def random_layers(seed: int = 0, hidden: int = 16):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(0, 0.3, s).astype(np.float32), np.zeros(s[1], np.float32)) for s in ((29, hidden), (hidden, 16))
    ]


def untrained(directory: Path, seed: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_expert(directory, random_layers(seed), {})
    return directory


# --- the policy ---------------------------------------------------------------------------------------------


def test_the_numpy_policy_is_the_jitted_one():
    import jax

    from fidec.algos import rlpd
    from fidec.types import Spec

    algorithm = rlpd.make(rlpd.RLPDConfig(hidden=TINY.hidden), Spec((29,), 8))
    state, _ = _learner(TINY, 29, 8).init(jax.random.key(0))
    observations = np.random.default_rng(0).normal(0, 3, (50, 29)).astype(np.float32)
    policy = Policy(layers_of(state.params["actor"]))
    expected = jax.jit(algorithm.act)(state, turned(observations), jax.random.key(1))
    np.testing.assert_allclose(policy.mean(observations), expected, atol=2e-6)
    assert float(state.params["temperature"]) == pytest.approx(np.log(0.01))

    wide = [(k * 30, b) for k, b in policy.layers]  # log standard deviations beyond their bounds
    draws = Policy(wide).sample(observations, np.random.default_rng(0))
    assert np.isfinite(draws).all()
    assert np.abs(draws).max() <= 1
    with pytest.raises(ConfigError, match="initial_temperature"):
        rlpd.RLPDConfig(initial_temperature=0.0)


def test_turned_observations_are_equal_in_every_direction():
    """The rotation matrix is MuJoCo's; turning the world and the direction together changes nothing."""
    mujoco: Any = importlib.import_module("mujoco")
    rng = np.random.default_rng(0)
    observation = rng.normal(size=29)
    observation[27:] = 1.0, 0.0
    seen, matrix = turned(observation), np.empty(9)
    mujoco.mju_quat2Mat(matrix, observation[1:5] / np.linalg.norm(observation[1:5]))
    axes = matrix.reshape(3, 3)
    np.testing.assert_allclose(seen[1:7], np.concatenate([axes[:, 0], axes[:, 2]]), atol=1e-6)
    np.testing.assert_allclose(seen[[0, *range(7, 29)]], observation[[0, *range(5, 27)]], atol=1e-6)

    for angle in (0.3, 2.0, -1.7):
        turn = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
        plane = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        other, quaternion = observation.copy(), np.empty(4)
        mujoco.mju_mulQuat(quaternion, turn, observation[1:5])
        other[1:5] = -2 * quaternion  # neither sign nor length of a quaternion means anything
        other[13:15] = plane @ observation[13:15]
        other[27:] = plane @ observation[27:]
        np.testing.assert_allclose(turned(other), seen, atol=1e-5)
    np.testing.assert_array_equal(turned(np.stack([observation, other]))[0], seen)


def test_an_ant_on_its_back_is_flipped():
    qpos = np.zeros((200, 15))
    qpos[:, 3] = 1.0
    assert not flipped(qpos)
    qpos[: FLIPPED_STEPS - 1, 3:7] = 0, 1, 0, 0
    assert not flipped(qpos)
    qpos[FLIPPED_STEPS - 1, 3:7] = 0, 0, 1, 0
    assert flipped(qpos)


# --- training -----------------------------------------------------------------------------------------------


def test_a_restored_track_continues_bit_for_bit():
    """Through a new direction as well."""
    first, second = Track(110), Track(110)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, first.action_dim))
    with global_numpy_seed(0):
        assert first.reset(seed=3).shape == (29,)
        for _ in range(95):
            first.step(actions[0])
        state, draws = first.get_state(), np.random.get_state()
        expected = [first.step(action) for action in actions]
        second.reset(seed=4)
        second.set_state(state)
        np.random.set_state(draws)
        for action, (observation, reward, failed, over) in zip(actions, expected, strict=True):
            again = second.step(action)
            assert again[0].tobytes() == observation.tobytes()
            assert again[1:] == (reward, failed, over)
        assert [over for *_, over in expected] == [False] * 14 + [True] * 6


@pytest.mark.slow
def test_an_interrupted_training_continues_exactly(tmp_path):
    whole, cut = Trainer(TINY, tmp_path / "whole"), Trainer(TINY, tmp_path / "cut")
    start = [kernel.copy() for kernel, _ in whole.layers]
    for block in range(8):
        whole.advance()
        if block in (0, 4):  # one stop before the first update, one after it
            for _ in range(block + 1 - cut.blocks):
                cut.advance()
            cut.save()
            cut.advance()  # lost when it is killed
            cut = Trainer(TINY, tmp_path / "cut")
            assert cut.blocks == block + 1
    while cut.steps < TINY.steps:
        cut.advance()
    assert whole.steps == 64
    assert list(whole.returns) == list(cut.returns)
    for old, (kernel, bias), (kernel2, bias2) in zip(start, whole.layers, cut.layers, strict=True):
        assert not np.array_equal(old, kernel)
        assert (kernel.tobytes(), bias.tobytes()) == (kernel2.tobytes(), bias2.tobytes())
    with pytest.raises(DataError, match="other settings"):
        Trainer(replace(TINY, learning_rate=1e-3), tmp_path / "cut")


@pytest.mark.slow
def test_sac_learns_where_to_go():
    """The learner alone, in a world where the reward is how well the action's first entry follows the observation."""
    from fidec.train.loop import keys_of
    from fidec.types import Batch

    training = replace(TINY, hidden=(32,), batch=64, learning_rate=3e-3, environments=8, block=32, capacity=4096)
    learner, keys = _learner(training, 1, 1), keys_of(0)
    agent, memory = learner.init(keys.update)
    rng = np.random.default_rng(0)
    for block in range(12):
        s = rng.choice([-1.0, 1.0], (256, 1)).astype(np.float32)
        a = rng.uniform(-1, 1, (256, 1)).astype(np.float32)
        batch = Batch(s, a, (s * a)[:, 0], np.zeros(256, np.float32), s, a)
        agent, memory, _ = learner.learn(keys, agent, memory, batch, block)
    x = np.array([[1.0], [-1.0]], np.float32)
    (first, bias), (last, bias2) = layers_of(agent.params["actor"])
    import jax

    mean = np.split(np.asarray(jax.nn.gelu(x @ first + bias)) @ last + bias2, 2, axis=-1)[0]
    assert np.tanh(mean)[:, 0] == pytest.approx([1, -1], abs=0.3)


def test_train_expert_writes_a_report_and_trains_once(tmp_path, monkeypatch):
    expert = train_expert(tmp_path, TINY, progress=False, report_episodes=1)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "expert.json", "weights.safetensors"}
    record = json.loads((tmp_path / "expert.json").read_text())
    assert (record["name"], record["steps"], record["training"]["batch"]) == ("ant", 64, 8)
    assert record["report"]["data"] == "antmaze-large-navigate-v0"
    assert len(record["report"]["goals"]) == 1
    assert some(find_expert(tmp_path, tmp_path)).sha256 == expert.sha256 == record["sha256"]
    monkeypatch.setattr("fidec.make.expert_training.Trainer", lambda *_: pytest.fail("trained again"))
    assert train_expert(tmp_path, TINY, progress=False).sha256 == expert.sha256  # another process has finished it


# --- files --------------------------------------------------------------------------------------------------


def test_where_an_expert_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "cache"))
    assert find_expert(tmp_path / "data") is None
    cached = untrained(expert_directory(tmp_path / "cache"))
    assert some(find_expert(tmp_path / "data")).directory == cached
    here = untrained(expert_directory(tmp_path / "data"), seed=1)
    assert some(find_expert(tmp_path / "data")).directory == here
    assert some(find_expert(tmp_path / "data", cached)).directory == cached
    assert load_expert(untrained(tmp_path / "twin")).sha256 == load_expert(cached).sha256 != load_expert(here).sha256
    assert load_expert(here).policy.mean(np.ones(29)).shape == (8,)


def test_damaged_experts_are_rejected(tmp_path):
    with pytest.raises(DataError, match="holds no expert"):
        load_expert(tmp_path)
    (tmp_path / "expert.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not a JSON object"):
        load_expert(tmp_path)
    record = json.loads((untrained(tmp_path) / "expert.json").read_text())
    for change in ({"features": ["a"]}, {"sha256": 5}, {"name": None}, {"format": "1"}, {"name": "antball"}):
        (tmp_path / "expert.json").write_text(json.dumps(record | change))
        with pytest.raises(DataError, match="does not describe an expert"):
            load_expert(tmp_path)
    untrained(tmp_path)
    weights = tmp_path / "weights.safetensors"
    with pytest.raises(DataError, match="changed or damaged"):
        load_expert(tmp_path, sha256="0" * 64)
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match="changed or damaged"):
        load_expert(tmp_path)
    first, last = random_layers()
    wrong_bias, flat = (first[0], np.zeros(3, np.float32)), (first[1], first[1])
    for layers in ([], [first, first], [last, first], [wrong_bias, last], [flat]):
        save_expert(tmp_path, layers, {})
        with pytest.raises(DataError, match="no layers, or layers that do not fit"):
            load_expert(tmp_path)
    weights.write_bytes(b"no arrays")
    with pytest.raises(DataError, match="no layers that can be read"):
        load_expert(tmp_path, sha256=sha256_file(weights))


# --- data ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*Box ")
def test_ant_data_is_read_by_ogbench_and_names_its_expert(tmp_path):
    import ogbench

    expert, other = untrained(tmp_path / "expert"), untrained(tmp_path / "other", seed=1)
    name, common = "antmaze-large-navigate-v0", {"rows": 120, "episode_rows": 60, "progress": False}
    made = make_dataset(name, directory=tmp_path / "one", workers=1, expert=expert, **common)
    record = json.loads((tmp_path / "one" / f"{name}.json").read_text())
    assert record["settings"]["experts"] == {"ant": load_expert(expert).sha256}
    assert record["flipped_episodes"] == {"train": 0, "val": 0}
    task = name.replace("-v0", "-singletask-task3-v0")
    loaded: Any = ogbench.make_env_and_datasets(task, dataset_path=str(made.paths["train"]))
    env, train, val = loaded
    assert train["observations"].shape == (118, *env.observation_space.shape)
    assert val["actions"].shape == (59, 8)
    env.close()

    again = {"directory": tmp_path / "one", **common}
    assert make_dataset(name, expert=expert, **again).reused
    assert make_dataset(name, **again).reused  # any expert will do unless one is given
    with pytest.raises(DataError, match="experts is"):
        make_dataset(name, expert=other, **again)
    with pytest.raises(ConfigError, match="needs no expert"):
        make_dataset("pointmaze-medium-navigate-v0", expert=expert, **again)
