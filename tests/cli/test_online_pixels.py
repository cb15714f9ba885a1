"""Online training on images: what is drawn is what the environment showed, and stopping changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fidec
from fidec import rng
from fidec.data import batches
from fidec.envs.exploration import exploration_seed
from fidec.errors import ConfigError
from fidec.ops import images
from fidec.train import dispatch
from fidec.train.config import OnlineConfig
from fidec.train.run import Preempted
from fidec.train.session import Session
from helpers import ring_of
from helpers.room_env import ROOM, SIZE, Room, room_columns
from helpers.runs import online_fingerprint, read_rows, stored_rows

OFFLINE, ONLINE, SEED = 2, 13, 2  # an episode of ten steps, and three of the next
SETTINGS: dict[str, Any] = {
    "env": ROOM,
    "steps": OFFLINE,
    "online_steps": ONLINE,
    "seed": SEED,
    "batch_size": 4,
    "log_interval": 5,
    "checkpoint_interval": 6,
    "eval_interval": 0,
    "options": {"hidden": (8,)},
    "quiet": True,
}


@pytest.fixture(scope="module")
def dataset():
    return fidec.dataset_from_arrays(**room_columns(4), name="room")


@pytest.fixture(autouse=True)
def room(monkeypatch, compile_cache):
    """Check signals after every round, so that a stop may come anywhere."""
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """whole(algo): a run that was left alone."""
    made: dict[str, Path] = {}

    def run(algo: str) -> Path:
        if algo not in made:
            made[algo] = fidec.fit(dataset, tmp_path_factory.mktemp(algo) / "run", algo=algo, **SETTINGS).directory
        return made[algo]

    return run


@pytest.mark.slow  # vectors are stopped and resumed in the normal tier
@pytest.mark.parametrize("algo", ["fql", "fidec"])
def test_stopped_and_resumed_is_uninterrupted(dataset, whole, tmp_path, monkeypatch, algo):
    expected, out = whole(algo), tmp_path / "run"

    def show(self, reached):
        if reached >= OFFLINE + 7:  # in the middle of an episode: its frames are stacked anew
            monkeypatch.setattr(Session, "show", lambda self, reached: None)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Session, "show", show)
    with pytest.raises(Preempted):
        fidec.fit(dataset, out, algo=algo, **SETTINGS)
    fidec.resume(out, dataset, quiet=True)
    assert online_fingerprint(out, OFFLINE + ONLINE) == online_fingerprint(expected, OFFLINE + ONLINE)
    last = read_rows(out / "train.jsonl")[-1]
    assert all(np.isfinite(value) for value in last.values())
    assert (last["online/steps"], last["exploration/length"]) == (ONLINE, 10)


@pytest.mark.slow
def test_what_is_drawn_is_what_the_environment_showed(dataset, whole):
    """Each episode is played again by hand, from its seed and its recorded actions."""
    rows = stored_rows(whole("fql"))
    assert rows.batch.observations.shape == (ONLINE, SIZE, SIZE, 9)
    assert rows.batch.next_observations.shape == (ONLINE, SIZE, SIZE, 3)  # the newest frame alone
    shown, following = [], []
    for episode in np.unique(rows.episodes):
        mine = np.flatnonzero(rows.episodes == episode)
        env = Room()
        frames = [env.reset(seed=exploration_seed(SEED, int(episode)))[0]]
        for row in mine:
            frame, reward, _, _, _ = env.step(rows.batch.actions[row])
            frames.append(frame)
            assert rows.batch.rewards[row] == np.float32(reward)
        at = np.arange(len(frames))
        stacks = images.stack(np.stack(frames), at, np.zeros_like(at), 3)
        shown.append(stacks[:-1])
        following.append(stacks[1:])
    shown, following = np.concatenate(shown), np.concatenate(following)
    np.testing.assert_array_equal(rows.batch.observations, shown)

    # As the updates draw them, from both kinds of rows. The rewards of the online ones are made their numbers.
    online = ring_of(rows.batch._replace(rewards=np.arange(1, ONLINE + 1, dtype=np.float32)), ONLINE)
    joined = batches.OfflineOnline(batches.device_source(dataset, batches.Sampling(3)), online)
    settings = batches.Sampling(frame_stack=3, augment=0.0, capacity=1000)
    batch = batches.sample_batch(joined, rng.stream(0, "batch"), 64, settings)
    fresh = np.asarray(batch.rewards) > 0  # in the room they are never positive
    assert 5 < fresh.sum() < 60
    number = np.asarray(batch.rewards)[fresh].astype(int) - 1
    np.testing.assert_array_equal(batch.observations[fresh], shown[number])
    np.testing.assert_array_equal(batch.next_observations[fresh], following[number])


def test_rlpd_does_not_take_images(dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"rlpd takes flat observations, not of shape \(16, 16, 9\)"):
        fidec.fit(dataset, tmp_path / "run", algo="rlpd", **{**SETTINGS, "online": OnlineConfig()})
    assert not (tmp_path / "run").exists()
