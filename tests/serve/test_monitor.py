"""The monitor: what lies near the data, what lies far from it, and policies without statistics."""

from __future__ import annotations

import numpy as np
import pytest

from fidec.errors import CheckpointError
from fidec.serve.monitor import WINDOW, make_monitor
from helpers.serving import make_policy, talk


@pytest.fixture(scope="module")
def policy():
    return make_policy()


def watch(policy):
    said = []
    monitor, text = make_monitor(policy, said.append)
    assert text == "on"
    assert monitor is not None
    return monitor, said


def rows(count: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32)


MIDDLE = np.full((1, 1, 2), (0.1, 0.5), np.float32)


def test_observations_like_the_data_are_near(policy):
    monitor, said = watch(policy)
    assert monitor.figures() == {"requests": 0}
    for part in np.split(rows(WINDOW), 8):
        monitor(part, np.repeat(MIDDLE, len(part), axis=0))
    found = monitor.figures()
    assert found["requests"] == WINDOW
    assert found["observation_distance_p50"] == pytest.approx(
        policy.info["data_statistics"]["distance"]["p50"], abs=0.2
    )
    assert found["observations_far"] < 0.1
    assert found["action_dimensions_outside"] == found["action_dimensions_at_bound"] == 0
    assert said == []


def test_a_window_far_from_the_data_is_said_once(policy):
    monitor, said = watch(policy)
    for _ in range(3):
        monitor(rows(WINDOW, 50.0), np.repeat(MIDDLE, WINDOW, axis=0))
    assert monitor.figures()["observation_dimensions_outside"] > 0.8
    assert monitor.figures()["observations_far"] == 1
    (text,) = said
    assert text.startswith(f"warning: 100% of the last {WINDOW} observations lie far from the training data")
    monitor(rows(WINDOW), np.repeat(MIDDLE, WINDOW, axis=0))
    assert said[1:] == [f"the last {WINDOW} observations lie near the training data again"]


def test_a_few_requests_are_no_window(policy):
    monitor, said = watch(policy)
    monitor(rows(WINDOW - 1, 50.0), np.repeat(MIDDLE, WINDOW - 1, axis=0))
    assert said == []


def test_actions_at_a_bound_and_outside_the_data(policy):
    monitor, _ = watch(policy)
    low, high = policy.spec.bounds
    chunk = np.array([[low, MIDDLE[0, 0]], [high, high], [MIDDLE[0, 0]] * 2, [MIDDLE[0, 0]] * 2], np.float32)
    monitor(rows(4), chunk)
    assert monitor.figures()["action_dimensions_at_bound"] == pytest.approx(3 / 8)
    monitor, _ = watch(policy)
    monitor(rows(2), np.array([[[3.0, 0.5]], [[0.0, 0.5]]], np.float32))
    assert monitor.figures()["action_dimensions_outside"] == 0.25


def test_a_policy_without_statistics_is_served_without_the_monitor(served, monkeypatch):
    monkeypatch.delitem(served.policy.info, "data_statistics")

    async def test(client):
        assert "the policy has no statistics of its data" in client.server.facts["monitor"]
        assert (await client.post({"state": [0, 0, 0]}))[0] == 200
        assert "fidec_monitor_on 0" in (await client.get("/metrics"))[1]
        assert "data_statistics" not in (await client.get("/metadata"))[1]

    talk(served, test)


@pytest.mark.parametrize("broken", [{}, {"observations": {"mean": [1]}}, None, "std"])
def test_statistics_that_do_not_fit_are_refused(policy, broken, monkeypatch):
    good = policy.info["data_statistics"]
    if broken == "std":
        broken = good | {"observations": good["observations"] | {"std": [0.0, 1.0, 1.0]}}
    monkeypatch.setitem(policy.info, "data_statistics", broken)
    with pytest.raises(CheckpointError, match=r"info\.data_statistics"):
        make_monitor(policy, print)
