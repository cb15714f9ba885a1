"""A data set as a NumPy archive, which holds everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.data.convert.rows import Rows, user_actions
from fidec.data.mapped import chunks
from fidec.data.npz import write_npz
from fidec.parts import named


def write(rows: Rows, out: Path, progress: Progress) -> tuple[list[str], list[str]]:
    """Last states are rows of their own if the next states are the next rows, else next states are a column."""
    dataset = rows.dataset
    members: dict[str, Any] = {}
    if rows.unlinked:
        for key in ("observations", "next_observations"):
            for name, array in named(key, getattr(dataset, key)).items():
                members[name] = (array.shape, array.dtype), chunks(array)
        single = {"actions": user_actions(dataset), "masks": dataset.masks, "terminals": dataset.terminals}
        rewards = dataset.rewards
    else:
        for name, array in named("observations", dataset.observations).items():
            members[name] = ((rows.count, *array.shape[1:]), array.dtype), _blocks(rows, name, progress)
        single = {"actions": rows.actions, "masks": rows.masks, "terminals": rows.ends}
        rewards = rows.rewards
    single |= {"rewards": rewards} if dataset.has_rewards else {}
    if dataset.action_low is not None:
        single |= {"action_low": np.array(dataset.action_low), "action_high": np.array(dataset.action_high)}
    members |= {key: ((array.shape, array.dtype), [array]) for key, array in single.items()}
    with open(out, "xb") as file:
        write_npz(file, members)
    progress.update(rows.count)
    return [], []


def _blocks(rows: Rows, name: str, progress: Progress) -> Iterator[np.ndarray]:
    for start, stop in rows.chunks():
        yield rows.observed(start, stop)[name]
        progress.update(stop)
