"""Intervals for evaluation results, and statistics of many runs on many tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    low: float
    high: float


class Difference(NamedTuple):
    """Mean of b - a over pairs, with its interval and the number of pairs."""

    mean: float
    low: float
    high: float
    n: int


class Estimate(NamedTuple):
    """A statistic with its interval, which is (nan, nan) if there are too few runs."""

    value: float
    low: float
    high: float


# For each run the values of its episodes, or for each task the scores of its runs, one a seed.
Runs = Sequence[Sequence[float] | np.ndarray]


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a success rate. Without any trial it is [0, 1]."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    if n == 0:
        return Interval(0.0, 1.0)
    ci = stats.binomtest(int(successes), int(n)).proportion_ci(confidence, method="wilson")
    return Interval(float(ci.low), float(ci.high))


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95, *, resamples: int = 9999, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the mean. The same values give the same interval.

    Fewer than two values have no spread: the result is (nan, nan). Equal values give an interval of width zero, which
    means that no spread was observed, not that there is none.
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError("bootstrap_mean needs a flat list of finite numbers")
    if len(array) < 2:
        return Interval(float("nan"), float("nan"))
    if np.all(array == array[0]):
        return Interval(float(array[0]), float(array[0]))
    ci = stats.bootstrap(
        (array,),
        np.mean,
        confidence_level=confidence,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(ci.low), float(ci.high))


def nested_mean(
    groups: Sequence[Sequence[float] | np.ndarray], confidence: float = 0.95, *, resamples: int = 9999, seed: int = 0
) -> Interval:
    """Bootstrap interval of the mean of the groups' means: groups are resampled, and values within each group.

    Groups are runs and values their episodes, for example. So the interval counts the spread between runs and the
    chance of their episodes. One value in all has no spread: the result is (nan, nan).
    """
    arrays = [np.asarray(group, np.float64) for group in groups]
    if not arrays or any(a.ndim != 1 or not len(a) or not np.isfinite(a).all() for a in arrays):
        raise ValueError("nested_mean needs one or more flat lists of finite numbers")
    if sum(map(len, arrays)) < 2:
        return Interval(float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(arrays), size=(resamples, len(arrays)))
    means = np.empty(drawn.shape)
    for number, array in enumerate(arrays):
        chosen = drawn == number
        means[chosen] = array[rng.integers(len(array), size=(chosen.sum(), len(array)))].mean(1)
    low, high = np.quantile(means.mean(1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def success_rate(runs: Runs, confidence: float = 0.95) -> Interval:
    """The interval of the mean success rate of several runs, whose episodes are 0 or 1. Of one run it is Wilson's.

    A bootstrap (`nested_mean`) of equal outcomes has no width. So the interval also covers that of the chance of the
    episodes alone: Wilson's of each run, and that of their mean. It does not assume that the runs are alike.
    """
    counts = [(sum(value >= 0.5 for value in run), len(run)) for run in runs]
    ends = [wilson(k, n, confidence) for k, n in counts]
    if len(ends) == 1:
        return ends[0]
    return _hull(nested_mean(runs, confidence), _of_mean([k / n for k, n in counts], ends))


def success_difference(pairs: Runs, confidence: float = 0.95) -> Interval:
    """`success_rate` for paired differences of success, -1, 0 or 1, of one or more runs."""
    return _hull(nested_mean(pairs, confidence), _chance_of_pairs(pairs, confidence))


def _chance_of_pairs(pairs: Runs, confidence: float) -> Interval:
    """Wald's interval with half a pair added to each of the four outcomes (Agresti and Min, Statistics in Medicine
    24, 2005) of each run, and that of their mean."""
    z, ends = stats.norm.ppf((1 + confidence) / 2), []
    for run in pairs:
        n = len(run) + 2
        middle, reach = np.sum(run) / n, z * np.sqrt(np.sum(np.abs(run)) + 1 - np.sum(run) ** 2 / n) / n
        ends.append(Interval(max(-1.0, middle - reach), min(1.0, middle + reach)))
    return _of_mean([float(np.mean(run)) for run in pairs], ends)


def _of_mean(values: Sequence[float], ends: Sequence[Interval]) -> Interval:
    """The interval of the mean of independent estimates, from the interval of each.

    The distances to the ends are squared and added (Zou, Huang and Zhang, Computational Statistics and Data Analysis
    53, 2009, for success rates with Wilson's interval).
    """
    middle = np.asarray(values)
    below, above = np.sqrt(((np.asarray(ends) - middle[:, None]) ** 2).sum(0)) / len(middle)
    return Interval(float(middle.mean() - below), float(middle.mean() + above))


def _hull(first: Interval, second: Interval) -> Interval:
    """The interval that covers both; one that is not known adds nothing."""
    low, high = np.fmin(first.low, second.low), np.fmax(first.high, second.high)
    return Interval(float(low), float(high))


def paired_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    confidence: float = 0.95,
    *,
    success: bool = False,
    resamples: int = 9999,
    seed: int = 0,
) -> Difference:
    """The improvement of b over a on the same episodes: the mean of b - a, with an interval by resampling pairs.

    Pairs with a NaN (a failed episode) are left out. What both share, such as an easy start, cancels in the
    difference. Differences of `success` are 0 and 1 subtracted: their interval has a width also if all are equal.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"pairs need two flat lists of one length, found shapes {first.shape} and {second.shape}")
    difference = second - first
    difference = difference[~np.isnan(difference)]
    mean = float(difference.mean()) if len(difference) else float("nan")
    low, high = bootstrap_mean(difference, confidence, resamples=resamples, seed=seed)
    if success and len(difference):
        low, high = _hull(Interval(low, high), _chance_of_pairs([difference], confidence))
    return Difference(mean, low, high, len(difference))


