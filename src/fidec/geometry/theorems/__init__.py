"""Numerical checks of the paper's four theorems, on densities whose score and velocity are known.

(a) the KL of a displacement, (b) the bias of the score, (c) the best distance from t = 1, (d) the optimality gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fidec import compilation
from fidec.geometry.theorems.bias import score_bias
from fidec.geometry.theorems.gap import optimality_gap
from fidec.geometry.theorems.kl import push_forward_kl
from fidec.geometry.theorems.precision import best_distance
from fidec.geometry.theorems.result import draw
from fidec.register import unknown

CHECKS = {"a": push_forward_kl, "b": score_bias, "c": best_distance, "d": optimality_gap}


def run(
    which: Sequence[str] = tuple(CHECKS),
    *,
    out: Path | None = None,
    report: Callable[[str], None] = lambda name: None,
) -> dict[str, dict[str, Any]]:
    """Run the checks of these letters and call `report` after each.

    Returns title, columns, rows, notes and measured numbers for each letter. With `out`, each plot is written to
    theorem-<letter>.png in that directory, and its path is returned as "picture".
    """
    for name in which:
        if name not in CHECKS:
            raise unknown("theorem", name, CHECKS)
    compilation.enable()
    results: dict[str, dict[str, Any]] = {}
    for name in which:
        result = CHECKS[name]()
        results[name] = result.as_dict()
        if out is not None:
            results[name]["picture"] = str(draw(result, Path(out) / f"theorem-{name}.png"))
        report(name)
    return results
