"""D4RL's antmaze, its scores, and its data files, each against what D4RL publishes."""

from __future__ import annotations

from importlib.metadata import version

import gymnasium
import h5py
import numpy as np
import pytest
from fidec.envs.d4rl import tasks
from fidec.envs.scores import REFERENCE, normalise

from fidec.cli.evaluate import print_comparison
from fidec.data import load_dataset
from fidec.envs.antmaze import MAPS, cell_xy, find_cell
from fidec.envs.make import find_task, make
from fidec.errors import ConfigError, DataError
from fidec.quiet import quiet
from fidec.train.evaluate import score

NOOP = np.zeros(8, np.float32)


@pytest.fixture(scope="module")
def umaze():
    env = make("antmaze-umaze-v2")
    yield env
    env.close()


# D4RL's kwargs: 4.0 * (column - 1), 4.0 * (row - 1) of the cell marked G.
@pytest.mark.parametrize(("maze", "goal"), [("umaze", (0, 8)), ("medium", (20, 20)), ("large", (32, 24))])
def test_start_and_goal_lie_where_d4rl_puts_them(maze, goal):
    cells = "".join(MAPS[maze])
    assert (cells.count("S"), cells.count("G"), set(cells) - set("SG# ")) == (1, 1, set())
    assert find_cell(maze, "S") == (1, 1)
    assert tuple(cell_xy(maze, (1, 1))) == (0, 0)
    assert tuple(cell_xy(maze, find_cell(maze, "G"))) == goal


@pytest.mark.parametrize("maze", ["medium", "large"])
def test_walls_and_frame_are_ogbenchs(maze):
    """So that a position in D4RL's data, in OGBench's and in this environment is the same place."""
    import ogbench  # noqa: F401 - registers its environments

    with quiet():
        theirs = gymnasium.make(f"antmaze-{maze}-v0", disable_env_checker=True).unwrapped
    ours = make(f"antmaze-{maze}-play-v2").unwrapped
    walls = [
        [g for g in map(m.geom, range(m.ngeom)) if g.name.startswith("block_")] for m in (ours.model, theirs.model)
    ]
    assert [w.name for w in walls[0]] == [w.name for w in walls[1]]
    for mine, other in zip(*walls, strict=True):
        for key in ("pos", "size", "friction", "contype", "conaffinity", "solref", "margin"):
            np.testing.assert_array_equal(getattr(mine, key), getattr(other, key))
    assert ours.dt == pytest.approx(0.1)
    np.testing.assert_array_equal(ours.model.actuator_gear[:, 0], 30)


def test_starts_and_goals_are_drawn_by_d4rls_rule(umaze):
    drawn = [(umaze.reset(seed=seed)[0], umaze.get_wrapper_attr("goal")) for seed in range(200)]
    observations, goals = (np.stack(column) for column in zip(*drawn, strict=True))
    assert observations.shape == (200, 29)
    assert np.abs(observations[:, :2]).max() <= 0.1  # the origin, and gym's noise of 0.1 on every joint
    assert np.abs(observations[:, :2]).max() > 0.09
    assert np.abs(observations[:, 2] - 0.75).max() <= 0.1
    assert np.std(observations[:, 15:]) == pytest.approx(0.1, rel=0.05)
    offsets = goals - (0, 8)  # U(0, 1) + U(0, 0.5): mean 0.75, variance (1 + 1/4) / 12
    assert offsets.min() > 0
    assert 1.3 < offsets.max() < 1.5
    np.testing.assert_allclose(offsets.mean(axis=0), 0.75, atol=0.07)
    np.testing.assert_allclose(offsets.var(axis=0), 1.25 / 12, rtol=0.25)


@pytest.mark.parametrize(("distance", "reached"), [(0.45, True), (0.6, False)])
def test_the_goal_pays_one_and_ends_the_episode(umaze, distance, reached):
    umaze.reset(seed=0)
    base = umaze.unwrapped
    base.data.qvel[:] = 0
    base.set_xy(umaze.get_wrapper_attr("goal") - (distance, 0))
    _, reward, terminated, truncated, info = umaze.step(NOOP)
    assert (reward, terminated, truncated, info["success"]) == (float(reached), reached, False, float(reached))


