"""The benchmark of the online phase measures every figure. The figures themselves are not tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks import online

from fidec.errors import ConfigError
from fidec.types import Spec
from helpers.lane_envs import Counter

SPEC = Spec((6,), 2)
TINY = online.Size("tiny", (8, 8), 4)


@pytest.fixture
def measure():
    return online.Measure(repeats=2, seconds=0.01, offline=50, capacity=100)


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from numbers(each)
    elif not isinstance(value, str):
        yield value


def check(row: dict[str, Any], *names: str) -> None:
    """Every figure of a row is a number above zero, and it has the named ones."""
    assert set(names) <= row.keys()
    assert all(np.isfinite(each) and each > 0 for name in names for each in numbers(row[name]))
    assert all(np.isfinite(each) for each in numbers(row))
    for name in row:
        if name.endswith("_quartiles"):
            low, high = row[name]
            assert low <= row[name.removesuffix("_quartiles")] <= high


@pytest.mark.slow  # two programs to compile, and environments
def test_the_loop_and_its_parts(measure):
    with online.environments(Counter, 1) as (lanes, spec):
        assert spec == SPEC
        row = online.overhead(measure, "fql", TINY, lanes, spec)
    check(row, "step_ms", "environment_ms", "update_ms", "act_ms")
    assert row["hidden"] == (8, 8)


@pytest.mark.slow  # four loops to compile
def test_overlap_and_several_environments(measure):
    rows = online.overlaps(measure, "fql", TINY, Counter, (1, 2))
    assert [(row["environments"], row["overlap"]) for row in rows] == [(1, False), (1, True), (2, False)]
    for row in rows:
        check(row, "steps_per_second", "ratio")
    assert rows[0]["ratio"] == 1.0


@pytest.mark.slow
def test_the_buffer(measure):
    rows = online.buffers(measure, SPEC, (10, 1000), 4)
    for row in rows:
        check(row, "insertion_us", "insertion_ratio", "draw_us", "draw_ratio")
    assert [row["capacity"] for row in rows] == [10, 1000]
    assert all(row["in_place"] for row in rows)  # no matter of speed: the buffer is not copied
    check(online.joined(measure, SPEC, 101, 4), "joined_us", "plain_us", "ratio")


def test_the_checkpoint_writes_what_is_new(measure):
    row = online.checkpoint(measure, SPEC, stored=200, new=20)
    check(row, "increment_seconds", "whole_seconds", "seconds_ratio")
    # 6 + 6 + 2 + 2 numbers, reward, mask, three numbers of the place: 4 bytes each, and one for the end
    assert row["whole_bytes"] - row["increment_bytes"] == pytest.approx(200 * (21 * 4 + 1), abs=32)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="calql collects whole episodes"):
        online.options_of("calql")
