"""Runs on images and runs on two data sets, from the files to the policies."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fidec
from fidec.data import batches, disk_array
from fidec.envs.evaluation import EnvPool, summarise
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, EnvError, RunError
from fidec.ops import images
from fidec.train import dispatch, loop
from fidec.train.evaluation import Evaluator, PolicyEvaluation
from fidec.types import Spec
from helpers import some
from helpers.room_env import ROOM, SIZE, Room, room_columns
from helpers.runs import fingerprint, random_columns, read_rows

STEPS = 12
SMALL = {
    "algo": "bc",  # the quickest to compile
    "steps": STEPS,
    "batch_size": 4,
    "seed": 2,
    "log_interval": 4,
    "checkpoint_interval": 4,
    "options": {"hidden": (8,)},
    "quiet": True,
}


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    path = tmp_path_factory.mktemp("room") / "room.npz"
    np.savez(path, **room_columns())
    return path


@pytest.fixture(scope="module", autouse=True)
def short_chunks():
    """Batches are drawn in chunks of 5 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "AHEAD_STEPS", 5)
        yield


@pytest.fixture(scope="module")
def trained(room, tmp_path_factory, compile_cache):
    """A run on images that was not interrupted."""
    out = tmp_path_factory.mktemp("pixels") / "run"
    fidec.fit(f"npz:{room}", out, **SMALL)
    return out


def test_a_run_on_images_leaves_a_policy_for_stacked_frames(trained, room, tmp_path):
    rows = read_rows(trained / "train.jsonl")
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert all(np.isfinite(row["training/loss"]) for row in rows)
    policy = fidec.load_policy(trained)
    assert policy.spec == Spec((SIZE, SIZE, 9), 2, "uint8", frame_stack=3)
    dataset = fidec.load_dataset(f"npz:{room}")
    assert dataset.spec.observation_shape == (SIZE, SIZE, 3)
    observations = np.concatenate([dataset.observations[2:7], dataset.observations[1:6]], -1)
    with pytest.raises(ConfigError, match=r"\(5, 16, 16, 6\); the policy takes \(5, 16, 16, 9\)"):
        policy(observations)
    observations = np.concatenate([dataset.observations[:5], observations], -1)
    actions = policy(observations)
    assert actions.shape == (5, 2)
    assert np.abs(actions).max() <= 1
    policy.save(tmp_path / "copy")
    again = fidec.load_policy(tmp_path / "copy")
    np.testing.assert_array_equal(again(observations), actions)


@pytest.mark.slow
def test_a_run_on_images_resumes_bit_for_bit(trained, room, tmp_path, monkeypatch):
    """It is stopped between two logging steps, and once by an exception."""
    out = tmp_path / "stopped"
    config = {**SMALL, "steps": 7}
    fidec.fit(f"npz:{room}", out, **config)
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 3))
    save = loop.check_finite

    def die(carry):
        save(carry)
        if int(carry.state.step) >= 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "check_finite", die)
        with pytest.raises(KeyboardInterrupt):
            fidec.resume(out, steps=STEPS, quiet=True)
    fidec.resume(out, quiet=True)
    state = f"checkpoints/{STEPS:08d}/state.safetensors"
    found, expected = fingerprint(out, STEPS), fingerprint(trained, STEPS)
    policy = [name for name in expected if name.startswith("policy/")]
    assert policy
    assert [found[name] for name in (state, *policy)] == [expected[name] for name in (state, *policy)]
    rows = [row for row in read_rows(out / "train.jsonl") if row["step"] != 7]
    assert rows == read_rows(trained / "train.jsonl")


