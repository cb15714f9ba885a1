"""The numbers of an evaluation, from its episodes."""

from __future__ import annotations

import json

import pytest

from fidec.envs.evaluation import Episode, Status, compare, reported, summarise
from fidec.stats import wilson


def episode(index, success, return_=0.0, status: Status = "ok"):
    return Episode(index, 100 + index, 0, status, return_, 10, success)


def test_summary_counts_failures_and_does_not_average_them():
    good = [episode(k, float(k < 3), return_=-10.0 * k) for k in range(10)]
    bad = [episode(10, None, -1e9, "crashed"), episode(11, None, -1e9, "hung"), episode(12, None, 0, "hung")]
    summary = summarise([*good, *bad])
    assert (summary["n"], summary["n_failed"]) == (10, 3)
    assert summary["failed"] == {"crashed": 1, "hung": 2}
    assert summary["success"] == pytest.approx(0.3)
    assert (summary["success_low"], summary["success_high"]) == wilson(3, 10)
    assert summary["return"] == pytest.approx(-45.0)
    assert summary["return_low"] < -45.0 < summary["return_high"]
    assert summary["length"] == 10


@pytest.mark.parametrize("episodes", [[], [episode(0, None, 1.0)], [episode(0, None, 1.0, "hung")]])
def test_summary_of_next_to_nothing_is_valid_json(episodes):
    summary = summarise(episodes)
    assert summary["success"] is None
    assert summary["return_low"] is None
    json.loads(json.dumps(summary, allow_nan=False))


def test_compare_matches_episodes_by_index_and_seed():
    before = [episode(k, 0.0) for k in range(6)]
    after = [episode(k, float(k % 2)) for k in range(5)] + [episode(5, None, 0.0, "crashed")]
    gain = compare(before, after[::-1])
    assert (gain.mean, gain.n) == (pytest.approx(0.4), 5)
    assert gain.of == "success"
    with pytest.raises(ValueError, match="different episodes"):
        compare(before, after[:3])


def test_without_success_the_returns_are_compared():
    before = [episode(k, None, 1.0 * k) for k in range(4)]
    after = [episode(k, None, 2.0 + k) for k in range(3)] + [episode(3, None, 0.0, "hung")]
    gain = compare(before, after)
    assert (gain.of, gain.mean, gain.n) == ("return", 2.0, 3)


def test_an_episode_without_a_report_of_success_is_a_failure_if_another_reports_one():
    only_when_reached = [episode(0, 1.0), episode(1, None), episode(2, None), episode(3, None, 0.0, "crashed")]
    assert summarise(only_when_reached)["success"] == pytest.approx(1 / 3)
    never = [episode(k, None) for k in range(4)]
    gain = compare(never, only_when_reached)
    assert (gain.of, gain.mean, gain.n) == ("success", pytest.approx(1 / 3), 3)
    assert reported([None, None]) == reported([]) == []
