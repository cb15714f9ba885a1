"""Experts: how they see, act and learn, what is kept of them, and the data that they make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fidec.data.cache import read_sidecar
from fidec.data.sources.ogbench import find_file
from fidec.errors import ConfigError, DataError
from fidec.make import RECIPES, make_dataset
from fidec.make.expert import obtain
from fidec.make.expert.features import FLIPPED_STEPS, flipped, turned, upright
from fidec.make.expert.policy import Policy, layers_of
from fidec.make.expert.recipes import EXPERTS
from fidec.make.expert.store import CHECKPOINT, load_expert, save_expert, write_arrays
from fidec.make.expert.track import Track
from fidec.make.worker import open_world
from fidec.quiet import global_numpy_seed
from fidec.store.files import sha256_file

SIZES = {"ant": (29, 8), "antball": (42, 8), "humanoid": (69, 21)}  # observation and action
TINY = replace(
    EXPERTS["ant"],
    steps=64,
    hidden=(16,),
    batch=8,
    environments=2,
    block=4,
    random_steps=16,
    capacity=40,
    episode_steps=7,
)


def random_layers(name: str, seed: int = 0, hidden: int = 16):
    rng = np.random.default_rng(seed)
    observation, action = SIZES[name]
    shapes = [(observation, hidden), (hidden, 2 * action)]
    return [(rng.normal(0, 0.3, s).astype(np.float32), np.zeros(s[1], np.float32)) for s in shapes]


def untrained(directory: Path, name: str, seed: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_expert(directory, random_layers(name, seed), {"name": name, "features": EXPERTS[name].features, "steps": 0})
    return directory


def policies(*names: str) -> dict[str, Policy]:
    return {name: Policy(random_layers(name), EXPERTS[name].features) for name in names}


# --- seeing and acting --------------------------------------------------------------------------------------


def test_numpy_policy_is_the_jitted_one():
    import jax

    from fidec.algos import rlpd
    from fidec.make.expert.train import _learner
    from fidec.types import Spec

    algorithm = rlpd.make(rlpd.RLPDConfig(hidden=TINY.hidden), Spec((29,), 8))
    state, _ = _learner(TINY, 0, 29, 8).init()
    observations = np.random.default_rng(0).normal(0, 3, (50, 29)).astype(np.float32)
    policy = Policy(layers_of(state.params["actor"]), "plain")
    expected = jax.jit(algorithm.act)(state, observations, jax.random.key(1))
    np.testing.assert_allclose(policy.mean(observations), expected, atol=2e-6)
    assert float(state.params["temperature"]) == pytest.approx(np.log(0.01))

    wide = [(k * 30, b) for k, b in policy.layers]  # log standard deviations beyond their bounds
    draws = Policy(wide, "plain").sample(observations, np.random.default_rng(0))
    assert np.isfinite(draws).all()
    assert np.abs(draws).max() <= 1
    with pytest.raises(ConfigError, match="initial_temperature"):
        rlpd.RLPDConfig(initial_temperature=0.0)


def test_turned_sees_the_same_from_every_direction():
    """The rotation matrix is MuJoCo's; turning the world and the direction together changes nothing."""
    import mujoco

    rng = np.random.default_rng(0)
    observation = rng.normal(size=29)
    observation[27:] = 1.0, 0.0
    seen, matrix = turned(observation), np.empty(9)
    mujoco.mju_quat2Mat(matrix, observation[1:5] / np.linalg.norm(observation[1:5]))
    axes = matrix.reshape(3, 3)
    np.testing.assert_allclose(seen[1:7], np.concatenate([axes[:, 0], axes[:, 2]]), atol=1e-6)
    np.testing.assert_allclose(seen[[0, *range(7, 29)]], observation[[0, *range(5, 27)]], atol=1e-6)
    assert upright(observation[1:5]) == pytest.approx(axes[2, 2])

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


@pytest.mark.parametrize("name", EXPERTS)
def test_tracks_can_be_put_away(name):
    """A fresh environment that takes up the state goes on bit for bit, through a new direction as well."""
    recipe = replace(EXPERTS[name], episode_steps=110)
    first, second = Track(recipe), Track(recipe)
    actions = np.random.default_rng(0).uniform(-1, 1, (20, first.action_dim))
    with global_numpy_seed(0):
        assert first.reset(seed=3).shape == (SIZES[name][0],)
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


# --- learning -----------------------------------------------------------------------------------------------


