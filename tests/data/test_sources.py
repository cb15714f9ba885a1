"""Every source is read as its own library reads it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fidec.data import load_dataset
from fidec.data.columns import ACTION_LIMIT
from fidec.data.source import SOURCES, absolute_source
from fidec.envs.factory import find_task, make
from fidec.errors import ConfigError, DataError
from fidec.store.files import sha256_file

TASK = "pointmaze-medium-navigate-singletask-task3-v0"


def ogbench_file(folder: Path, name: str = "pointmaze-medium-navigate-v0", **changes) -> Path:
    """Random walks in OGBench's layout: 20 trajectories of 30 states."""
    rng = np.random.default_rng(0)
    qpos = rng.uniform(-2, 22, size=(600, 2)).astype(np.float32)
    arrays = {
        "observations": qpos,
        "actions": rng.uniform(-1, 1, size=(600, 2)).astype(np.float32),
        "terminals": np.arange(600) % 30 == 29,
        "qpos": qpos,
        "qvel": rng.normal(size=(600, 2)).astype(np.float32),
    } | changes
    path = folder / f"{name}.npz"
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_ogbench_is_read_as_ogbench_reads_it(tmp_path, monkeypatch):
    import ogbench

    path = ogbench_file(tmp_path)
    ogbench_file(tmp_path, "pointmaze-medium-navigate-v0-val")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = ogbench.make_env_and_datasets(TASK, dataset_path=str(path))
    env, theirs, _ = loaded
    env.close()
    (tmp_path / "pointmaze-medium-navigate-v0-val.npz").unlink()  # we need no validation file
    np.random.seed(7)
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = load_dataset(TASK, cache_dir=tmp_path)
    assert (np.random.get_state(legacy=False)["state"]["key"] == before).all()
    for key in ("observations", "next_observations", "rewards", "masks"):
        np.testing.assert_array_equal(getattr(ours, key), theirs[key])
        assert getattr(ours, key).dtype == theirs[key].dtype
    np.testing.assert_array_equal(ours.terminals, theirs["terminals"].astype(bool))
    np.testing.assert_array_equal(ours.actions, np.clip(theirs["actions"], -ACTION_LIMIT, ACTION_LIMIT))
    assert 0 < (ours.masks == 0).sum() < ours.size  # the goal was met somewhere, so the labels say something
    assert ours.episodes.tolist() == [[29 * i, 29 * (i + 1)] for i in range(20)]
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path))
    assert load_dataset(f"ogbench:{TASK}").sha256 == ours.sha256
    other = load_dataset(TASK.replace("task3", "task1"))
    assert other.sha256 != ours.sha256


def test_images_drawn_by_an_option_of_older_versions_are_refused(tmp_path):
    path = ogbench_file(tmp_path)
    record = {"made_by": "fidec", "sha256": {"train": sha256_file(path)}, "settings": {"rendering": "fast"}}
    path.with_suffix(".json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"--rendering fast .*fidec data make pointmaze-medium-navigate-v0 --overw"):
        load_dataset(f"ogbench:{TASK}", cache_dir=tmp_path)


def test_ogbenchs_own_directory_is_searched_last(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "empty"))
    (tmp_path / ".ogbench" / "data").mkdir(parents=True)
    path = ogbench_file(tmp_path / ".ogbench" / "data")
    assert load_dataset(TASK).info["file"] == str(path)
    with pytest.raises(DataError, match="not found in"):  # an explicit directory is the only one
        load_dataset(TASK, cache_dir=tmp_path / "empty")


