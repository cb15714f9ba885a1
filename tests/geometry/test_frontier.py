"""The frontier against synthetic runs whose values are known."""

from __future__ import annotations

import math

import pytest

from fidec.geometry.frontier import frontier_at


def run(method: str, seed: int, kl: float, value: float, off: float = 0.0, landscape: str = "thin") -> dict:
    return {"landscape": landscape, "method": method, "seed": seed, "kl": kl, "value": value, "off": off}


def only(rows: list[dict], kl: float) -> dict:
    found = frontier_at(rows, kl)["path"]
    assert found is not None
    return found


def test_between_two_runs_the_value_is_linear_in_log_kl():
    rows = [run("path", 0, 10.0**i, 0.2 + 0.1 * i, 0.05 * (i + 2)) for i in (-2, -1, 0, 1)]
    for kl in (0.02, 0.5, 1.0, 2.0, 7.0):
        found = only(rows, kl)
        assert found["value"] == pytest.approx(3 * (0.2 + 0.1 * math.log10(kl),))
        assert found["off"] == pytest.approx(0.05 * (math.log10(kl) + 2))


def test_the_order_of_the_runs_does_not_matter():
    rows = [run("path", 0, kl, value) for kl, value in ((4.0, 0.8), (0.25, 0.4))]
    assert only(rows, 1.0)["value"][0] == pytest.approx(0.6)


def test_a_later_run_that_is_worse_does_not_lower_the_frontier():
    rows = [run("path", 0, 0.5, 0.9, 0.01), run("path", 0, 1.5, 0.3, 0.5), run("path", 0, 9.0, 0.4, 0.9)]
    for kl in (0.5, 1.0, 2.0, 20.0):
        assert only(rows, kl)["value"] == (0.9, 0.9, 0.9)
        assert only(rows, kl)["off"] == 0.01


def test_beyond_the_last_run_nothing_is_extrapolated():
    rows = [run("path", 0, 0.1, 0.3), run("path", 0, 0.2, 0.5)]
    assert only(rows, 100.0)["value"][0] == 0.5


def test_seeds_give_mean_smallest_and_largest():
    rows = [
        run("path", seed, kl, value + 0.1 * seed, 0.1 * seed) for seed in (0, 1, 5) for kl, value in ((0.5, 0.2),)
    ]
    found = only(rows, 1.0)
    assert found["value"] == pytest.approx((0.4, 0.2, 0.7))
    assert found["off"] == pytest.approx(0.2)
    assert (found["n"], found["of"]) == (3, 3)


def test_what_is_not_reached_is_none_and_counted():
    rows = [run("local", 0, 3.0, 0.9), run("path", 0, 0.5, 0.2), run("path", 1, 2.0, 0.8)]
    found = frontier_at(rows, 1.0)
    assert found["local"] is None
    assert found["path"] == {"value": (0.2, 0.2, 0.2), "off": 0.0, "n": 1, "of": 2}


def test_infinite_and_negative_kl():
    rows = [run("path", 0, -0.01, 0.3), run("path", 0, math.inf, 0.9), run("path", 0, math.nan, 0.9)]
    assert only(rows, 1.0)["value"][0] == 0.3  # no line goes to an infinite KL
    assert frontier_at([run("path", 0, math.inf, 0.9)], 1.0) == {"path": None}


def test_two_runs_of_equal_kl():
    rows = [run("path", 0, 1.0, 0.3), run("path", 0, 1.0, 0.5), run("path", 0, 4.0, 0.9)]
    assert only(rows, 1.0)["value"][0] == pytest.approx(0.5)
    assert only(rows, 2.0)["value"][0] == pytest.approx(0.7)


def test_the_data_are_no_method_and_landscapes_do_not_mix():
    assert list(frontier_at([run("data", 0, 0.0, 0.3), run("path", 0, 0.1, 0.4)], 1.0)) == ["path"]
    with pytest.raises(ValueError, match="lobes, thin"):
        frontier_at([run("path", 0, 0.1, 0.4), run("path", 0, 0.1, 0.4, landscape="lobes")], 1.0)
