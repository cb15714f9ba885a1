"""The numbers that the FiDec paper prints, in percent; most of them are FQL's.

A spread is the standard deviation over seeds. Numbers without a spread were copied by FQL from earlier work. In the
table of categories DeFlow's spread is the standard deviation over the tasks of the category.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

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
