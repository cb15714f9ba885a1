"""Intervals against closed forms, and their degenerate cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import mannwhitneyu, norm

from fidec.stats import (
    bootstrap_mean,
    interquartile_mean,
    nested_mean,
    paired_difference,
    probability_of_improvement,
    success_difference,
    success_rate,
    wilson,
)

Z = norm.ppf(0.975)


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


def test_interquartile_mean_by_hand():
    # 1..8 over two tasks: a quarter of eight is two, so 1, 2, 7 and 8 go, whichever task they are of.
    estimate = interquartile_mean([[8.0, 1.0, 3.0, 5.0], [2.0, 7.0, 4.0, 6.0]])
    assert estimate.value == 4.5
    assert estimate.low < 4.5 < estimate.high
    assert interquartile_mean([[0.0, 0.0, 10.0, 1000.0]]).value == 5.0  # not moved by one lucky run
    assert interquartile_mean([[3.0], [5.0]]).value == 4.0
    assert interquartile_mean([[3.0, 3.0], [5.0, 5.0]]) == (4.0, 4.0, 4.0)


def test_the_bootstrap_keeps_every_run_in_its_task():
    # Tasks far apart, runs alike: drawn within tasks, the mean hardly moves; over all runs it would by tens.
    tasks = [[0.0, 1.0], [40.0, 41.0], [100.0, 101.0]]
    estimate = interquartile_mean(tasks)
    assert 1 >= estimate.high - estimate.low > 0


def test_probability_of_improvement_by_hand():
    # Nine pairs: 2 > 1; 3 > 1; 3 > 2; 5 beats 1, 2, 4; ties 2-2 a half: (1 + 0.5) + 2 + 3 = 6.5 of 9.
    assert probability_of_improvement([[2.0, 3.0, 5.0]], [[1.0, 2.0, 4.0]]).value == pytest.approx(6.5 / 9)
    a, b = [[2.0, 3.0], [7.0, 7.0]], [[2.0, 2.0], [7.0, 7.0]]
    assert probability_of_improvement(a, b).value == pytest.approx((0.75 + 0.5) / 2)
    assert probability_of_improvement(b, a).value == pytest.approx(1 - (0.75 + 0.5) / 2)
    assert probability_of_improvement([[1.0, 2.0]], [[0.0, 0.5]]) == (1.0, 1.0, 1.0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(1, 1, 40), rng.normal(0, 1, 40)
    u = mannwhitneyu(x, y).statistic
    found = probability_of_improvement([x], [y])
    assert found.value == pytest.approx(u / 1600)
    assert found.low < norm.cdf(1 / math.sqrt(2)) < found.high  # the truth for two normal distributions


def test_too_few_runs_have_no_interval():
    for estimate in (
        interquartile_mean([[1.0, 2.0], [3.0]]),
        probability_of_improvement([[1.0, 2.0]], [[3.0]]),
    ):
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
        assert math.isfinite(estimate.value)
    for wrong in ([], [[]], [[math.nan, 1.0]]):
        with pytest.raises(ValueError, match="finite scores"):
            interquartile_mean(wrong)
    with pytest.raises(ValueError, match="the same ones"):
        probability_of_improvement([[1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]])


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    """Ten tasks of five runs, normal about each task's own mean: the IQM that very many seeds would give."""
    rng, trials, hits = np.random.default_rng(3), 80, 0
    means = np.linspace(0, 90, 10)[:, None]
    truth = np.mean([stats.trim_mean(rng.normal(means, 8.0, (10, 5)).ravel(), 0.25) for _ in range(2000)])
    for trial in range(trials):
        estimate = interquartile_mean(list(rng.normal(means, 8.0, (10, 5))), resamples=300, seed=trial)
        hits += estimate.low <= truth <= estimate.high
    # Five runs a task understate their own spread by sqrt(4/5), which makes 95 % about 92 %.
    assert 0.85 <= hits / trials <= 0.99