@pytest.mark.slow
def test_a_run_beyond_the_memory_limit_is_the_same_run(trained, room, tmp_path, monkeypatch, capsys):
    """Its frames stay in their file and are read from there. It is stopped in the middle of a chunk."""
    monkeypatch.setattr(disk_array, "MAPPED_BYTES", 0)
    assert fidec.load_dataset(f"npz:{room}").mapped
    out = tmp_path / "fed"
    fidec.fit(f"npz:{room}", out, **{**SMALL, "steps": 7, "memory_limit": 0.0})
    assert "more than the memory limit: its rows stay in their file" in capsys.readouterr().err
    fidec.resume(out, steps=STEPS, quiet=True)
    found, expected = fingerprint(out, STEPS), fingerprint(trained, STEPS)
    same = [name for name in expected if name.startswith(("checkpoints/", "policy/"))]
    assert len(same) >= 2
    assert [found[name] for name in same] == [expected[name] for name in same]


def test_evaluation_shows_the_policy_what_the_data_would(trained):
    spec = fidec.load_policy(trained).spec
    seen: list[np.ndarray] = []

    def act(observations, episodes, steps):
        seen.append(observations[0])
        return np.full((1, 2), 0.7, np.float32)

    with EnvPool(some(factory_of(env=ROOM)).function(spec), 1) as pool:
        (episode,) = pool.run(act, 1, seed=3)
    env, frames = Room(), []
    frames.append(env.reset(seed=episode.seed)[0])
    for _ in range(9):
        frames.append(env.step(np.full(2, 0.7, np.float32))[0])
    frames, rows = np.stack(frames), np.arange(10)
    np.testing.assert_array_equal(np.stack(seen), images.stack(frames, rows, np.zeros_like(rows), 3))


def test_a_policy_of_images_is_evaluated_in_its_environment(trained):
    assessment = PolicyEvaluation.of(trained, env=ROOM, envs=1)
    result = assessment.evaluate(3)
    rows = result["episodes"]["policy"]
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert [row["length"] for row in rows] == [10] * 3
    assert result["policy"]["n"] == summarise([])["n"] + 3
    with (
        Evaluator(assessment.env, Spec((SIZE, SIZE, 12), 2, "uint8", frame_stack=3), envs=1, episodes=1) as wrong,
        pytest.raises(EnvError, match=r"\(16, 16, 9\).*\(16, 16, 12\).*3 frames stacked"),
    ):
        wrong.start()


PROBE = {"algo": "probe", "steps": 6, "batch_size": 8, "log_interval": 1, "checkpoint_interval": 3, "quiet": True}


