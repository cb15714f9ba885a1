"""Intervals for evaluation results."""

from __future__ import annotations

from collections.abc import Sequence
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


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a success rate. Without any trial it is the whole of [0, 1]."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    if n == 0:
        return Interval(0.0, 1.0)
    ci = stats.binomtest(int(successes), int(n)).proportion_ci(confidence, method="wilson")
    return Interval(float(ci.low), float(ci.high))


def bootstrap_mean(
    values: Sequence[float] | np.ndarray, confidence: float = 0.95, *, resamples: int = 9999, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of the mean, the same for the same values.

    Fewer than two values say nothing about their spread: (nan, nan). Equal values give an interval of no
    width, which means that no spread was seen, not that there is none.
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


def paired_difference(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    confidence: float = 0.95,
    *,
    resamples: int = 9999,
    seed: int = 0,
) -> Difference:
    """How much better b did than a on the same episodes: mean of b - a, the interval by resampling pairs.

    Pairs with a NaN in either place (an episode that failed) are left out. What the two share, an easy or a
    hard start, cancels in the difference.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"pairs need two flat lists of one length, found shapes {first.shape} and {second.shape}")
    difference = second - first
    difference = difference[~np.isnan(difference)]
    mean = float(difference.mean()) if len(difference) else float("nan")
    low, high = bootstrap_mean(difference, confidence, resamples=resamples, seed=seed)
    return Difference(mean, low, high, len(difference))