def test_training_that_was_stopped_goes_on_exactly(tmp_path):
    from fidec.make.expert.train import Trainer

    (tmp_path / "cut").mkdir()
    whole, cut = Trainer(TINY, tmp_path), Trainer(TINY, tmp_path / "cut")
    start = [kernel.copy() for kernel, _ in whole.layers]
    for block in range(8):
        whole.advance()
        if block in (0, 4):  # one stop before the first update, one after it
            for _ in range(block + 1 - cut.blocks):
                cut.advance()
            cut.save()
            cut.advance()  # lost when it is killed
            cut = Trainer(TINY, tmp_path / "cut")
    while cut.steps < TINY.steps:
        cut.advance()
    assert whole.steps == 64
    assert list(whole.returns) == list(cut.returns)
    for old, (kernel, bias), (kernel2, bias2) in zip(start, whole.layers, cut.layers, strict=True):
        assert not np.array_equal(old, kernel)
        assert (kernel.tobytes(), bias.tobytes()) == (kernel2.tobytes(), bias2.tobytes())

    with pytest.raises(DataError, match="batch"):
        Trainer(replace(TINY, batch=9), tmp_path / "cut")
    file = tmp_path / "cut" / json.loads((tmp_path / "cut" / CHECKPOINT).read_text())["file"]
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DataError, match="changed or damaged"):
        Trainer(TINY, tmp_path / "cut")

    checkpoint = tmp_path / "cut" / CHECKPOINT
    facts = json.loads(checkpoint.read_text())
    for change in ({"blocks": None}, {"blocks": "4"}, {"file": 3}, {"sha256": 5}):
        checkpoint.write_text(json.dumps(facts | change))
        with pytest.raises(DataError, match="cannot be read"):
            Trainer(TINY, tmp_path / "cut")
    write_arrays(file, {"walkers/state": np.zeros((1, 3))})
    checkpoint.write_text(json.dumps(facts | {"sha256": sha256_file(file)}))
    with pytest.raises(DataError, match="does not fit this training"):
        Trainer(TINY, tmp_path / "cut")


@pytest.mark.slow
def test_sac_learns_where_to_go():
    """The learner alone, in a world where the reward is how well the action's first entry follows the observation."""
    from fidec.make.expert.train import _learner
    from fidec.types import Batch

    recipe = replace(TINY, hidden=(32,), batch=64, learning_rate=3e-3, environments=8, block=32, capacity=4096)
    learner = _learner(recipe, 0, 1, 1)
    agent, memory = learner.init()
    rng = np.random.default_rng(0)
    for block in range(12):
        s = rng.choice([-1.0, 1.0], (256, 1)).astype(np.float32)
        a = rng.uniform(-1, 1, (256, 1)).astype(np.float32)
        batch = Batch(s, a, (s * a)[:, 0], np.zeros(256, np.float32), s, a)
        agent, memory, _ = learner.learn(agent, memory, batch, block)
    policy = Policy(layers_of(agent.params["actor"]), "plain")
    assert policy.mean(np.array([[1.0], [-1.0]], np.float32))[:, 0] == pytest.approx([1, -1], abs=0.3)


def test_train_expert_reports_and_is_kept(tmp_path, monkeypatch):
    expert = obtain.train_expert(TINY, tmp_path, progress=False, report_episodes=1)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "expert.json", "weights.safetensors"}
    record = json.loads((tmp_path / "expert.json").read_text())
    assert (record["name"], record["steps"], record["recipe"]["batch"]) == ("ant", 64, 8)
    assert record["report"]["open"]["steps"] == 7
    assert record["report"]["open"]["distance"] >= abs(record["report"]["open"]["return"])
    assert record["report"]["maze"]["data"] == "antmaze-large-navigate-v0"
    assert obtain.find(["ant"], tmp_path, [tmp_path])["ant"].sha256 == expert.sha256 == record["sha256"]

    def refuse(recipe, directory, seed):
        raise RuntimeError("trained again")

    monkeypatch.setattr("fidec.make.expert.train.Trainer", refuse)  # what another process finished is taken
    assert obtain.train_expert(TINY, tmp_path, progress=False).sha256 == expert.sha256
    assert obtain.train_expert(replace(TINY, steps=8), tmp_path, progress=False).sha256 == expert.sha256
    for other, seed in ((replace(TINY, steps=72), 0), (replace(TINY, batch=9), 0), (TINY, 1)):
        with pytest.raises(RuntimeError, match="trained again"):
            obtain.train_expert(other, tmp_path, seed=seed, progress=False)


