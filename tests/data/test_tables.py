"""CSV and Parquet tables with a mapping file, robomimic files and LeRobot data sets.

robomimic and LeRobot files are written here in their documented layouts, without their packages.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fidec.cli import main
from fidec.data import check_dataset, dataset_from_arrays, load_dataset
from fidec.data.sources.table import suggest
from fidec.data.statistics import data_statistics
from fidec.data.transforms import delayed
from fidec.errors import ConfigError, DataError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[tables]'")
parquet = pytest.importorskip("pyarrow.parquet")

STEPS, EPISODES = 5, 4
ROWS = STEPS * EPISODES
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.normal(size=(ROWS, 11)).astype(np.float32)
ACTIONS = RNG.uniform(-2, 2, (ROWS, 2)).astype(np.float32)
REWARDS = RNG.normal(size=ROWS).astype(np.float32)
EPISODE = np.arange(ROWS) // STEPS
SUCCESS = (np.arange(ROWS) % STEPS == STEPS - 1) & (EPISODE % 2 == 0)
MAPPING = """
files = ["log.{suffix}"]
observation = ["q*"]
action = ["u0", "u1"]
episode = "ep"
time = "t"
action_low = [-2.0]
action_high = [2.0]
"""


def columns() -> dict[str, np.ndarray]:
    """The order of the observation is that of the file, q10 before q2, and not that of the names."""
    found: dict[str, np.ndarray] = {f"q{10 - i}": OBSERVATIONS[:, i] for i in range(11)}
    found |= {"u1": ACTIONS[:, 1], "u0": ACTIONS[:, 0], "r": REWARDS, "ep": EPISODE, "t": np.arange(ROWS) * 0.1}
    return found | {"ok": SUCCESS, "note": np.array(["a"] * ROWS)}


def write(directory: Path, suffix: str = "csv", mapping: str = MAPPING, **changes: Any) -> str:
    """A table and its mapping file; the source."""
    table = columns() | changes
    path = directory / f"log.{suffix}"
    if suffix == "csv":
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    else:
        parquet.write_table(pa.table(table), path)
    (directory / "columns.toml").write_text(mapping.format(suffix=suffix))
    return f"table:{directory / 'columns.toml'}"


def expected(**how: Any):
    rewards = how.pop("rewards", REWARDS)
    return dataset_from_arrays(
        OBSERVATIONS, ACTIONS, rewards, episodes=EPISODE, action_low=-2.0, action_high=2.0, **how
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_is_the_data_set_of_its_columns(tmp_path, suffix):
    """Columns of a pattern are in the order of the file."""
    found = load_dataset(write(tmp_path, suffix, MAPPING + 'reward = "r"\n'))
    assert found.sha256 == expected().sha256
    assert found.info["observation_names"] == [f"q{10 - i}" for i in range(11)]
    assert found.info["rewards"] == "column r"


def test_success_gives_sparse_rewards_and_ends_the_task(tmp_path):
    found = load_dataset(write(tmp_path, "parquet", MAPPING + 'success = "ok"\n'))
    rewards = np.where(SUCCESS, 0.0, -1.0)
    assert found.sha256 == expected(rewards=rewards, terminals=SUCCESS).sha256
    assert not found.masks[found.terminals].all()
    assert "0 at the end of an episode with success" in check_dataset(found).to_text()


def test_what_columns_are_called_is_shown_and_recorded_with_the_policy(tmp_path):
    mapping = MAPPING.replace('"u0", "u1"', '"u*", "aim"').replace('"q*"', '"q10", "q3", "flat"')
    more = {"aim": ACTIONS.tolist(), "flat": np.zeros(ROWS)}
    found = load_dataset(write(tmp_path, "parquet", mapping + 'action_kind = "delta"\n', **more))
    observations, actions = ["q10", "q3", "flat"], ["u1", "u0", "aim[0]", "aim[1]"]
    text = check_dataset(found).to_text()
    assert ", ".join(observations) in text
    assert ", ".join(actions) in text
    assert "dimensions of the observations are constant (flat)" in text
    recorded = data_statistics([found])
    assert (recorded["actions"]["names"], recorded["actions"]["kind"]) == (actions, "delta")
    assert recorded["observations"]["names"] == observations
    pending = [f"pending[{number}]" for number in range(4)]
    assert data_statistics([delayed(found, 1)])["observations"]["names"] == [*observations, *pending]
    with pytest.raises(ConfigError, match="'relative'; expected absolute or delta"):
        load_dataset(write(tmp_path, "csv", MAPPING + 'action_kind = "relative"\n'))


def test_a_function_gives_rewards_episode_by_episode(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "import numpy as np\n"
        "def reward(columns):\n    return np.where(np.arange(len(columns['q10'])) == 0, columns['q10'], 0.0)\n"
        "def short(columns):\n    return columns['q0'][:-1]\n"
        "value = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_dataset(write(tmp_path, "csv", MAPPING + 'reward_function = "my_rewards:reward"\n'))
    rewards = np.where(np.arange(ROWS) % STEPS == 0, OBSERVATIONS[:, 0], 0.0)
    assert found.sha256 == expected(rewards=rewards).sha256
    assert found.info["rewards"] == "by my_rewards:reward"
    for name, words in (("short", r"expected numbers of shape \(5,\)"), ("value", "not a function"), ("no", "no")):
        with pytest.raises((ConfigError, DataError), match=words):
            load_dataset(write(tmp_path, "csv", MAPPING + f'reward_function = "my_rewards:{name}"\n'))


def test_without_rewards_only_methods_that_need_none_train(tmp_path):
    assert not load_dataset(write(tmp_path)).has_rewards


def test_each_file_is_an_episode_if_none_is_named(tmp_path):
    mapping = MAPPING.replace('episode = "ep"\n', "").replace("log.{suffix}", "log*.{suffix}")
    source = write(tmp_path, "csv", mapping)
    table = columns()
    for number in (2, 10):
        with open(tmp_path / f"log{number}.csv", "w", newline="") as file:
            csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])
    found = load_dataset(source)
    assert found.info["files"] == len(found.episodes) == 3


@pytest.mark.parametrize("episode", ["", 'episode = "ep"\n'])
def test_files_of_one_name_in_several_folders_are_not_merged(tmp_path, episode):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.csv").write_text("ep,q,u\n0,1,0\n0,2,0\n0,3,0\n")
    mapping = f'files = ["*/log.csv"]\nobservation = ["q"]\naction = ["u"]\n{episode}'
    (tmp_path / "columns.toml").write_text(mapping)
    found = load_dataset(f"table:{tmp_path / 'columns.toml'}")
    assert found.observations[:, 0].tolist() == [1, 2, 1, 2]
    assert found.next_observations[:, 0].tolist() == [2, 3, 2, 3]


def test_the_first_file_gives_the_order_of_columns_and_all_need_the_same(tmp_path):
    for number, (header, row) in enumerate([("q_b,q_a,u", "1,2,0"), ("u,q_a,q_b", "0,4,3")]):
        (tmp_path / f"log{number}.csv").write_text(f"{header}\n{row}\n{row}\n")
    (tmp_path / "columns.toml").write_text('files = ["log*.csv"]\nobservation = ["q_*"]\naction = ["u"]\n')
    found = load_dataset(f"table:{tmp_path / 'columns.toml'}")
    assert found.info["observation_names"] == ["q_b", "q_a"]
    assert found.observations.tolist() == [[1, 2], [3, 4]]
    for header, lacks in (
        ("q_a,u", "log2.csv: has no column 'q_b'"),
        ("q_a,q_b,u,q_c", "log0.csv: has no column 'q_c'"),
    ):
        (tmp_path / "log2.csv").write_text(f"{header}\n" + 2 * (",".join("0" for _ in header.split(",")) + "\n"))
        with pytest.raises(DataError, match=rf"{lacks}.*all files need the same"):
            load_dataset(f"table:{tmp_path / 'columns.toml'}")


@pytest.mark.parametrize(
    ("mapping", "changes", "words"),
    [
        ("observation = []", {}, "observation is empty"),
        ('observation = ["x*"]', {}, r"there is no column for `observation` 'x\*'"),
        ('observation = ["q*", "u0"]', {}, "'u0' of log.csv is both an observation and an action"),
        ('observation = ["note"]', {}, "key 'note' is text"),
        ('rewards = "r"', {}, "there is no key in the file 'rewards'; did you mean reward"),
        ('reward = "r"\nsuccess = "ok"', {}, "rewards have one source"),
        ('files = ["../secret.csv"]', {}, "expected a path below the directory"),
        ('files = ["/etc/passwd"]', {}, "expected a path below the directory"),
        ('files = ["none*.csv"]', {}, "no file is"),
        ('files = ["columns.toml"]', {}, r"the suffix is .toml, expected .csv or .parquet"),
        ("", {"t": np.zeros(ROWS)}, "key 't', row 1: 0.0 is not later than 0.0"),
        ("", {"u0": np.full(ROWS, 9.0)}, "lies outside the given bounds"),
        ("", {"q3": np.append(np.zeros(ROWS - 1), np.nan)}, "row 19"),
        ('terminal = "r"', {}, "expected 0 or 1"),
        ("episode = 3", {}, "episode"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, mapping, changes, words):
    key = mapping.partition(" = ")[0]
    kept = [line for line in MAPPING.splitlines() if not line.startswith(f"{key} =")]
    source = write(tmp_path, "csv", "\n".join([*kept, mapping]), **changes)
    with pytest.raises((ConfigError, DataError), match=words):
        load_dataset(source)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(200) + b"PAR1", b"not a table at all"])
def test_a_damaged_table_is_refused_in_words(tmp_path, content):
    source = write(tmp_path, "parquet")
    (tmp_path / "log.parquet").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a table"):
        load_dataset(source)


def test_a_table_with_missing_values_or_double_columns_is_refused(tmp_path):
    values = columns()
    source = write(tmp_path, "parquet")
    holes = pa.array([None, *values["q3"][1:].tolist()], pa.float32())
    parquet.write_table(pa.table(values | {"q3": holes}), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="key 'q3', row 0: the value is missing"):
        load_dataset(source)
    arrays = [pa.array(value) for value in values.values()]
    parquet.write_table(pa.table([*arrays, arrays[0]], names=[*values, "u0"]), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="'u0' is there more than once"):
        load_dataset(source)


def test_a_table_that_declares_more_than_memory_is_not_read(tmp_path, monkeypatch):
    source = write(tmp_path, "parquet")
    monkeypatch.setattr("fidec.data.tables.free_host_memory", lambda: 1000.0)
    with pytest.raises(DataError, match="declares 20 rows of 18 columns"):
        load_dataset(source)


def test_lists_of_equal_length_are_vectors(tmp_path):
    mapping = MAPPING.replace('"q*"', '"state"').replace('"u0", "u1"', '"action"')
    source = write(tmp_path, "parquet", mapping, state=OBSERVATIONS.tolist(), action=ACTIONS.tolist())
    assert load_dataset(source).sha256 == expected(rewards=None).sha256
    for longer in (1, 2):  # with 2 the mean length is a whole number
        ragged = [[0.0] * (1 + longer * (row % 2)) for row in range(ROWS)]
        with pytest.raises(DataError, match=f"lists of 1 to {1 + longer} numbers"):
            load_dataset(write(tmp_path, "parquet", mapping, state=ragged, action=ACTIONS.tolist()))


def test_vectors_have_one_length_in_all_files(tmp_path):
    for number, (a, b) in enumerate([(1, 2), (2, 1)]):  # together as many numbers
        table = {"a": [[0.0] * a] * 3, "b": [[0.0] * b] * 3, "u": [0.0] * 3}
        parquet.write_table(pa.table(table), tmp_path / f"log{number}.parquet")
    (tmp_path / "columns.toml").write_text('files = ["*.parquet"]\nobservation = ["a", "b"]\naction = ["u"]\n')
    with pytest.raises(DataError, match=r"log1.parquet: key 'a' has rows of shape \(2,\)"):
        load_dataset(f"table:{tmp_path / 'columns.toml'}")


def test_a_table_whose_pages_are_damaged_is_refused_in_words(tmp_path):
    source = write(tmp_path, "parquet")
    path = tmp_path / "log.parquet"
    content = bytearray(path.read_bytes())
    content[4:300] = bytes(296)  # the schema at the end of the file is intact
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as a table"):
        load_dataset(source)


def test_a_table_alone_says_how_to_map_it_and_the_proposal_loads(tmp_path, capsys):
    write(tmp_path)
    (tmp_path / "columns.toml").unlink()
    with pytest.raises(DataError, match="fidec data map"):
        load_dataset(str(tmp_path / "log.csv"))
    assert main(["data", "map", str(tmp_path / "log.csv")]) == 0
    text = (tmp_path / "columns.toml").read_text()
    assert capsys.readouterr().out == text
    assert main(["data", "map", str(tmp_path / "log.csv")]) == 2  # it exists
    (tmp_path / "columns.toml").write_text(text + "action_low = [-2.0]\naction_high = [2.0]\n")
    found = load_dataset(f"table:{tmp_path / 'columns.toml'}")
    assert found.info["observation_names"] == [*(f"q{10 - i}" for i in range(11)), "ok"]  # `ok` looks like a sensor
    assert np.array_equal(found.rewards, expected().rewards)


def test_a_proposal_without_actions_says_at_once_what_to_fill_in(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("x,effort,command\n1,2,go\n1,2,go\n")
    assert main(["data", "map", str(tmp_path / "log.csv")]) == 0
    assert "columns.toml: action is empty: fill in its columns" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"columns.toml: action is empty: fill in its columns"):
        load_dataset(f"table:{tmp_path / 'columns.toml'}")


def test_columns_are_proposed_in_the_order_of_the_file_and_only_numbers():
    types = {"q10": "float", "q2": "list<item: float>", "u1": "double", "u0": "int64", "target": "string"}
    types |= {"words": "list<item: string>", "note": "null", "reward": "string", "run": "string"}
    assert suggest(types) == {"observation": ["q10", "q2"], "action": ["u1", "u0"], "episode": ["run"]}


def test_names_are_recognised():
    names = ["observation.state", "action", "next.reward", "episode_index", "timestamp", "next.done", "frame_index"]
    found = suggest(dict.fromkeys(names, "float"))
    assert found == {
        "observation": ["observation.state"],
        "action": ["action"],
        "reward": ["next.reward"],
        "episode": ["episode_index"],
        "time": ["timestamp"],
        "terminal": ["next.done"],
    }


# --- robomimic ------------------------------------------------------------------------------------------------------


def write_robomimic(path: Path, next_obs: bool = True, images: bool = False) -> Path:
    with h5py.File(path, "w") as file:
        for episode in range(EPISODES):
            rows = slice(episode * STEPS, (episode + 1) * STEPS)
            demo = file.create_group(f"data/demo_{episode}")
            for name in ("obs", "next_obs") if next_obs else ("obs",):
                shift = np.roll(OBSERVATIONS, -1, 0) if name == "next_obs" else OBSERVATIONS
                demo[f"{name}/robot0_joint_pos"] = shift[rows, :8]
                demo[f"{name}/object"] = shift[rows, 8:]
                if images:
                    demo[f"{name}/agentview_image"] = np.zeros((STEPS, 4, 4, 3), np.uint8)
            demo["actions"], demo["rewards"] = ACTIONS[rows], REWARDS[rows]
            demo["dones"] = SUCCESS[rows].astype(np.int64)
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
    return path


@pytest.mark.parametrize("next_obs", [True, False])
def test_a_robomimic_file_is_the_data_set_of_its_arrays(tmp_path, next_obs):
    path = write_robomimic(tmp_path / "low_dim.hdf5", next_obs, images=True)
    found = load_dataset(f"robomimic:{path}", action_low=-2, action_high=2)
    joined = np.concatenate([OBSERVATIONS[:, 8:], OBSERVATIONS[:, :8]], axis=1)  # sorted: object, robot0_joint_pos
    following = np.roll(joined, -1, 0) if next_obs else None
    same = dataset_from_arrays(
        joined,
        ACTIONS,
        REWARDS,
        SUCCESS,
        episodes=EPISODE,
        next_observations=following,
        action_low=-2,
        action_high=2,
    )
    assert found.sha256 == same.sha256
    assert found.info["left_out"] == ["agentview_image"]
    assert "not read: agentview_image" in check_dataset(found).to_text()


def test_a_mask_of_robomimic_chooses_demonstrations(tmp_path):
    path = write_robomimic(tmp_path / "low_dim.hdf5")
    found = load_dataset(f"robomimic:{path}#train", action_low=-2, action_high=2)
    assert len(found.episodes) == 2
    with pytest.raises(DataError, match="there is no mask 'trian'; did you mean train"):
        load_dataset(f"robomimic:{path}#trian", action_low=-2, action_high=2)
    with pytest.raises(ConfigError, match="holes=allow is for LeRobot"):
        load_dataset(f"robomimic:{path}#train?holes=allow", action_low=-2, action_high=2)


def test_files_that_are_not_robomimics_are_refused(tmp_path):
    path = tmp_path / "other.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = OBSERVATIONS
    with pytest.raises(DataError, match="has no group `data`"):
        load_dataset(f"robomimic:{path}")
    with h5py.File(write_robomimic(tmp_path / "states.hdf5"), "a") as file:
        del file["data/demo_0/obs"]
    with pytest.raises(DataError, match="dataset_states_to_obs"):
        load_dataset(f"robomimic:{tmp_path / 'states.hdf5'}")
    with h5py.File(write_robomimic(tmp_path / "short.hdf5"), "a") as file:
        del file["data/demo_3/obs/object"]
        file["data/demo_3/obs/object"] = OBSERVATIONS[:2, 8:]
    with pytest.raises(DataError, match="demo_3/obs/object' has 2 rows for 5 actions"):
        load_dataset(f"robomimic:{tmp_path / 'short.hdf5'}", action_low=-2, action_high=2)


# --- LeRobot --------------------------------------------------------------------------------------------------------


def write_lerobot(root: Path, version: str, success: bool = True) -> Path:
    """Version 3 has all episodes in one file, earlier ones a file for each episode."""
    features = {name: {"dtype": "float32", "shape": [1]} for name in ("observation.state", "action")}
    features |= {"observation.environment_state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]}}
    features |= {"observation.images.top": {"dtype": "video", "shape": [96, 128, 3]}}
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps({"codebase_version": version, "features": features}))
    table = {
        "observation.state": OBSERVATIONS[:, :8].tolist(),
        "observation.environment_state": OBSERVATIONS[:, 8:].tolist(),
        "action": ACTIONS.tolist(),
        "episode_index": EPISODE,
        "frame_index": np.arange(ROWS) % STEPS,
        "next.reward": REWARDS,
    }
    table |= {"next.success": SUCCESS} if success else {}
    whole = pa.table(table)
    places = {"v3.0": ["chunk-000/file-000"]}.get(version, [f"chunk-000/episode_{i:06d}" for i in range(EPISODES)])
    for number, place in enumerate(places):
        path = root / "data" / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(whole if len(places) == 1 else whole.slice(number * STEPS, STEPS), path)
    return root


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("success", [True, False])
def test_a_lerobot_data_set_is_the_data_set_of_its_arrays(tmp_path, version, success):
    root = write_lerobot(tmp_path / "set", version, success)
    found = load_dataset(f"lerobot:{root}", action_low=-2, action_high=2)
    joined = np.concatenate([OBSERVATIONS[:, :8], OBSERVATIONS[:, 8:]], axis=1)
    same = dataset_from_arrays(
        joined, ACTIONS, REWARDS, SUCCESS if success else None, episodes=EPISODE, action_low=-2, action_high=2
    )
    assert found.sha256 == same.sha256
    assert found.info["left_out"] == ["observation.images.top"]
    names = [*(f"state[{number}]" for number in range(8)), *(f"environment_state[{axis}]" for axis in "xyz")]
    assert found.info["observation_names"] == [f"observation.{name}" for name in names]


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ([7], "first in episode 1, which jumps from 1 to 3; 19 frames of total_frames 20"),
        ([5, 6], "episode 1, which begins with 2"),
        ([9], "19 frames of total_frames 20"),
        (range(15, 20), "15 frames of total_frames 20; 3 episodes of total_episodes 4"),
    ],
)
def test_a_lerobot_data_set_with_holes_is_refused_or_cut_there(tmp_path, lost, words):
    root = write_lerobot(tmp_path / "set", "v3.0")
    info, data = root / "meta" / "info.json", root / "data" / "chunk-000" / "file-000.parquet"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"total_frames": ROWS, "total_episodes": EPISODES}))
    kept = np.setdiff1d(np.arange(ROWS), lost)
    table = parquet.read_table(data)
    solved = pa.array(EPISODE == 1)  # already before the hole, which does not end the task
    table = table.set_column(table.schema.get_field_index("next.success"), "next.success", solved)
    parquet.write_table(table, data)
    assert "holes" not in load_dataset(f"lerobot:{root}", action_low=-2, action_high=2).info
    parquet.write_table(table.take(kept), data)
    with pytest.raises(DataError, match=rf"{words}.*add \?holes=allow"):
        load_dataset(f"lerobot:{root}", action_low=-2, action_high=2)
    found = load_dataset(f"lerobot:{root}?holes=allow", action_low=-2, action_high=2)
    cut = np.append(np.diff(kept) > 1, True) | (np.diff(EPISODE[kept], append=-1) != 0)
    last = np.diff(EPISODE[kept], append=-1) != 0
    same = dataset_from_arrays(
        OBSERVATIONS[kept],
        ACTIONS[kept],
        REWARDS[kept],
        (EPISODE[kept] == 1) & last,
        episodes=np.cumsum(np.append(False, cut[:-1])),
        action_low=-2,
        action_high=2,
    )
    assert found.sha256 == same.sha256
    assert words in found.info["holes"]
    assert words in "".join(each.text for each in check_dataset(found).findings if each.severity == "warning")


def test_what_is_no_lerobot_data_set_is_refused(tmp_path):
    with pytest.raises(DataError, match="is no directory; expected a local LeRobotDataset"):
        load_dataset("lerobot:lerobot/pusht")
    root = write_lerobot(tmp_path / "set", "v3.0")
    info = root / "meta" / "info.json"
    good = json.loads(info.read_text())
    for content, words in (
        ("{", "is not the meta data"),
        ("[]", "is not the meta data"),
        (json.dumps(good | {"codebase_version": "v9.0"}), "codebase_version is 'v9.0'; read are"),
        (json.dumps(good | {"features": {"action": {"dtype": "float32"}}}), "has no observation"),
        (json.dumps(good | {"features": {"observation.state": {"dtype": "float32"}}}), "has no action"),
    ):
        info.write_text(content)
        with pytest.raises(DataError, match=words):
            load_dataset(f"lerobot:{root}")
    info.write_text(json.dumps(good))
    (root / "data" / "chunk-000" / "file-000.parquet").unlink()
    with pytest.raises(DataError, match="has no data"):
        load_dataset(f"lerobot:{root}")
