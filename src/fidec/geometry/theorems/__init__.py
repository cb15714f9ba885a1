"""The paper's theorems as checks: each is measured where the answer is known, prints a table and draws a plot.

(a) what a displacement costs, (b) the bias of the score, (c) the best distance from t = 1, (d) the optimality gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fidec.console.progress import Progress
from fidec.errors import ConfigError
from fidec.geometry.theorems import bias, gap, kl, precision
from fidec.geometry.theorems.bias import score_bias
from fidec.geometry.theorems.gap import optimality_gap
from fidec.geometry.theorems.kl import push_forward_kl
from fidec.geometry.theorems.precision import best_distance
from fidec.geometry.theorems.result import Result, Tick, draw, formatted, no_tick

__all__ = [
    "CHECKS",
    "Result",
    "best_distance",
    "draw",
    "formatted",
    "optimality_gap",
    "push_forward_kl",
    "run",
    "score_bias",
]


class Check(NamedTuple):
    """A theorem's function, and how often it says that it got on."""

    measure: Callable[[Tick], Result]
    ticks: int


CHECKS = {
    "a": Check(push_forward_kl, len(kl.CASES)),
    "b": Check(score_bias, len(bias.DENSITIES)),
    "c": Check(best_distance, precision.CHUNKS + 2),
    "d": Check(optimality_gap, len(gap.CONDITIONS)),
}


def run(
    which: Sequence[str] = tuple(CHECKS), *, out: Path | None, progress: bool = True
) -> dict[str, dict[str, Any]]:
    """Measure the theorems of these letters; with `out` draw each as theorem-<letter>.png in that directory.

    Returns for each letter its title, columns, rows, notes and measured figures, in JSON's types; with `out` also the
    picture's path, as "picture".
    """
    unknown = [name for name in which if name not in CHECKS]
    if unknown:
        raise ConfigError(f"no theorem {', '.join(map(repr, unknown))}; there are {', '.join(CHECKS)}")
    found: dict[str, dict[str, Any]] = {}
    bar = Progress(sum(CHECKS[name].ticks for name in which))

    def measure(tick: Tick) -> None:
        for name in which:
            result = CHECKS[name].measure(tick)
            found[name] = result.as_dict()
            if out is not None:
                found[name]["picture"] = str(draw(result, Path(out) / f"theorem-{name}.png"))

    if not progress:
        measure(no_tick)
        return found
    with bar:
        bar.update(0)
        measure(lambda: bar.update(bar.step + 1))
    return found
