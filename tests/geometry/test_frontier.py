"""The frontier against synthetic runs whose values are known."""

from __future__ import annotations

import math

import pytest

from fidec.geometry.lab import frontier_at


def run(method: str, seed: int, kl: float, value: float, off: float = 0.0, landscape: str = "thin") -> dict:
    return {"landscape": landscape, "method": method, "seed": seed, "kl": kl, "value": value, "off": off}


def only(rows: list[dict], kl: float) -> dict:
    point = frontier_at(rows, kl)["path"]
    assert point is not None
    return point


def test_between_two_runs_the_value_is_linear_in_log_kl_in_any_order():
    rows = [run("path", 0, 10.0**i, 0.2 + 0.1 * i, 0.05 * (i + 2)) for i in (1, -2, 0, -1)]
    for kl in (0.02, 0.5, 1.0, 2.0, 7.0):
        point = only(rows, kl)
        assert point["value"] == pytest.approx(3 * (0.2 + 0.1 * math.log10(kl),))
        assert point["off"] == pytest.approx(0.05 * (math.log10(kl) + 2))


def test_a_worse_run_at_a_larger_kl_does_not_lower_the_frontier():
    rows = [run("path", 0, 0.5, 0.9, 0.01), run("path", 0, 1.5, 0.3, 0.5), run("path", 0, 9.0, 0.4, 0.9)]
    for kl in (0.5, 1.0, 2.0, 20.0):
        assert only(rows, kl)["value"] == (0.9, 0.9, 0.9)
        assert only(rows, kl)["off"] == 0.01


def test_nothing_is_extrapolated_beyond_the_last_run():
    rows = [run("path", 0, 0.1, 0.3), run("path", 0, 0.2, 0.5)]
    assert only(rows, 100.0)["value"][0] == 0.5


def test_seeds_give_mean_smallest_and_largest_and_are_counted():
    rows = [run("path", seed, 0.5, 0.2 + 0.1 * seed, 0.1 * seed) for seed in (0, 1, 5)]
    point = only(rows, 1.0)
    assert point["value"] == pytest.approx((0.4, 0.2, 0.7))
    assert point["off"] == pytest.approx(0.2)
    assert (point["n"], point["of"]) == (3, 3)
    rows = [run("local", 0, 3.0, 0.9), run("path", 0, 0.5, 0.2), run("path", 1, 2.0, 0.8)]
    points = frontier_at(rows, 1.0)
    assert points["local"] is None
    assert points["path"] == {"value": (0.2, 0.2, 0.2), "off": 0.0, "n": 1, "of": 2}


def test_infinite_negative_and_equal_kl():
    rows = [run("path", 0, -0.01, 0.3), run("path", 0, math.inf, 0.9), run("path", 0, math.nan, 0.9)]
    assert only(rows, 1.0)["value"][0] == 0.3  # no line goes to an infinite KL
    assert frontier_at([run("path", 0, math.inf, 0.9)], 1.0) == {"path": None}
    rows = [run("path", 0, 1.0, 0.3), run("path", 0, 1.0, 0.5), run("path", 0, 4.0, 0.9)]
    assert only(rows, 1.0)["value"][0] == pytest.approx(0.5)
    assert only(rows, 2.0)["value"][0] == pytest.approx(0.7)


def test_rows_of_two_landscapes_are_not_mixed():
    with pytest.raises(ValueError, match="lobes, thin"):
        frontier_at([run("path", 0, 0.1, 0.4), run("path", 0, 0.1, 0.4, landscape="lobes")], 1.0)
