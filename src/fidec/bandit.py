"""Choose one of a few arms with few pulls: UCB1-Tuned, and the arm that it recommends.

The first arms may be safe ones, that are preferred unless another was shown to be better. The k-th pull of every arm
has the same conditions (the same seed of an episode), so that differences of two arms are paired. A score
that is NaN (a failed episode) counts as the lowest score of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Scores = Sequence[Sequence[float]]  # for each arm the scores of its pulls, in order


class Moment(NamedTuple):
    """What would be recommended after this many pulls, and the mean of its scores so far."""

    pulls: int
    arm: int
    mean: float


class Course(NamedTuple):
    """The scores of a whole bandit, the recommended arm, and the recommendations on the way."""

    scores: Scores
    arm: int
    history: list[Moment]


class Moments(NamedTuple):
    """Of the scaled scores of each arm."""

    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray


def scaled(scores: Scores) -> list[np.ndarray]:
    """The scores mapped to [0, 1] by the range of all that were seen; zeros if there is no range."""
    counts = np.array([len(each) for each in scores])
    seen = np.concatenate([*scores, np.empty(0)])
    good = seen[~np.isnan(seen)]
    low, high = (good.min(), good.max()) if len(good) else (0.0, 0.0)
    values = (np.nan_to_num(seen, nan=low) - low) / (high - low if high > low else 1.0)
    return np.split(values, np.cumsum(counts)[:-1])


def moments(arrays: Sequence[np.ndarray]) -> Moments:
    """Arms without a pull have mean and variance 0."""
    counts = np.array([len(array) for array in arrays])
    divisors = np.maximum(counts, 1)
    means = np.array([array.sum() for array in arrays]) / divisors
    squares = np.array([array @ array for array in arrays]) / divisors
    return Moments(counts, means, np.maximum(squares - means**2, 0.0))


def next_arm(scores: Scores) -> int:
    """The arm to pull next: one without a pull, else the one with the highest UCB1-Tuned index.

    The index is m + sqrt(ln t / n min(1/4, v + sqrt(2 ln t / n))), for n of t pulls with mean m and variance v of the
    scaled scores (Auer, Cesa-Bianchi and Fischer, 2002, section 4). The term of UCB1, sqrt(2 ln t / n), is at least
    2.8 times as large: with the few pulls that real episodes allow, it would pull all arms about equally often.
    """
    counts, means, variances = moments(scaled(scores))
    if (counts == 0).any():
        return int(np.argmin(counts))
    log = np.log(counts.sum())
    return int(np.argmax(means + np.sqrt(log / counts * np.minimum(0.25, variances + np.sqrt(2.0 * log / counts)))))


def recommend(scores: Scores, safe: int = 1) -> int:
    """The best arm, or one of the first `safe` arms if that is about as good.

    Considered are arms with at least half as many pulls as the most pulled one. The bandit pulls an arm more often
    the better it looks, so this leaves out high means of one or two lucky pulls. The best is the one with the highest
    mean, the first of equals. Before it comes a safe arm (the best of them) if the paired difference of the two is at
    most one standard error: the rule by which Breiman et al. (1984) choose the smaller of two trees. So equal arms
    give a safe one more often than chance, and arms that are the same in every pull always do.
    """
    arrays = scaled(scores)
    counts, means, _ = moments(arrays)
    if not counts.any():
        raise ValueError("no arm was pulled")
    means = np.where((counts > 0) & (2 * counts >= counts.max()), means, -1.0)
    best = int(np.argmax(means))
    if not safe:
        return best
    first = int(np.argmax(means[:safe]))
    return first if means[first] >= 0 and _is_as_good(arrays[first], arrays[best]) else best


def _is_as_good(array: np.ndarray, best: np.ndarray) -> bool:
    """Whether the mean of best - array over their common pulls is at most its standard error."""
    pairs = min(len(array), len(best))
    difference = best[:pairs] - array[:pairs]
    error = difference.std(ddof=1) / np.sqrt(pairs) if pairs > 1 else 0.0
    return bool(difference.mean() <= error)


def play(
    pull: Callable[[int, int], Scores],
    arms: int,
    pulls: int,
    *,
    batch: int = 1,
    safe: int = 1,
    pairs: int = 0,
    choose: Callable[[Scores], int] = next_arm,
) -> Course:
    """Pull arms until `pulls` pulls were made, `batch` at a time.

    The best of the `safe` arms gets at least `pairs` pulls, the last ones if need be. A bandit hardly pulls an arm
    that is much worse than others, and without pulls there is no interval of the difference to it.

    `pull(arm, first)` makes the pulls first, ..., first + batch - 1 of an arm, and returns the scores of all arms so
    far. They are asked for again each time, because what counts as a score may become known on the way.
    """
    scores: Scores = [()] * arms
    history: list[Moment] = []
    for made in range(batch, pulls + 1, batch):
        missing = _missing(scores, safe, pairs)
        turns = (pulls - made) // batch + 1  # with this one
        arm = missing[0] if missing and turns * batch < missing[1] + batch else choose(scores)
        scores = pull(arm, len(scores[arm]))
        best = recommend(scores, safe)
        good = [score for score in scores[best] if not np.isnan(score)]
        history.append(Moment(made, best, float(np.mean(good)) if good else float("nan")))
    if not history:
        raise ValueError(f"{pulls} pulls, {batch} at a time: there is none")
    return Course(scores, history[-1].arm, history)


def _missing(scores: Scores, safe: int, pairs: int) -> tuple[int, int] | None:
    """The best safe arm and the pulls that it lacks; None if it lacks none, or if an arm has no pull yet."""
    if not safe or not all(scores):
        return None
    best = int(np.argmax(moments(scaled(scores)).means[:safe]))
    return (best, pairs - len(scores[best])) if len(scores[best]) < pairs else None