def test_a_missing_ogbench_file_is_never_downloaded(tmp_path, monkeypatch):
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", lambda *a, **k: pytest.fail("tried to download"))
    with pytest.raises(DataError) as caught:
        load_dataset("ogbench:cube-single-play-singletask-v0", cache_dir=tmp_path)
    for words in (
        "cube-single-play-v0.npz",
        str(tmp_path),
        "fidec data make cube-single-play-v0",
        "fidec data get",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qpos": None}, "'qpos' is missing"),
        ({"qpos": np.zeros((600, 5))}, r"'qpos' has rows of shape \(5,\); .* has \(2,\)"),
        ({"qpos": np.full((600, 2), np.nan)}, "'qpos', row 0, column 0"),
        ({"observations": np.zeros((600, 7))}, r"'observations' has rows of shape \(7,\)"),
        ({"terminals": np.zeros(600)}, "'terminals', row 599: the last row must be 1"),
        ({"terminals": np.ones(600)}, "every trajectory is empty"),
        ({"actions": np.full((600, 2), 3.0)}, "'actions', row 0, dimension 0: 3.0 lies outside"),
        ({"actions": np.zeros((600, 3))}, r"'actions' has rows of shape \(3,\)"),
        ({"actions": np.zeros((599, 2))}, "'actions' has 599 rows"),
    ],
)
def test_broken_ogbench_files(tmp_path, changes, message):
    ogbench_file(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        load_dataset(TASK, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("cube-single-play-v0", "Did you mean 'cube-single-play-singletask-v0'"),
        ("cube-singel-play-singletask-v0", "no OGBench task .*did you mean cube-single-play-singletask-v0"),
        ("cube-single-play-singletask-task9-v0", "no OGBench task"),
        ("nothing:some/set", f"no data source 'nothing'.*{', '.join(SOURCES.names())}"),
        ("npz:", "names no data set; expected a NumPy archive, such as npz:"),
        ("something", "not a data source. Expected SCHEME:WHAT, such as .*d4rl:door-human-v1"),
        ("door-humans-v1", "did you mean door-human-v1"),
        ("minari:../../etc", "not a Minari id"),
    ],
)
def test_sources_that_do_not_exist_are_rejected(source, message):
    with pytest.raises(ConfigError, match=message):
        load_dataset(source)


def test_minari_is_read_as_minari_reads_it(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    import gymnasium

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = minari.DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=25))
        env.action_space.seed(0)
        for episode in range(4):
            env.reset(seed=episode)
            truncated, steps = False, 0
            while not truncated and steps < 10 + 10 * episode:  # some are cut by hand, some by the limit
                _, _, _, truncated, _ = env.step(env.action_space.sample())
                steps += 1
        env.create_dataset(dataset_id="pendulum/random-v0", algorithm_name="random")
        env.close()
        theirs = list(minari.load_dataset("pendulum/random-v0", download=False).iterate_episodes())
    ours = load_dataset("minari:pendulum/random-v0")
    assert ours.action_low == (-2.0,)
    assert ours.action_high == (2.0,)
    assert [len(e.actions) for e in theirs] == (ours.episodes[:, 1] - ours.episodes[:, 0]).tolist()
    assert sum(bool(e.truncations[-1]) for e in theirs) >= 1
    for (start, stop), episode in zip(ours.episodes, theirs, strict=True):
        np.testing.assert_array_equal(ours.observations[start:stop], episode.observations[:-1])
        np.testing.assert_array_equal(ours.next_observations[start:stop], episode.observations[1:])
        np.testing.assert_allclose(ours.rewards[start:stop], episode.rewards, rtol=1e-6)
        user = ours.spec.to_user_units(ours.actions[start:stop])
        np.testing.assert_allclose(user, episode.actions, atol=1e-4)
        np.testing.assert_array_equal(ours.masks[start:stop], 1.0 - episode.terminations)
    assert np.flatnonzero(ours.terminals).tolist() == (ours.episodes[:, 1] - 1).tolist()
    env: Any = make("minari:pendulum/random-v0")  # the environment that the data set declares
    assert env.observation_space.shape == ours.observations.shape[1:]
    assert (env.action_space.low, env.action_space.high) == (ours.action_low, ours.action_high)
    assert find_task("minari:pendulum/random-v0").horizon == 25