def interquartile_mean(
    scores: Runs,
    confidence: float = 0.95,
    *,
    episodes: Runs | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """The mean of the middle half of all runs' scores, with a stratified bootstrap interval.

    Seeds are resampled within each task and the tasks are fixed, as in Agarwal et al. (2021): the interval describes
    other seeds on these tasks, not other tasks. `episodes` are the numbers of episodes of scores that are successes
    in percent, else 0. With them the interval also covers that of the chance of these episodes (`success_rate`).
    """
    tasks = _tasks(scores)

    def middle(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        return stats.trim_mean(np.concatenate(drawn, axis), 0.25, axis)

    estimate = _stratified(middle, tasks, confidence, resamples, seed)
    if episodes is None or math.isnan(estimate.low):
        return estimate
    rates, counts = np.concatenate(tasks) / 100, np.concatenate(episodes).astype(int)
    cut = int(0.25 * len(rates))
    kept = np.argsort(rates, kind="stable")[cut : len(rates) - cut]
    ends = [
        wilson(round(rate * n), n, confidence) if n else Interval(rate, rate)
        for rate, n in zip(rates[kept], counts[kept], strict=True)
    ]
    chance = _of_mean(list(rates[kept]), ends)
    return Estimate(
        estimate.value, *_hull(Interval(estimate.low, estimate.high), Interval(*(100 * end for end in chance)))
    )


def probability_of_improvement(
    scores: Runs, baseline: Runs, confidence: float = 0.95, *, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """The probability that a run is better than the baseline's run on a random task; a tie counts one half.

    `scores[i]` and `baseline[i]` are runs on the same task. It is the mean over the tasks of Mann and Whitney's U,
    divided by its largest value. For the interval the seeds of both are resampled within each task.
    """
    tasks, others = _tasks(scores), _tasks(baseline)
    if len(tasks) != len(others):
        raise ValueError(f"{len(tasks)} tasks and {len(others)} of the baseline: they must be the same ones")

    def better(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = zip(drawn[: len(tasks)], drawn[len(tasks) :], strict=True)
        return np.mean([_wins(np.moveaxis(a, axis, -1), np.moveaxis(b, axis, -1)) for a, b in pairs], 0)

    return _stratified(better, [*tasks, *others], confidence, resamples, seed)


def _wins(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The share of pairs (a_i, b_j) that a wins."""
    return (0.5 + 0.5 * np.sign(a[..., :, None] - b[..., None, :])).mean((-2, -1))


def _tasks(scores: Runs) -> list[np.ndarray]:
    tasks = [np.asarray(runs, np.float64) for runs in scores]
    if not tasks or any(runs.ndim != 1 or not len(runs) or not np.isfinite(runs).all() for runs in tasks):
        raise ValueError("needs, for each of one or more tasks, a flat list of finite scores")
    return tasks


def _stratified(
    statistic: Callable[..., np.ndarray], groups: list[np.ndarray], confidence: float, resamples: int, seed: int
) -> Estimate:
    """A bootstrap that resamples each group separately."""
    value = float(statistic(*groups))
    if min(map(len, groups)) < 2:  # a single run has no spread
        return Estimate(value, float("nan"), float("nan"))
    ci = stats.bootstrap(
        groups,
        statistic,
        vectorized=True,
        confidence_level=confidence,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value, float(ci.low), float(ci.high))