def test_a_nested_mean_counts_the_spread_between_runs_and_the_chance_of_episodes():
    rng = np.random.default_rng(0)
    within = list(rng.normal(0.0, 1.0, (4, 50)))
    apart = [values + shift for values, shift in zip(within, (-3, -1, 1, 3), strict=True)]
    narrow, wide = nested_mean(within), nested_mean(apart)
    assert narrow.low < np.mean(within) < narrow.high
    assert 0.2 < narrow.high - narrow.low < 0.6  # four standard errors of 200 episodes are 0.28
    assert wide.high - wide.low > 3.5  # four standard errors of four runs are 4.5
    assert nested_mean(apart) == wide
    assert nested_mean([[1.0], [3.0]]) == bootstrap_mean([1.0, 3.0])
    assert np.isnan(nested_mean([[1.0]])).all()
    with pytest.raises(ValueError, match="flat lists of finite numbers"):
        nested_mean([[1.0], []])


def test_equal_successes_have_the_interval_of_their_chance():
    """0 of 16: each run has Wilson's [0, z^2 / (n + z^2)], and the mean of R equal ones is shorter by sqrt(R)."""
    for runs, n in ((2, 8), (5, 50), (3, 1)):
        reach = Z**2 / (n + Z**2) / math.sqrt(runs)
        assert success_rate([[0.0] * n] * runs) == pytest.approx((0.0, reach), abs=1e-12)
        assert success_rate([[1.0] * n] * runs) == pytest.approx((1.0 - reach, 1.0), abs=1e-12)
    assert success_rate([[0.0] * 16]) == wilson(0, 16)
    short, long = Z**2 / (4 + Z**2), Z**2 / (12 + Z**2)
    assert success_rate([[0.0] * 4, [0.0] * 12]).high == pytest.approx(math.hypot(short, long) / 2)


def test_a_success_rate_covers_the_spread_between_runs_and_the_chance_of_episodes():
    apart = [[0.0] * 20, [1.0] * 20, [0.0] * 20]
    assert success_rate(apart) == nested_mean(apart) == (0.0, 1.0)
    alike = [[0.0] * 9 + [1.0], [1.0] + [0.0] * 9]
    found, spread = success_rate(alike), nested_mean(alike)
    assert found.low <= spread.low <= 0.1
    below, above = (abs(end - 0.1) / math.sqrt(2) for end in wilson(1, 10))
    assert found == pytest.approx((min(spread.low, 0.1 - below), max(spread.high, 0.1 + above)))


def test_equal_differences_of_success_have_the_interval_of_their_chance():
    """Agresti and Min: without a discordant pair the difference is 0 -+ z / (n + 2)."""
    assert success_difference([[0.0] * 16]) == pytest.approx((-Z / 18, Z / 18))
    assert success_difference([[0.0] * 8] * 4) == pytest.approx((-Z / 20, Z / 20))
    won, n = success_difference([[1.0] * 50]), 52
    assert won == pytest.approx((50 / n - Z * math.sqrt(51 - 50**2 / n) / n, 1.0))
    same = np.zeros(16)
    assert paired_difference(same, same, success=True)[1:] == pytest.approx((-Z / 18, Z / 18, 16))
    assert paired_difference(same, same) == (0.0, 0.0, 0.0, 16)  # returns: no spread was observed


def test_an_interquartile_mean_of_equal_successes_has_the_interval_of_their_chance():
    tasks, counts = [[0.0] * 4, [100.0] * 4], [[50] * 4] * 2
    assert interquartile_mean(tasks) == (50.0, 50.0, 50.0)  # scores
    reach = 100 * Z**2 / (50 + Z**2) * math.sqrt(2) / 4  # two runs of each task are the middle half
    assert interquartile_mean(tasks, episodes=counts) == pytest.approx((50.0, 50 - reach, 50 + reach))
    half = interquartile_mean(tasks, episodes=[[50] * 4, [0] * 4])  # the second task has a score of another kind
    assert half == pytest.approx((50.0, 50.0, 50 + reach))  # failures can only be fewer
    assert math.isnan(interquartile_mean([[0.0]], episodes=[[50]]).low)
