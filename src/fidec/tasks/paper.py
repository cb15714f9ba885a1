"""What the FiDec paper prints, and the protocols behind it: FQL's, which DeFlow and FiDec follow.

Numbers are in percent; most of them are FQL's. A spread is the standard deviation over seeds. Numbers without a
spread were copied by FQL from earlier work. In the table of categories DeFlow's spread is the standard deviation over
the tasks of the category.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

METHODS = ("bc", "iql", "rebrac", "idql", "srpo", "cac", "fawac", "fbrac", "ifql", "fql", "deflow", "fidec")
ONLINE_METHODS = ("iql", "rebrac", "calql", "rlpd", "ifql", "fql", "deflow", "fidec")


class Reported(NamedTuple):
    """A mean and its spread, in percent."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.std is None else f"{self.mean:g} ± {self.std:g}"


@cache
def table() -> dict[tuple[str, str], dict[str, Reported]]:
    """(task id or category, phase) -> method -> number; the phases are offline, before, after and category."""
    text = resources.files("fidec.tasks").joinpath("paper.csv").read_text(encoding="utf-8")
    return {
        (row.pop("row"), row.pop("phase")): {method: _number(cell) for method, cell in row.items() if cell}
        for row in csv.DictReader(text.splitlines())
    }


def _number(cell: str) -> Reported:
    mean, _, std = cell.partition("±")
    return Reported(float(mean), float(std) if std else None)


# The ablation of t_eps: success in percent, mean and spread over three seeds. Its column DeFlow is the isotropic
# metric, which makes the table the paper's ablation of the metric too. Two of that column's numbers differ from the
# paper's main table (scene 51 and 59, cube-double 50 and 53); both are as printed.
_COLUMNS = ("deflow", "0.70", "0.75", "0.80", "0.85", "0.90", "0.95")
_PRINTED = {
    "antsoccer-arena-navigate-singletask-task4-v0": "43±8 54±11 52±3 49±4 47±5 36±5 3±1",
    "cube-double-play-singletask-task2-v0": "50±3 57±13 51±3 58±2 47±6 45±4 62±6",
    "humanoidmaze-medium-navigate-singletask-task1-v0": "35±7 64±8 77±8 76±7 56±12 16±7 2±2",
    "puzzle-4x4-play-singletask-task4-v0": "4±1 3±2 3±0 5±1 7±2 9±1 4±2",
    "scene-play-singletask-task2-v0": "51±6 61±1 62±9 70±7 71±6 73±1 77±4",
}
ABLATION: dict[str, dict[str, Reported]] = {
    task: dict(zip(_COLUMNS, map(_number, printed.split()), strict=True)) for task, printed in _PRINTED.items()
}


# --- protocols ---------------------------------------------------------------------------------------------------

# FQL's authors trained these for longer, in another code base.
LONG = ("idql", "srpo")
# No offline phase: the data fills half of each online batch.
ONLINE_ONLY = ("rlpd",)


@dataclass(frozen=True)
class Protocol:
    """Steps and evaluations of a run, and the evaluations that make its score.

    A score is the mean of the evaluations after the steps `averaged`. Rows of the online setting also report the
    score of the single evaluation after `steps`, before the first online step.
    """

    steps: int
    online_steps: int
    eval_interval: int
    eval_episodes: int
    averaged: tuple[int, ...]
    score: Literal["success", "normalised"]  # percent of episodes, or D4RL's normalised return in percent
    name: str  # where it was published

    @property
    def before(self) -> tuple[int, ...]:
        """The evaluation that is reported before the online phase."""
        return (self.steps,) if self.online_steps and self.steps else ()


def protocol(benchmark: str, *, visual: bool, method: str, setting: str = "offline") -> Protocol:
    """The protocol of a benchmark's tasks for a method."""
    score = "normalised" if benchmark == "d4rl" else "success"
    if setting == "online":
        offline = 0 if method in ONLINE_ONLY else 1_000_000
        end = offline + 1_000_000
        return Protocol(offline, 1_000_000, 100_000, 50, (end,), score, "FQL's offline-to-online protocol")
    if method in LONG:
        last = (3_000_000,) if benchmark == "d4rl" else (2_500_000, 2_750_000, 3_000_000)
        return Protocol(3_000_000, 0, 250_000, 50, last, score, "FQL's protocol for IDQL and SRPO")
    if benchmark == "d4rl":
        return Protocol(500_000, 0, 100_000, 50, (500_000,), score, "D4RL protocol")
    if visual:
        return Protocol(500_000, 0, 100_000, 50, (300_000, 400_000, 500_000), score, "OGBench pixel protocol")
    return Protocol(1_000_000, 0, 100_000, 50, (800_000, 900_000, 1_000_000), score, "OGBench state protocol")