def d4rl_columns(rows: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    step = np.arange(rows)
    return {
        "observations": rng.normal(size=(rows, 5)),
        "actions": rng.uniform(-1, 1, size=(rows, 3)),
        "rewards": rng.normal(size=rows),
        "terminals": np.isin(step, [7, 25]),
        "timeouts": np.isin(step, [15, 25, 33]),
    }


def qlearning_dataset(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """D4RL's published rule: every row but the last; the row at a timeout is left out."""
    rows = [i for i in range(len(data["rewards"]) - 1) if not data["timeouts"][i]]
    return {
        "observations": data["observations"][rows].astype(np.float32),
        "next_observations": data["observations"][np.array(rows) + 1].astype(np.float32),
        "actions": data["actions"][rows].astype(np.float32),
        "rewards": data["rewards"][rows].astype(np.float32),
        "terminals": data["terminals"][rows],
    }


def test_d4rl_layout_follows_d4rls_rule(tmp_path):
    data = d4rl_columns()
    data["timeouts"][25] = False
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, value in data.items():
            file[key] = value
        file["infos/qpos"] = np.zeros((40, 2))
        file["metadata/policy"] = np.bytes_("ignored")
    ours, theirs = load_dataset(f"hdf5:{tmp_path / 'a.hdf5'}"), qlearning_dataset(data)
    for key in ("observations", "rewards"):
        np.testing.assert_array_equal(getattr(ours, key), theirs[key])
    np.testing.assert_allclose(ours.actions, theirs["actions"], atol=1.1e-5)
    np.testing.assert_array_equal(ours.masks, 1.0 - theirs["terminals"])
    # D4RL's next state of a terminal row is the first of another episode; ours stays inside.
    alive = ours.masks == 1
    np.testing.assert_array_equal(ours.next_observations[alive], theirs["next_observations"][alive])
    np.testing.assert_array_equal(ours.next_observations[~alive], ours.observations[~alive])


def test_d4rl_layout_with_stored_next_observations_keeps_every_row(tmp_path):
    data = d4rl_columns() | {"next_observations": np.random.default_rng(4).normal(size=(40, 5))}
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for key, value in data.items():
            file[key] = value
    ours = load_dataset(f"hdf5:{tmp_path / 'a.hdf5'}")
    assert ours.size == 40
    assert np.flatnonzero(ours.terminals).tolist() == [7, 15, 25, 33, 39]
    assert np.flatnonzero(ours.masks == 0).tolist() == [7, 25]  # both terminal and timed out: a task end


def test_bounds_in_a_file_or_by_argument(tmp_path):
    data: dict[str, Any] = d4rl_columns() | {"actions": np.full((40, 3), 2.5)}
    data["timeouts"][25] = False
    np.savez(tmp_path / "plain.npz", **data)
    np.savez(tmp_path / "bounds.npz", **data, action_low=-5.0, action_high=[5.0, 5.0, 5.0])
    with pytest.raises(DataError, match="action_low"):
        load_dataset(f"npz:{tmp_path / 'plain.npz'}")
    own = load_dataset(f"npz:{tmp_path / 'bounds.npz'}")
    given = load_dataset(f"npz:{tmp_path / 'plain.npz'}", action_low=-5, action_high=5)
    assert own.sha256 == given.sha256
    np.testing.assert_allclose(own.actions, 0.5)
    with pytest.raises(ConfigError, match="has its own action bounds"):
        load_dataset(TASK, action_low=-1, action_high=1)


def test_a_package_adds_a_source_with_one_file_and_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from fidec.data import dataset_from_arrays\n"
        "from fidec.data.source import DataSource\n"
        "def load(what, *, cache_dir=None, action_low=None, action_high=None):\n"
        "    if what == 'bad':\n"
        "        return 'text'\n"
        "    zeros = np.zeros((3, 1))\n"
        "    bounds = {'action_low': action_low, 'action_high': action_high}\n"
        "    return dataset_from_arrays(zeros, zeros, zeros, name=f'{what} in {cache_dir}', **bounds)\n"
        "SOURCE = DataSource('three zeros', 'mine:abc', load, claims=lambda text: text.endswith('.mine'))\n"
    )
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (tmp_path / "mine-1.0.dist-info" / "entry_points.txt").write_text("[fidec.sources]\nmine = mine:SOURCE\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_dataset("mine:abc", cache_dir="here", action_low=-2, action_high=2)
    assert (loaded.name, loaded.action_low) == ("abc in here", (-2.0,))
    assert load_dataset("abc.mine").name == "abc.mine in None"
    with pytest.raises(ConfigError, match="returned str"):
        load_dataset("mine:bad")
    with pytest.raises(ConfigError, match=r"no data source 'yours'.*mine"):
        load_dataset("yours:abc")


def test_a_relative_path_is_made_absolute_by_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_source("npz:a.npz") == absolute_source("a.npz") == f"npz:{tmp_path / 'a.npz'}"
    assert absolute_source("hdf5:b.h5") == absolute_source("b.h5") == f"hdf5:{tmp_path / 'b.h5'}"
    assert absolute_source("minari:a/b-v0") == "minari:a/b-v0"
    assert absolute_source(TASK) == f"ogbench:{TASK}"
    assert absolute_source("door-human-v1") == "d4rl:door-human-v1"
