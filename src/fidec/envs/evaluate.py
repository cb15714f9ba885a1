"""The reported numbers of evaluation episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fidec.envs.pool import Episode
from fidec.stats import Difference, bootstrap_mean, paired_difference, wilson


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means and 95 % intervals over the episodes that ran to their end. The others are only counted.

    `success` has a Wilson interval, `return` a bootstrap interval. A number that cannot be computed (no episode
    left, no success reported) is None, so that the result is valid JSON.
    """
    good = [episode for episode in episodes if episode.status == "ok"]
    failed = Counter(episode.status for episode in episodes if episode.status != "ok")
    successes = [episode.success for episode in good if episode.success is not None]
    returns = [episode.return_ for episode in good]
    # A success is 0 or 1. For the interval a fraction counts as a success from one half on.
    success = wilson(sum(value >= 0.5 for value in successes), len(successes)) if successes else (None, None)
    spread = bootstrap_mean(returns)
    return {
        "n": len(good),
        "n_failed": sum(failed.values()),
        "failed": dict(failed),
        "success": _mean(successes),
        "success_low": success[0],
        "success_high": success[1],
        "return": _mean(returns),
        "return_low": _or_none(spread.low),
        "return_high": _or_none(spread.high),
        "length": _mean([episode.length for episode in good]),
    }


def compare(before: Sequence[Episode], after: Sequence[Episode]) -> Difference:
    """The gain in success rate from `before` to `after`, as a paired difference over the same episodes."""
    first, second = ({(e.index, e.seed): _success(e) for e in episodes} for episodes in (before, after))
    if first.keys() != second.keys():
        raise ValueError("the two evaluations ran different episodes; use the same seed and number of episodes")
    return paired_difference(list(first.values()), [second[key] for key in first])


def _success(episode: Episode) -> float:
    return episode.success if episode.status == "ok" and episode.success is not None else math.nan


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
