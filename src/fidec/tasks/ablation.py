"""What the FiDec paper reports in its ablation of t_eps: success in percent, mean and spread over three seeds.

Its column DeFlow is the isotropic metric, which makes the table the paper's ablation of the metric too. Two of that
column's numbers differ from the paper's main table (scene 51 and 59, cube-double 50 and 53); both are as printed.
"""

from __future__ import annotations

from fidec.tasks import Reported

_COLUMNS = ("deflow", "0.70", "0.75", "0.80", "0.85", "0.90", "0.95")
_PRINTED = {
    "antsoccer-arena-navigate-singletask-task4-v0": "43±8 54±11 52±3 49±4 47±5 36±5 3±1",
    "cube-double-play-singletask-task2-v0": "50±3 57±13 51±3 58±2 47±6 45±4 62±6",
    "humanoidmaze-medium-navigate-singletask-task1-v0": "35±7 64±8 77±8 76±7 56±12 16±7 2±2",
    "puzzle-4x4-play-singletask-task4-v0": "4±1 3±2 3±0 5±1 7±2 9±1 4±2",
    "scene-play-singletask-task2-v0": "51±6 61±1 62±9 70±7 71±6 73±1 77±4",
}


def _row(printed: str) -> dict[str, Reported]:
    cells = (cell.split("±") for cell in printed.split())
    return {column: Reported(float(mean), float(std)) for column, (mean, std) in zip(_COLUMNS, cells, strict=True)}


REPORTED = {task: _row(printed) for task, printed in _PRINTED.items()}
