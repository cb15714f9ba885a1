"""The environment that a Minari data set declares: made if it is a known one, and nothing of the file is run."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest

import fidec
from fidec.envs.factory import factory_of, find_task, make
from fidec.errors import ConfigError, DataError, EnvError
from helpers import some
from helpers.runs import random_columns


@pytest.fixture
def declare(tmp_path, monkeypatch):
    """Write a data set's metadata with an environment in it, and return the task's id."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def write(spec=None, **metadata):
        folder = tmp_path / "a" / "b-v0" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        if spec is not None:
            hostile = {"entry_point": "os:abort", "additional_wrappers": []}  # never looked at
            metadata["env_spec"] = json.dumps(hostile | spec)
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return "minari:a/b-v0"

    return write


def test_a_known_environment_is_gymnasiums_own(declare):
    task = declare({"id": "Pendulum-v1", "max_episode_steps": 7, "kwargs": {"render_mode": "human"}})
    info = find_task(task)
    assert (info.id, info.family, info.env, info.horizon) == (task, "minari", "Pendulum-v1", 7)
    assert (info.dataset, info.note, info.visual) == ("a/b-v0", "", False)
    env, same = make(task), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(env.reset(seed=3)[0], same.reset(seed=3)[0])
    cuts = [env.step(np.zeros(1, np.float32))[3] for _ in range(7)]
    assert cuts == [False] * 6 + [True]
    assert env.render_mode is None


def test_a_recorded_declaration_needs_no_data_and_is_checked_again(declare, tmp_path, monkeypatch):
    task = declare({"id": "Pendulum-v1", "max_episode_steps": 7})
    recorded = some(factory_of(task)).declaration
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    factory = some(factory_of(task, declaration=recorded))
    assert (factory.name, factory.declaration) == (task, recorded)
    env = factory.function()()
    assert env.spec is not None
    assert (env.spec.id, env.spec.max_episode_steps) == ("Pendulum-v1", 7)
    with pytest.raises(DataError, match=r"not found: .* Get it with `minari download a/b-v0`"):
        factory_of(task)
    for wrong, words in ((recorded.replace("Pendulum", "os:Evil"), "only these"), ("[]", "cannot be read")):
        with pytest.raises(EnvError, match=words):
            factory_of(task, declaration=wrong)


@pytest.mark.slow
def test_a_policy_is_evaluated_without_the_data(declare, tiny, compile_cache, tmp_path, monkeypatch):
    task = declare({"id": "Pendulum-v1", "max_episode_steps": 7})
    columns = random_columns(40)
    dataset = fidec.dataset_from_arrays(
        **columns | {"actions": columns["actions"][:, :1]}, action_low=[-2.0], action_high=[2.0]
    )
    fidec.fit(dataset, tmp_path / "run", algo="tiny", task=task, steps=2, batch_size=8, eval_interval=0, quiet=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "elsewhere"))
    for place in ("run", "run/policy"):
        found = fidec.evaluate(tmp_path / place, episodes=1, envs=1)
        assert (found["environment"], found["refined"]["length"]) == (task, 7)


def test_the_environment_for_evaluation_comes_first_and_plain_options_are_passed_on(declare):
    spec = {"id": "Pendulum-v1", "max_episode_steps": 9, "kwargs": {}}
    other = {"id": "Ant-v5", "max_episode_steps": None, "kwargs": {"include_cfrc_ext_in_observation": False}}
    task = declare(spec, eval_env_spec=json.dumps(other))
    assert find_task(task).horizon == 1000  # the registry's
    assert make(task).observation_space.shape == (27,)


def test_dict_observations_are_flattened_as_the_data_is(declare):
    pytest.importorskip("gymnasium_robotics")
    cells = [[1, 1, 1, 1], [1, "r", "g", 1], [1, 1, 1, 1]]
    task = declare(
        {"id": "PointMaze_UMaze-v3", "max_episode_steps": 300, "kwargs": {"maze_map": cells, "reward_type": "dense"}}
    )
    env = make(task)
    observation, _ = env.reset(seed=0)
    inner: Any = env.unwrapped
    parts = inner.reset(seed=0)[0]
    np.testing.assert_array_equal(observation, np.concatenate([parts[key] for key in sorted(parts)]))
    assert inner.maze.maze_map == cells
    assert find_task(declare({"id": "AdroitHandDoor-v1", "max_episode_steps": 200})).env == "AdroitHandDoor-v1"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"id": "EvilEnv-v0"},
            r"'EvilEnv-v0'; only these .*AdroitHand.*AntMaze_\*.*PointMaze.*FrankaKitchen.*MuJoCo",
        ),
        ({"id": "os:Pendulum-v1"}, "'os:Pendulum-v1'; only these"),  # gymnasium would import os
        ({"id": ["Pendulum-v1"]}, "only these"),
        ({"id": "Hopper-v5", "kwargs": {"xml_file": "/etc/passwd"}}, "xml_file='/etc/passwd'; only plain values of"),
        ({"id": "Hopper-v5", "kwargs": {"healthy_reward": "1"}}, "healthy_reward='1'"),
        ({"id": "Hopper-v5", "kwargs": {"healthy_reward": float("nan")}}, "healthy_reward='nan'"),
        ({"id": "Hopper-v5", "kwargs": {"healthy_reward": 10**400}}, "healthy_reward='1000"),
        ({"id": "Hopper-v5", "kwargs": {"reward_type": "evil"}}, "reward_type='evil'"),
        ({"id": "Hopper-v5", "kwargs": {"maze_map": [[1, "<x>"]]}}, "maze_map="),
        ({"id": "Hopper-v5", "kwargs": {"maze_map": [[1] * 65]}}, "maze_map="),
        ({"id": "Hopper-v5", "kwargs": {"tasks_to_complete": ["rm"]}}, "tasks_to_complete="),
        ({"id": "Hopper-v5", "max_episode_steps": 10**9}, "max_episode_steps is '1000000000'"),
        ({"id": "Hopper-v5", "additional_wrappers": [{"entry_point": "os:abort"}]}, r"1 wrapper\(s\)"),
        ({"id": "Hopper-v99"}, "the installed gymnasium has no Hopper-v99; it has .*Hopper-v5"),
        ({"kwargs": {}}, r"cannot be read \(KeyError\)"),
        ({"id": "Hopper-v5", "kwargs": 3}, r"cannot be read \(TypeError\)"),
    ],
)
def test_what_is_not_known_is_refused(declare, spec, message):
    with pytest.raises(EnvError, match=message):
        make(declare(spec))


def test_without_a_declaration_or_a_data_set(declare):
    with pytest.raises(EnvError, match="declares no environment; name a --task or an --env"):
        find_task(declare())
    with pytest.raises(EnvError, match="cannot be read"):
        find_task(declare(env_spec="[]"))
    with pytest.raises(DataError, match="Minari data set 'no/such-v0' not found"):
        find_task("minari:no/such-v0")
    with pytest.raises(ConfigError, match="not a Minari id"):
        find_task("minari:../../etc")
