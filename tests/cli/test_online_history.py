"""Online training with a history: what is stored is what the environment showed, and resuming changes nothing."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import fidec
from fidec.envs.exploration import exploration_seed
from fidec.parts import Frames
from fidec.train import dispatch
from fidec.train.run import Preempted
from fidec.train.session import Session
from helpers.own_env import REACH, Reach
from helpers.runs import online_fingerprint, random_columns, stored_rows

OFFLINE, ONLINE = 2, 9  # an episode of six steps, and three of the next
SETTINGS: dict[str, Any] = {"algo": "fql", "env": REACH, "steps": OFFLINE, "online_steps": ONLINE, "history": 2}
SETTINGS |= {"batch_size": 4, "log_interval": 5, "checkpoint_interval": 4, "eval_interval": 0, "quiet": True}
SETTINGS |= {"options": {"hidden": (8,)}}


@pytest.mark.slow
def test_vectors_are_stacked_online_and_a_resumed_run_is_uninterrupted(tmp_path, monkeypatch, compile_cache):
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)
    dataset = fidec.dataset_from_arrays(**random_columns(), action_low=-2, action_high=2)
    fidec.fit(dataset, tmp_path / "whole", **SETTINGS)
    rows = stored_rows(tmp_path / "whole")
    assert rows.batch.observations.shape == (ONLINE, 6)
    assert rows.batch.next_observations.shape == (ONLINE, 3)  # the newest alone
    for episode in np.unique(rows.episodes):
        env, frames = Reach(), Frames(2)
        seen = frames(env.reset(seed=exploration_seed(0, int(episode)))[0])
        for row in np.flatnonzero(rows.episodes == episode):
            np.testing.assert_array_equal(rows.batch.observations[row], seen.astype(np.float32))
            space: Any = env.action_space
            low, high = space.low, space.high
            following = env.step(low + (rows.batch.actions[row] + 1) * 0.5 * (high - low))[0]
            np.testing.assert_array_equal(rows.batch.next_observations[row], following.astype(np.float32))
            seen = frames(following)

    def show(self, reached):
        if reached >= OFFLINE + 5:  # in the middle of an episode
            monkeypatch.setattr(Session, "show", lambda self, reached: None)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Session, "show", show)
    with pytest.raises(Preempted):
        fidec.fit(dataset, tmp_path / "stopped", **SETTINGS)
    fidec.resume(tmp_path / "stopped", dataset, quiet=True)
    total = OFFLINE + ONLINE
    assert online_fingerprint(tmp_path / "stopped", total) == online_fingerprint(tmp_path / "whole", total)