def logged(out):
    return [{k.removeprefix("training/"): v for k, v in row.items()} for row in read_rows(out / "train.jsonl")]


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Install the probe method as an entry point."""
    info = tmp_path / "site" / "probe-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fidec.algos]\nprobe = helpers.probe:METHOD\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_augmentation_and_stacking_are_part_of_the_run(probe, room, tmp_path):
    source = f"npz:{room}"
    fidec.fit(source, tmp_path / "run", **PROBE)
    fidec.fit(source, tmp_path / "still", **PROBE, augment=0.0)
    fidec.fit(source, tmp_path / "single", **PROBE, frame_stack=1)
    moved = [
        a["where"] != b["where"] for a, b in zip(logged(tmp_path / "run"), logged(tmp_path / "still"), strict=True)
    ]
    assert True in moved  # half of the batches
    assert False in moved
    assert fidec.load_policy(tmp_path / "run").spec.observation_shape == (SIZE, SIZE, 9)
    assert fidec.load_policy(tmp_path / "single").spec.observation_shape == (SIZE, SIZE, 3)
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (recorded["frame_stack"], recorded["augment"], recorded["buffer"]) == (3, 0.5, None)
    for wrong in ({"frame_stack": 0}, {"augment": 1.5}, {"buffer_fraction": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            fidec.fit(source, tmp_path / "wrong", **{**PROBE, **wrong})
    assert not (tmp_path / "wrong").exists()


@pytest.fixture
def two(tmp_path):
    """An offline data set, and a second one whose rewards are 100."""
    second = {**random_columns(rows=60, seed=1), "rewards": np.full(60, 100.0, np.float32)}
    np.savez(tmp_path / "second.npz", **second)
    return fidec.dataset_from_arrays(**random_columns()), fidec.dataset_from_arrays(**second, name="second")


def test_each_batch_is_half_from_each_data_set(probe, two, tmp_path, monkeypatch):
    dataset, second = two
    fidec.fit(dataset, tmp_path / "alone", **PROBE)
    assert {row["share"] for row in logged(tmp_path / "alone")} == {0.0}
    monkeypatch.chdir(tmp_path)
    fidec.fit(dataset, tmp_path / "run", buffer="npz:second.npz", **PROBE)
    assert {(row["share"], row["first"]) for row in logged(tmp_path / "run")} == {(0.5, 0.0)}
    assert all(row["return"] > 50 for row in logged(tmp_path / "run"))  # (0 + 1000) / 2, in the mean
    fidec.fit(dataset, tmp_path / "quarter", buffer=second, buffer_fraction=0.25, **PROBE)
    assert {row["share"] for row in logged(tmp_path / "quarter")} == {0.25}

    facts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert facts["dataset"]["sha256"] == dataset.sha256
    assert facts["buffer"]["sha256"] == second.sha256
    assert facts["buffer"]["name"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["buffer"] == f"npz:{tmp_path / 'second.npz'}"  # absolute: resumed from anywhere


def test_a_run_on_two_data_sets_resumes_on_the_same_two(probe, two, tmp_path):
    dataset, second = two
    fidec.fit(dataset, tmp_path / "whole", buffer=second, **PROBE)
    fidec.fit(dataset, tmp_path / "run", buffer=second, **{**PROBE, "steps": 3})
    with pytest.raises(RunError, match=r"the buffer of .* was given in Python"):
        fidec.resume(tmp_path / "run", dataset, steps=6, quiet=True)
    with pytest.raises(RunError, match=r"the recorded SHA-256 is .*Restore the data"):
        fidec.resume(tmp_path / "run", dataset, dataset, steps=6, quiet=True)
    fidec.resume(tmp_path / "run", dataset, second, steps=6, quiet=True)
    assert fingerprint(tmp_path / "run", 6) == fingerprint(tmp_path / "whole", 6)

    fidec.fit(dataset, tmp_path / "alone", **{**PROBE, "steps": 3})
    with pytest.raises(RunError, match="trained on one data set"):
        fidec.resume(tmp_path / "alone", dataset, second, steps=6, quiet=True)


def test_data_sets_that_do_not_fit_together_are_an_error(probe, two, tmp_path):
    dataset, _ = two
    columns = random_columns()
    wide = fidec.dataset_from_arrays(**{**columns, "observations": np.zeros((200, 4), np.float32)}, name="wide")
    for other, text in [
        (wide, r"observation shape \(4,\) instead of \(3,\)"),
        (fidec.dataset_from_arrays(**{**columns, "actions": columns["actions"][:, :1]}), "action dim 1 instead of 2"),
        (fidec.dataset_from_arrays(**columns, action_low=-2, action_high=2), "bounds "),
    ]:
        with pytest.raises(ConfigError, match=rf"cannot be mixed: the buffer has {text}"):
            fidec.fit(dataset, tmp_path / "run", buffer=other, **PROBE)
    same = fidec.dataset_from_arrays(**columns, action_low=-1, action_high=1)  # said, but nothing new
    with pytest.raises(ConfigError, match="batch of 1 rows cannot be shared"):
        fidec.fit(dataset, tmp_path / "run", buffer=same, **{**PROBE, "batch_size": 1})
    assert not (tmp_path / "run").exists()


def test_from_the_command_line(probe, two, npz, tmp_path, cli):
    code, _, err = cli(
        *("train", "--algo", "probe", "--data", f"npz:{npz}", "--buffer", "npz:second.npz", "--steps", 3),
        *("--batch-size", 8, "--log-interval", 1, "--buffer-fraction", 0.75, "--out", "run"),
    )
    assert code == 0, err
    assert {row["share"] for row in logged(tmp_path / "run")} == {0.75}
    code, _, err = cli("train", "--resume", "run", "--steps", 4)
    assert code == 0, err
    assert len(logged(tmp_path / "run")) == 4
