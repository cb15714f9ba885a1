"""robomimic's own reader, run by a Python that has robomimic: `python robomimic_tool.py FILE FOUND.npz [MASK]`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def read(path: str, found: str, mask: str | None = None) -> None:
    """All transitions as robomimic's `SequenceDataset` gives them."""
    import robomimic.utils.obs_utils as obs_utils  # pyright: ignore[reportMissingImports]
    from robomimic.utils.dataset import SequenceDataset  # pyright: ignore[reportMissingImports]

    keys = {"low_dim": ["eef"], "rgb": ["agentview_image"]}
    obs_utils.initialize_obs_utils_with_obs_specs({"obs": keys})
    dataset = SequenceDataset(
        hdf5_path=path,
        obs_keys=("eef", "agentview_image"),
        dataset_keys=("actions", "rewards", "dones"),
        filter_by_attribute=mask,
        load_next_obs=True,
    )
    rows: list[dict[str, Any]] = []
    for index in range(len(dataset)):
        item = dataset[index]
        row = {key: item[key][0] for key in ("actions", "rewards", "dones")}
        row |= {f"{part}/{key}": value[0] for part in ("obs", "next_obs") for key, value in item[part].items()}
        rows.append(row)
    arrays: dict[str, Any] = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    np.savez(found, **arrays)


if __name__ == "__main__":
    read(*sys.argv[1:])
