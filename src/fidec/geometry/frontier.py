"""The frontier: the best value of a method within a given true KL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

FLOOR = 1e-4  # nats; a smaller measured KL is noise and may be negative

Row = Mapping[str, Any]


def frontier_at(rows: Iterable[Row], kl: float) -> dict[str, dict[str, Any] | None]:
    """For each method, the best value at a true KL of at most `kl` nats: mean, smallest and largest over seeds.

    For one seed it is the larger of two numbers: the largest value among the runs within `kl`, and the value at `kl`
    by linear interpolation in log KL between the two runs around it. `off` is the off-support mass at the same point,
    `n` the number of seeds with a run within `kl`, `of` the number of all seeds. A method without such a seed gets
    None.
    """
    runs: dict[str, dict[Any, list[Row]]] = {}
    landscapes = set()
    for row in rows:
        landscapes.add(row["landscape"])
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    if len(landscapes) > 1:
        raise ValueError(f"a frontier is of one landscape, but there are rows of {', '.join(sorted(landscapes))}")
    return {method: _over_seeds(list(seeds.values()), kl) for method, seeds in runs.items()}


def _over_seeds(seeds: list[list[Row]], kl: float) -> dict[str, Any] | None:
    best = [point for runs in seeds if (point := _best(runs, kl)) is not None]
    if not best:
        return None
    value, off = np.asarray(best).T
    return {
        "value": (float(value.mean()), float(value.min()), float(value.max())),
        "off": float(off.mean()),
        "n": len(best),
        "of": len(seeds),
    }


def _best(runs: Sequence[Row], kl: float) -> tuple[float, float] | None:
    """(value, off) of the best point within kl; None if every run has a larger KL or no finite KL."""
    points = sorted((max(row["kl"], FLOOR), row["value"], row["off"]) for row in runs if np.isfinite(row["kl"]))
    inside = [point for point in points if point[0] <= kl]
    if not inside:
        return None
    candidates = [(value, off) for _, value, off in inside]
    if len(inside) < len(points):  # the last run inside and the first outside are neighbours
        (low, *before), (high, *after) = inside[-1], points[len(inside)]
        share = np.log(kl / low) / np.log(high / low)
        value, off = ((1 - share) * a + share * b for a, b in zip(before, after, strict=True))
        candidates.append((value, off))
    return max(candidates)