# --- keeping ------------------------------------------------------------------------------------------------


def test_experts_are_checked_before_use(tmp_path):
    path = untrained(tmp_path / "experts" / "ant", "ant")
    expert = load_expert(path)
    assert expert.policy.mean(np.ones(29)).shape == (8,)
    assert load_expert(untrained(tmp_path / "twin", "ant")).sha256 == expert.sha256
    assert load_expert(untrained(tmp_path / "other", "ant", seed=1)).sha256 != expert.sha256
    assert obtain.find(["ant"], tmp_path)["ant"].directory == path
    assert obtain.find(["ant"], tmp_path, [tmp_path / "other"])["ant"].directory == tmp_path / "other"
    with pytest.raises(ConfigError, match="no use for the expert 'ant'"):
        obtain.find([], tmp_path, [path])
    with pytest.raises(DataError, match="'antball' is needed"):
        load_expert(path, "antball")
    with pytest.raises(DataError, match="changed or damaged"):
        load_expert(path, sha256="0" * 64)
    with pytest.raises(DataError, match="holds no expert"):
        load_expert(tmp_path)
    weights = path / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match="changed or damaged"):
        load_expert(path)


@pytest.mark.parametrize(
    "change", [{"features": ["a"]}, {"features": {}}, {"sha256": 5}, {"name": None}, {"format": "1"}]
)
def test_a_record_of_other_types_is_refused(tmp_path, change):
    record = json.loads((untrained(tmp_path, "ant") / "expert.json").read_text())
    (tmp_path / "expert.json").write_text(json.dumps(record | change))
    with pytest.raises(DataError, match="not an expert that this version"):
        load_expert(tmp_path)


def test_weights_that_are_no_network_are_refused(tmp_path):
    (tmp_path / "expert.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="no JSON object"):
        load_expert(tmp_path)
    first, last = random_layers("ant")
    for layers in (
        [],
        [first, first],
        [last, first],
        [(first[0], np.zeros(3, np.float32)), last],
        [(first[1], first[1])],
    ):
        save_expert(tmp_path, layers, {"name": "ant", "features": "plain"})
        with pytest.raises(DataError, match="no layers, or layers that do not fit"):
            load_expert(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"no arrays")
    with pytest.raises(DataError, match="no arrays that can be read"):
        load_expert(tmp_path, sha256=sha256_file(tmp_path / "weights.safetensors"))


def test_days_are_only_spent_when_asked_to(tmp_path, monkeypatch):
    monkeypatch.setattr(obtain, "seconds_per_step", lambda recipe: 0.02)
    trained = []
    monkeypatch.setattr(obtain, "train_expert", lambda recipe, path, progress: trained.append(recipe.name))
    with pytest.raises(ConfigError, match=r"40,000,000 steps at the 50 steps/s measured here, about 9 days.*--train"):
        make_dataset("humanoidmaze-large-navigate-v0", 10, directory=tmp_path)
    with pytest.raises(ConfigError, match=r"'antball'.*12,000,000 steps"):  # before the ant's training starts
        make_dataset("antsoccer-arena-navigate-v0", 10, directory=tmp_path)
    assert trained == []
    obtain.train_missing(["ant", "antball"], {}, tmp_path, allow_days=True)
    assert trained == ["ant", "antball"]


# --- the data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["antmaze-medium-navigate-v0", "humanoidmaze-medium-navigate-v0"])
def test_navigate_is_ogbench_with_the_expert(name):
    from fidec.make.navigate import _cells, pick
    from fidec.make.world import open_env, seed_generators

    recipe = replace(RECIPES[name], episode_rows=60)
    experts = policies(*recipe.experts)
    world = open_world(recipe, experts)
    world.episode(5, "train", 0)
    made = world.episode(5, "train", 1)

    env = open_env(recipe.env_id)
    env_seed = seed_generators(5, "train", 1, 0)
    env.action_space.seed(env_seed)
    cells, corners = _cells(env.maze_map)
    start, goal = pick(cells), pick(corners)
    ob, _ = env.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})
    for t in range(recipe.episode_rows):
        subgoal, _ = env.get_oracle_subgoal(env.get_xy(), env.cur_goal_xy)
        direction = subgoal - env.get_xy()
        direction = direction / (np.linalg.norm(direction) + 1e-6)
        action = experts[recipe.experts[0]].mean(np.concatenate([ob[2:], direction]))
        action = np.clip(action + np.random.normal(0, 0.2, action.shape), -1, 1)
        assert np.float32(ob).tobytes() == made["observations"][t].tobytes()
        assert np.float32(action).tobytes() == made["actions"][t].tobytes()
        ob, *_ = env.step(action)


