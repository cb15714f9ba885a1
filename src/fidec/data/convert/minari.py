"""A data set in Minari's HDF5 layout, in the directory NAME-v0/data. Written with h5py alone.

main_data.hdf5   episode_0/{observations (T + 1 rows), actions, rewards, terminations, truncations}, episode_1/...
metadata.json    dataset_id, spaces, sizes
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fidec.console import Progress
from fidec.data.convert.rows import Rows, user_actions
from fidec.data.sources.minari import minari_root
from fidec.errors import ConfigError
from fidec.parts import named
from fidec.store.files import write_json

VERSION = "0.5.3"  # the version of the layout


def check_name(out: Path) -> None:
    """Minari finds a data set by the name of its directory."""
    if not re.fullmatch(r"[-_\w.]+-v\d+", out.name):
        raise ConfigError(f"--out {out}: Minari needs a name with a version, such as {out.name or 'mine'}-v0")


def dataset_id(out: Path) -> str:
    """The id below Minari's directory, else the name alone."""
    root, path = minari_root().absolute(), out.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else out.name


def write(rows: Rows, folder: Path, name: str, progress: Progress) -> tuple[list[str], list[str]]:
    dataset = rows.dataset
    rows.check_linked("Minari")
    columns = named("observations", dataset.observations)
    following = named("observations", dataset.next_observations)
    actions = user_actions(dataset)
    data = folder / "data"
    data.mkdir()
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, (start, stop) in enumerate(dataset.episodes.tolist()):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": stop - start})
            for key, array in columns.items():
                last = following[key][stop - 1 : stop]
                group[key] = np.concatenate([array[start:stop], last])
            ended = np.zeros((2, stop - start), bool)
            ended[int(dataset.masks[stop - 1] != 0), -1] = True
            group["actions"], group["rewards"] = actions[start:stop], dataset.rewards[start:stop]
            group["terminations"], group["truncations"] = ended
            progress.update(stop)
    low, high = (
        np.full(actions.shape[1], default) if given is None else np.array(given)
        for given, default in ((dataset.action_low, -1.0), (dataset.action_high, 1.0))
    )
    write_json(
        data / "metadata.json",
        {
            "dataset_id": dataset_id(folder.with_name(name)),
            "minari_version": VERSION,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "total_episodes": len(dataset.episodes),
            "total_steps": dataset.size,
            "observation_space": json.dumps(_space(columns)),
            "action_space": json.dumps(_box("float32", low, high)),
            "algorithm_name": "unknown",
            "author": [],
            "author_email": [],
            "code_permalink": "",
            "description": f"converted by fidec from {dataset.name}",
        },
    )
    lost = rows.lost_masks("Minari")
    if not dataset.has_rewards:
        lost.append("that there are no rewards: Minari needs some, and zeros were written.")
    return lost, []


def _space(columns: dict[str, Any]) -> dict[str, Any]:
    if "observations" in columns:
        return _observation(columns["observations"])
    parts = {key.partition("/")[2]: _observation(array) for key, array in columns.items()}
    return {"type": "Dict", "subspaces": parts}


def _observation(array: Any) -> dict[str, Any]:
    image = array.dtype == np.uint8
    ends = (0, 255) if image else (-np.inf, np.inf)
    shape = array.shape[1:]
    return _box(str(array.dtype), *(np.full(shape, end, np.int64 if image else np.float64) for end in ends))


def _box(dtype: str, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    return {"type": "Box", "dtype": dtype, "shape": list(low.shape), "low": low.tolist(), "high": high.tolist()}
