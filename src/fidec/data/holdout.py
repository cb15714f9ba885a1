"""Hold out whole episodes of a data set."""

from __future__ import annotations

import dataclasses

import numpy as np

from fidec.data.dataset import OfflineDataset, episodes_of
from fidec.data.observations import take_rows
from fidec.errors import DataError

COLUMNS = ("observations", "actions", "rewards", "masks", "terminals", "next_observations", "next_actions")


def hold_out(dataset: OfflineDataset, share: float) -> tuple[OfflineDataset, OfflineDataset]:
    """The data set without, and with only, about this share of its episodes: the last one of every round(1 / share).

    Neighbouring rows of an episode are alike, so held-out rows of a training episode would show nothing.
    """
    every, episodes = max(2, round(1 / share)), dataset.episodes
    held = np.arange(len(episodes)) % every == every - 1
    if not held.any():
        raise DataError(
            f"{dataset.source}: it has {len(episodes)} episodes, and holding out a share of {share:g} takes one of "
            f"every {every}. Hold out a larger share, or none: --validation 0."
        )
    rows = np.repeat(held, np.diff(episodes, axis=1)[:, 0])
    return _part(dataset, ~rows, "training"), _part(dataset, rows, "held out")


def _part(dataset: OfflineDataset, rows: np.ndarray, what: str) -> OfflineDataset:
    columns = {name: take_rows(getattr(dataset, name), rows) for name in COLUMNS}
    name = f"{dataset.name} ({what})"
    return dataclasses.replace(dataset, **columns, episodes=episodes_of(columns["terminals"]), name=name)