@pytest.mark.parametrize("name", ["antsoccer-arena-navigate-v0", "antsoccer-medium-navigate-v0"])
def test_soccer_episodes(name):
    recipe = replace(RECIPES[name], episode_rows=160)
    world = open_world(recipe, policies("ant", "antball"))
    first = world.episode(3, "train", 0)
    world.episode(3, "train", 1)
    again = world.episode(3, "train", 0)
    assert all(first[key].tobytes() == again[key].tobytes() for key in first)
    assert {key: array.shape[1:] for key, array in first.items()} == {
        "observations": (42,),
        "actions": (8,),
        "terminals": (),
        "qpos": (22,),
        "qvel": (20,),
    }


@pytest.mark.filterwarnings("ignore:.*Box ")
def test_ant_data_is_ogbenchs_and_names_its_expert(tmp_path):
    import ogbench

    expert, other = untrained(tmp_path / "expert", "ant"), untrained(tmp_path / "other", "ant", seed=1)
    name, made = "antmaze-large-navigate-v0", {}
    for workers in (1, 2):
        made[workers] = make_dataset(
            name,
            120,
            directory=tmp_path / f"{workers}",
            workers=workers,
            experts=[expert],
            episode_rows=60,
            progress=False,
        )
    assert made[1].sha256 == made[2].sha256
    record = json.loads((tmp_path / "1" / f"{name}.json").read_text())
    assert record["settings"]["experts"] == {"ant": load_expert(expert).sha256}
    assert record["flipped_episodes"] == {"train": 0, "val": 0}
    for task in range(1, 6):
        task_id = name.replace("-v0", f"-singletask-task{task}-v0")
        env, train, val = ogbench.make_env_and_datasets(task_id, dataset_path=str(made[1].paths["train"]))
        assert train["observations"].shape == (118, 29)
        assert val["actions"].shape == (59, 8)
        assert train["observations"].shape[1:] == env.observation_space.shape
        env.close()

    again = {"rows": 120, "directory": tmp_path / "1", "episode_rows": 60, "progress": False}
    assert make_dataset(name, experts=[expert], **again).reused
    assert make_dataset(name, **again).reused  # the expert is gone: what is there is good enough
    with pytest.raises(DataError, match="experts is"):
        make_dataset(name, experts=[other], **again)


def test_missing_data_is_only_offered_to_be_made_if_it_can_be(tmp_path):
    for name, makes in (("antmaze-large-navigate-v0", True), ("antmaze-large-stitch-v0", False)):
        with pytest.raises(DataError, match=f"`fidec data get {name}`") as caught:
            find_file(name, tmp_path)
        assert (f"`fidec data make {name} --rows 100000`" in str(caught.value)) is makes


@pytest.mark.parametrize("side", ["x.json", "x.npz.json"])
def test_a_data_record_with_other_settings_than_an_object_is_refused(tmp_path, side):
    (tmp_path / side).write_text(json.dumps({"made_by": "me", "sha256": {"train": "0"}, "settings": "fast"}))
    with pytest.raises(DataError, match="'settings' is no JSON object"):
        read_sidecar(tmp_path / "x.npz")


def test_workers_with_experts_never_import_jax(tmp_path):
    code = (
        "import sys; from pathlib import Path; from dataclasses import replace;"
        "from fidec.make.worker import open_world, _load_policies; from fidec.make import RECIPES;"
        "from fidec.make.expert.store import load_expert;"
        f"directory = {str(untrained(tmp_path, 'ant'))!r};"
        "where = {'ant': {'directory': directory, 'sha256': load_expert(Path(directory)).sha256}};"
        "recipe = replace(RECIPES['antmaze-medium-navigate-v0'], episode_rows=3);"
        "open_world(recipe, _load_policies(where)).episode(0, 'train', 0);"
        "print('jax' in sys.modules, 'torch' in sys.modules)"
    )
    environment = os.environ | {"MUJOCO_GL": "disable"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == ["False", "False"], result.stderr
