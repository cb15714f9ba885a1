"""Intervals against closed forms, and their degenerate cases."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from fidec.envs.evaluate import compare, summarise
from fidec.envs.pool import Episode
from fidec.stats import bootstrap_mean, paired_difference, wilson


def episode(index, success, return_=0.0, status="ok"):
    return Episode(index, 100 + index, 0, status, return_, 10, success)


@pytest.mark.parametrize(("k", "n"), [(0, 50), (1, 1), (0, 1), (21, 50), (50, 50)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_wilson_is_its_formula(k, n, confidence):
    z = norm.ppf(0.5 + confidence / 2)
    centre = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * math.sqrt(k * (n - k) / n + z**2 / 4)
    assert wilson(k, n, confidence) == pytest.approx((max(0, centre - half), min(1, centre + half)), abs=1e-12)


def test_wilson_without_trials_and_with_nonsense():
    assert wilson(0, 0) == (0.0, 1.0)
    for k, n in [(2, 1), (-1, 5), (1, 0)]:
        with pytest.raises(ValueError, match="successes"):
            wilson(k, n)


def test_bootstrap_of_many_values_is_the_normal_interval():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    half = norm.ppf(0.975) * values.std() / math.sqrt(len(values))
    assert bootstrap_mean(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    assert bootstrap_mean(values) == bootstrap_mean(values)
    narrow = bootstrap_mean(values, 0.5)
    assert narrow.high - narrow.low < half


def test_bootstrap_degenerate_cases():
    assert all(math.isnan(end) for end in bootstrap_mean([]) + bootstrap_mean([4.0]))
    assert bootstrap_mean([2.0, 2.0, 2.0]) == (2.0, 2.0)
    with pytest.raises(ValueError, match="finite"):
        bootstrap_mean([1.0, math.nan])


def test_paired_difference_uses_the_pairing():
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 10, 200)
    a, b = hard + rng.normal(0, 0.1, 200), hard + 1.0 + rng.normal(0, 0.1, 200)
    gain = paired_difference(a, b)
    assert gain.mean == pytest.approx((b - a).mean())
    assert gain.low < gain.mean < gain.high
    assert gain.high - gain.low < 0.1  # unpaired it would be about 4
    back = paired_difference(b, a)
    assert back.mean == -gain.mean


def test_paired_difference_drops_failed_pairs():
    gain = paired_difference([0, 0, math.nan, 0, 1], [1, 0, 1, math.nan, 1])
    assert (gain.mean, gain.n) == (pytest.approx(1 / 3), 3)
    empty = paired_difference([math.nan], [1.0])
    assert empty.n == 0
    assert math.isnan(empty.mean)
    with pytest.raises(ValueError, match="one length"):
        paired_difference([1.0], [1.0, 2.0])


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
    with pytest.raises(ValueError, match="different episodes"):
        compare(before, after[:3])
