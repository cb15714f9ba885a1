"""`python -m benchmarks.trust`: which conditions hold, for scores whose order is known."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks import trust

from fidec.errors import RunError

TASKS = ("one", "two", "three")


def results(nats=80.0, clone=20.0, rival=50.0, kl=1.0):
    """Three tasks, three seeds, 50 episodes a run, of a success in percent."""
    rng = np.random.default_rng(0)

    def runs(percent):
        return {seed: (100.0 * (rng.random(50) < percent / 100)).tolist() for seed in range(3)}

    levels = dict.fromkeys(trust.CLONES, clone) | dict.fromkeys(trust.RIVALS, rival) | {trust.CANDIDATE: nats}
    ratios = {trust.CANDIDATE: dict.fromkeys(range(3), kl)}
    return {task: trust.Results({name: runs(p) for name, p in levels.items()}, ratios) for task in TASKS}


def failing(found):
    return {each.name for each in trust.judge(found) if not each.holds}


def test_a_policy_that_is_better_everywhere_meets_all_conditions():
    assert failing(results()) == set()


def test_each_condition_fails_alone():
    better_clone = results() | {"two": results(nats=80.0, clone=99.0)["two"]}
    assert failing(better_clone) == {"two: not below the better clone"}
    assert "best interquartile mean" in failing(results(rival=95.0))
    assert failing(results(nats=50.0, clone=0.0)) >= {f"P(better than {name}) above 0.75" for name in trust.RIVALS}
    assert failing(results(kl=1.6)) == {f"{task}: audited KL / budget at most 1.5" for task in TASKS}


def test_a_difference_within_chance_is_not_below():
    assert "one: not below the better clone" not in failing(results(nats=50.0, clone=50.0))


def test_results_are_kept_in_a_file_and_judged_without_a_run(tmp_path, capsys):
    path, found = tmp_path / "trust.jsonl", results()
    trust.write_results(path, found)
    assert trust.read_results(path) == found
    conditions = trust.main(["--judge", "--results", str(path), "--figure", str(tmp_path / "trust.png")])
    assert (tmp_path / "trust.png").read_bytes().startswith(b"\x89PNG")
    assert conditions == trust.judge(found)
    assert "P(better than iql)" in capsys.readouterr().out


def test_without_results_there_is_nothing_to_judge(tmp_path):
    with pytest.raises(RunError, match="has no task: run some"):
        trust.main(["--judge", "--results", str(tmp_path / "none.jsonl")])


def test_episodes_are_paired_by_seed():
    gain = trust.paired({0: [0.0, 1.0], 1: [5.0, 5.0]}, {1: [6.0, 6.0], 2: [90.0, 90.0]})
    assert (gain.mean, gain.low, gain.high, gain.n) == (1.0, 1.0, 1.0, 2)
