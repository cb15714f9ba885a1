"""The benchmark of evaluation measures every figure. The figures themselves are not tested."""

from __future__ import annotations

import json

import pytest
from benchmarks import evaluation

from helpers.lane_envs import Counter


@pytest.mark.slow  # two programs to compile, and environments
def test_the_benchmark_reports_every_figure():
    one, two = evaluation.measure(Counter, (1, 2), (8, 8), episodes=3, rounds=2)
    assert (one["environments"], two["environments"]) == (1, 2)
    assert one["steps"] == two["steps"]
    assert one["speedup_of_rounds"] == [1.0, 1.0]
    assert one["calls_per_step"] == 1.0
    for row in (one, two):
        names = ("start_seconds", "seconds", "steps_per_second", "act_ms", "speedup")
        assert all(row[name] > 0 for name in names)
        assert len(row["seconds_of_rounds"]) == 2
        json.dumps(row, allow_nan=False)
