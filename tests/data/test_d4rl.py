"""D4RL's data files, against what D4RL publishes."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from fidec.data import load_dataset
from fidec.errors import ConfigError, DataError


def d4rl_file(path, dim=29, width=8, rows=60, **changes):
    rng = np.random.default_rng(0)
    step = np.arange(rows)
    arrays = {
        "observations": rng.normal(size=(rows, dim)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(rows, width)).astype(np.float32),
        "rewards": (step % 7 == 3).astype(np.float32),
        "terminals": np.isin(step, [10, 25, 30]),
        "timeouts": np.isin(step, [15, 30, 44]),
    } | changes
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            if value is not None:
                file[key] = value
        file["infos/goal"] = np.zeros((rows, 2))
    return arrays


def published_rules(data, antmaze):
    """D4RL's `qlearning_dataset` and FQL's relabelling, row by row as they are written there."""
    rows = [i for i in range(len(data["rewards"]) - 1) if not data["timeouts"][i]]
    out = {key: [] for key in ("observations", "next_observations", "actions", "rewards", "masks", "terminals")}
    for position, i in enumerate(rows):
        done = bool(data["terminals"][i])
        last = position == len(rows) - 1
        jump = last or np.linalg.norm(data["observations"][rows[position + 1]] - data["observations"][i + 1]) > 1e-6
        out["observations"].append(data["observations"][i])
        out["next_observations"].append(data["observations"][i + 1])
        out["actions"].append(data["actions"][i])
        out["rewards"].append(data["rewards"][i] - (1.0 if antmaze else 0.0))
        out["masks"].append(1.0 - done)
        out["terminals"].append(jump or (done and not antmaze))
    return {key: np.array(value) for key, value in out.items()}


@pytest.mark.parametrize(
    ("task_id", "dims", "name"),
    [
        ("antmaze-umaze-v2", (29, 8), "Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5"),
        ("antmaze-medium-diverse-v2", (29, 8), "antmaze-medium-diverse-v2.hdf5"),
        ("door-human-v1", (39, 28), "door-human-v1.hdf5"),
    ],
)
def test_data_follows_the_published_rules(tmp_path, task_id, dims, name):
    data = d4rl_file(tmp_path / name, *dims)
    ours = load_dataset(f"d4rl:{task_id}", cache_dir=tmp_path)
    theirs = published_rules(data, antmaze="antmaze" in task_id)
    for key in ("observations", "next_observations", "rewards", "masks", "terminals"):
        np.testing.assert_array_equal(getattr(ours, key), theirs[key], err_msg=key)
    np.testing.assert_allclose(ours.actions, theirs["actions"], atol=1.1e-5)
    assert ours.size == 60 - 1 - 3
    assert (ours.name, ours.source) == (task_id, f"d4rl:{task_id}")
    assert ours.info["reward_shift"] == (-1.0 if "antmaze" in task_id else 0.0)
    assert load_dataset(task_id, cache_dir=tmp_path).sha256 == ours.sha256  # a bare id


def test_actions_outside_the_bounds_are_clipped(tmp_path):
    d4rl_file(tmp_path / "pen-human-v1.hdf5", 45, 24, actions=np.full((60, 24), -1.7, np.float32))
    np.testing.assert_allclose(load_dataset("d4rl:pen-human-v1", cache_dir=tmp_path).actions, -1, atol=1.1e-5)


def test_d4rls_own_directory_is_searched_last(tmp_path, monkeypatch):
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "theirs"))
    with pytest.raises(DataError) as caught:
        load_dataset("d4rl:antmaze-large-play-v2")
    for words in (
        "antmaze-large-play-v2.hdf5",
        "Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5",
        str(tmp_path / "ours"),
        str(tmp_path / "theirs"),
        "fidec data get antmaze-large-play-v2",
        "--data hdf5:PATH",
    ):
        assert words in str(caught.value)
    d4rl_file(tmp_path / "theirs" / "door-human-v1.hdf5", 39, 28)
    assert load_dataset("d4rl:door-human-v1").info["file"].startswith(str(tmp_path / "theirs"))
    with pytest.raises(DataError, match="not found in"):  # an explicit directory is the only one
        load_dataset("d4rl:door-human-v1", cache_dir=tmp_path / "ours")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeouts": None}, "'timeouts' is missing"),
        ({"dim": 39}, r"'observations' has rows of shape \(39,\); antmaze-umaze-v2 has \(29,\): another task's data"),
        ({"actions": np.zeros((60, 3), np.float32)}, r"'actions' has rows of shape \(3,\)"),
        ({"actions": np.full((60, 8), np.nan, np.float32)}, "'actions', row 0"),
        ({"timeouts": np.ones(60)}, "every row is cut off"),
        ({"rewards": np.zeros(59)}, "'rewards' has 59 rows"),
    ],
)
def test_broken_files(tmp_path, changes, message):
    d4rl_file(tmp_path / "antmaze-umaze-v2.hdf5", **changes)
    with pytest.raises(DataError, match=message):
        load_dataset("d4rl:antmaze-umaze-v2", cache_dir=tmp_path)


def test_unknown_d4rl_ids_are_rejected():
    with pytest.raises(ConfigError, match=r"did you mean door-human-v1\?.*hdf5:PATH"):
        load_dataset("d4rl:door-humans-v1")
    with pytest.raises(ConfigError, match="has its own action bounds"):
        load_dataset("d4rl:door-human-v1", action_low=-1, action_high=1)
