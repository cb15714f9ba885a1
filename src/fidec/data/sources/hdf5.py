"""`hdf5:PATH`: a file in D4RL's layout (observations, actions, rewards, terminals, timeouts, next_observations).

D4RL's `terminals` are task ends (mask 0), its `timeouts` are cuts. Without stored `next_observations` the transition
at a timeout is dropped, as D4RL's own `qlearning_dataset` does, because its next row belongs to another episode.
"""

from __future__ import annotations

from typing import Any

from fidec.data.arrays import FILE_KEYS, dataset_from_file
from fidec.data.columns import existing_file, flag_vector
from fidec.data.dataset import OfflineDataset
from fidec.data.hdf5 import read_columns
from fidec.data.source import CacheDir, DataSource, absolute_path


def load(what: str, *, cache_dir: CacheDir = None, **bounds: object) -> OfflineDataset:
    file = existing_file(what)
    columns: dict[str, Any] = {**read_columns(file, FILE_KEYS, needed=("observations", "actions"))}
    if "terminals" in columns:
        # Rows that are both terminal and timed out are task ends in D4RL.
        rows = columns["actions"].shape[:1]
        columns["masks"] = ~flag_vector(str(file), "terminals", columns["terminals"], rows[0] if rows else 0)
    return dataset_from_file(columns, file, f"hdf5:{what}", **bounds)


SOURCE = DataSource(
    summary="an HDF5 file in D4RL's layout",
    example="hdf5:hopper_medium-v2.hdf5",
    load=load,
    claims=lambda text: text.endswith((".hdf5", ".h5")),
    absolute=absolute_path,
    check_present=lambda what, cache_dir: existing_file(what),
)
