"""The reported numbers of evaluation episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fidec.envs.pool import Episode
from fidec.stats import bootstrap_mean, paired_difference, wilson


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Means and 95 % intervals over the episodes that ran to their end. The others are only counted.

    `success` has a Wilson interval, `return` a bootstrap interval. An environment may report success only when it
    succeeds: if any episode reports it, an episode that does not is a failure (`reported`). A number that cannot be
    computed (no episode left, no success reported) is None, so that the result is valid JSON.
    """
    good = [episode for episode in episodes if episode.status == "ok"]
    failed = Counter(episode.status for episode in episodes if episode.status != "ok")
    successes = reported([episode.success for episode in good])
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


def reported(values: Sequence[float | None]) -> list[float]:
    """Values of episodes, 0 for one that reports none; empty if no episode reports any."""
    return [value or 0.0 for value in values] if any(value is not None for value in values) else []


class Gain(NamedTuple):
    """A paired difference in success rate, or in return if the environment reports no success."""

    of: Literal["success", "return"]
    mean: float
    low: float
    high: float
    n: int


def measure(*evaluations: Sequence[Episode]) -> Literal["success", "return"]:
    """What evaluations in one environment are compared by: success, or the return if no episode reports success."""
    known = any(episode.success is not None for episodes in evaluations for episode in episodes)
    return "success" if known else "return"


def compare(
    before: Sequence[Episode], after: Sequence[Episode], of: Literal["success", "return"] | None = None
) -> Gain:
    """The gain from `before` to `after`, as a paired difference over the same episodes; by default in `measure`."""
    of = of or measure(before, after)
    first, second = ({(e.index, e.seed): _value(e, of) for e in episodes} for episodes in (before, after))
    if first.keys() != second.keys():
        raise ValueError("the two evaluations ran different episodes; use the same seed and number of episodes")
    pairs = list(first.values()), [second[key] for key in first]
    return Gain(of, *paired_difference(*pairs, success=of == "success"))


def _value(episode: Episode, of: str) -> float:
    """NaN for an episode that failed."""
    value = episode.success or 0.0 if of == "success" else episode.return_
    return value if episode.status == "ok" else math.nan


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
