"""Mean, standard deviation and range of columns, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Of each column. A constant column has the deviation 1, so that one can divide by it."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray


def moments_of(parts: Iterable[np.ndarray]) -> Moments:
    """The moments of rows that come in parts, in float64. Each part is read once.

    Means and sums of squares of two parts are merged by the formula of Chan, Golub and LeVeque (1979), which does not
    subtract large numbers from each other as a sum of squares does.
    """
    rows, mean, squares, low, high = 0, np.zeros(()), np.zeros(()), np.full((), np.inf), np.full((), -np.inf)
    for part in parts:
        own = part.sum(axis=0, dtype=np.float64) / len(part)
        own_squares = np.square(part - own).sum(axis=0)
        low, high = np.minimum(low, part.min(axis=0)), np.maximum(high, part.max(axis=0))
        if not rows:
            rows, mean, squares = len(part), own, own_squares
            continue
        step, total = own - mean, rows + len(part)
        mean = mean + step * (len(part) / total)
        squares = squares + own_squares + np.square(step) * (rows * len(part) / total)
        rows = total
    std = np.sqrt(squares / rows)
    std = np.where(std > 1e-6 * np.abs(mean), std, 1.0)  # rounding in float32 is not variation
    return Moments(mean, std, low, high)