def test_an_episode_is_cut_at_700_steps(umaze):
    umaze.reset(seed=0)
    steps = [umaze.step(NOOP)[1:4] for _ in range(700)]
    assert steps == [(0.0, False, False)] * 699 + [(0.0, False, True)]


def test_a_seed_determines_the_episode_and_no_global_generator_is_used(umaze):
    def play(seed):
        rng, seen = np.random.default_rng(1), [umaze.reset(seed=seed)[0]]
        seen += [umaze.step(rng.uniform(-1, 1, 8))[0] for _ in range(10)]
        return np.stack([*seen, np.pad(umaze.get_wrapper_attr("goal"), (0, 27))])

    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first, other, again = play(3), play(4), play(3)
    assert (np.random.get_state()[1] == before).all()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], other[0])


def test_ids_prefix_note_and_horizons():
    assert len(tasks()) == 18
    info = find_task("d4rl:antmaze-large-diverse-v2")
    assert info == find_task("antmaze-large-diverse-v2")
    assert (info.suite, info.family, info.data, info.horizon) == ("d4rl", "antmaze-large", "diverse", 1000)
    assert info.dataset == info.id
    assert info.note == f"D4RL rules restored on MuJoCo {version('mujoco')}; not the original simulator"
    assert [find_task(f"{name}-human-v1").horizon for name in ("pen", "door", "hammer", "relocate")] == [
        100,
        200,
        200,
        200,
    ]
    with pytest.raises(ConfigError, match="Did you mean door-human-v1"):
        find_task("door-humans-v1")
    for wrong in ("ogbench:door-human-v1", "d4rl:cube-single-play-singletask-v0", "gym:door-human-v1"):
        with pytest.raises(ConfigError, match=f"unknown task '{wrong}'"):
            find_task(wrong)


def test_scores_are_d4rls():
    for task_id, info in tasks().items():
        low, high = REFERENCE[info.family.partition("-")[0]]
        assert normalise(task_id, low) == pytest.approx(0)
        assert normalise(f"d4rl:{task_id}", high) == pytest.approx(100)
        assert normalise(task_id, (low + high) / 2) == pytest.approx(50)
    assert normalise("pen-human-v1", 3076.8331017826877) == pytest.approx(100)
    assert normalise("door-human-v1", 0.0) == pytest.approx(1.924115)
    for other in ("cube-single-play-singletask-v0", "antmaze-large-navigate-singletask-v0", "door-human-v0"):
        assert normalise(other, 1.0) is None


def test_what_an_evaluation_calls_the_score():
    summary = {"success": 0.25, "return": 0.5}
    assert score("antmaze-umaze-v2", summary) == 50.0
    assert score("cube-single-play-singletask-v0", summary) == 25.0
    assert score("minari:a/b-v0", {"success": None, "return": 7.0}) == 7.0
    assert score("door-human-v1", {"success": None, "return": None}) is None


def test_eval_prints_the_note_and_the_normalised_score(capsys):
    summary = dict.fromkeys(("success", "success_low", "success_high", "return_low", "return_high"), 0.5)
    summary |= {"return": 1412.0, "score": 50.0, "length": 200, "n": 4, "n_failed": 0}
    result = {"task": "door-human-v1", "step": 10, "seed": 0, "refined": summary}
    print_comparison(result)
    assert "normalised" not in capsys.readouterr().out
    print_comparison(result | {"note": find_task("door-human-v1").note})
    printed = capsys.readouterr().out
    assert "not the original simulator" in printed
    assert printed.splitlines()[-1].split()[-1] == "50.0"


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


def test_actions_beyond_the_bounds_are_the_ones_on_them(tmp_path):
    d4rl_file(tmp_path / "pen-human-v1.hdf5", 45, 24, actions=np.full((60, 24), -1.7, np.float32))
    np.testing.assert_allclose(load_dataset("d4rl:pen-human-v1", cache_dir=tmp_path).actions, -1, atol=1.1e-5)


def test_d4rls_own_directory_is_looked_into_last(tmp_path, monkeypatch):
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


def test_ids_that_d4rl_does_not_have_here():
    with pytest.raises(ConfigError, match=r"Close ones: door-human-v1.*hdf5:PATH"):
        load_dataset("d4rl:door-humans-v1")
    with pytest.raises(ConfigError, match="has its own action bounds"):
        load_dataset("d4rl:door-human-v1", action_low=-1, action_high=1)
