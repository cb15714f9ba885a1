"""A data set as a LeRobotDataset v3.0, with images as PNG in the tables. Written with pyarrow alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.data.cameras import png
from fidec.data.convert.rows import Rows, moved
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import blocks
from fidec.data.sources.lerobot import STATE, VIDEO_PATHS
from fidec.errors import DataError
from fidec.extras import require
from fidec.parts import named
from fidec.store.files import write_json

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_FILE = "chunk-000/file-000.parquet"
_QUANTILES = (1, 10, 50, 90, 99)


def feature_names(dataset: OfflineDataset) -> dict[str, str]:
    """{part of the observation, as `named` calls it: feature}."""
    found = {}
    for key, array in named("observations", dataset.observations).items():
        name = key.partition("/")[2]
        if array.dtype == np.uint8 and len(array.shape) == 4:
            found[key] = f"observation.images.{name or 'image'}"
        else:
            found[key] = STATE if name in ("", "state") else f"observation.{name}"
    return found


def image_parts(dataset: OfflineDataset) -> list[tuple[str, str]]:
    """(name of the camera, part) of all images."""
    return [
        (feature.rpartition(".")[2], key)
        for key, feature in feature_names(dataset).items()
        if feature.startswith("observation.images.")
    ]


def write(rows: Rows, folder: Path, progress: Progress, fps: int) -> tuple[list[str], list[str]]:
    dataset, features = rows.dataset, feature_names(rows.dataset)
    columns = named("observations", dataset.observations)
    _check(rows, columns, fps)
    images = {key for _, key in image_parts(dataset)}
    kinds: dict[str, dict[str, Any]] = {}
    for key, feature in features.items():
        shape, names = list(columns[key].shape[1:]), None
        if key in images:
            names = ["height", "width", "channels"]
        kinds[feature] = {"dtype": "image" if key in images else "float32", "shape": shape, "names": names}
    single = _single(rows, fps)
    kinds["action"] = {"dtype": "float32", "shape": [rows.actions.shape[1]], "names": None}
    kinds |= {key: {"dtype": str(array.dtype), "shape": [1], "names": None} for key, array in single.items()}
    _write_data(rows, folder / "data" / _FILE, features, images, kinds, single, progress)
    _write_meta(rows, folder / "meta", kinds, fps)
    statistics = {"action": _statistics(rows.actions), **{key: _statistics(array) for key, array in single.items()}}
    for key, feature in features.items():
        kept = columns[key]
        statistics[feature] = _image_statistics(kept) if key in images else _statistics(np.asarray(kept))
    write_json(folder / "meta" / "stats.json", statistics)
    return _lost(rows, features, images), _notes(rows, fps)


def _check(rows: Rows, columns: dict[str, Any], fps: int) -> None:
    name = rows.dataset.name
    rows.check_linked("LeRobot")
    if not 1 <= fps <= 1000:
        raise DataError(f"fps is {fps}; expected 1 to 1000 frames a second.")
    for key, array in columns.items():
        image = array.dtype == np.uint8 and len(array.shape) == 4 and array.shape[3] == 3
        if not image and len(array.shape) != 2:
            raise DataError(f"{name}: {key} has the shape {array.shape[1:]}; LeRobot has vectors and colour images.")


def _single(rows: Rows, fps: int) -> dict[str, np.ndarray]:
    """Columns with one number for each row."""
    frame = np.concatenate([np.arange(stop - start) for start, stop in rows.bounds])
    episode = np.repeat(np.arange(len(rows.bounds)), [stop - start for start, stop in rows.bounds])
    found = {
        "next.done": rows.ends,
        "next.truncated": rows.ends & (rows.masks != 0),
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(rows.count),
        "task_index": np.zeros(rows.count, np.int64),
    }
    return ({"next.reward": rows.rewards} if rows.dataset.has_rewards else {}) | found


def _write_data(
    rows: Rows,
    path: Path,
    features: dict[str, str],
    images: set[str],
    kinds: dict[str, dict[str, Any]],
    single: dict[str, np.ndarray],
    progress: Progress,
) -> None:
    pa = require("pyarrow", "tables", "LeRobot's format")
    parquet = require("pyarrow.parquet", "tables", "LeRobot's format")
    path.parent.mkdir(parents=True)
    writer = None
    for start, stop in rows.blocks():
        observed = rows.observed(start, stop)
        table: dict[str, Any] = {}
        for key, feature in features.items():
            if key in images:
                pictures = [{"bytes": png(image), "path": None} for image in observed[key]]
                table[feature] = pa.array(pictures, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
            else:
                table[feature] = _vectors(pa, observed[key])
        table["action"] = _vectors(pa, rows.actions[start:stop])
        table |= {key: pa.array(array[start:stop]) for key, array in single.items()}
        block = pa.table(table).replace_schema_metadata({"huggingface": json.dumps(_hub_features(kinds))})
        writer = writer or parquet.ParquetWriter(path, block.schema)
        writer.write_table(block)
        progress.update(stop)
    if writer is not None:
        writer.close()


def _vectors(pa: Any, array: np.ndarray) -> Any:
    """A list for each row; LeRobot stores vectors of one number as numbers."""
    flat = pa.array(np.ascontiguousarray(array, np.float32).reshape(-1))
    return flat if array.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, array.shape[1])


def _hub_features(kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The types by which the package `datasets` reads a table."""
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        value: dict[str, Any] = {"dtype": kind["dtype"], "_type": "Value"}
        if kind["dtype"] == "image":
            value = {"_type": "Image"}
        elif kind["shape"] != [1]:
            value = {"feature": value, "length": kind["shape"][0], "_type": "List"}
        found[name] = value
    return {"info": {"features": found}}


def _write_meta(rows: Rows, folder: Path, kinds: dict[str, dict[str, Any]], fps: int) -> None:
    pa = require("pyarrow", "tables", "LeRobot's format")
    parquet = require("pyarrow.parquet", "tables", "LeRobot's format")
    bounds, task = rows.bounds, rows.dataset.name
    (folder / "episodes" / _FILE).parent.mkdir(parents=True)
    starts, stops = np.array(bounds).T
    zeros = np.zeros(len(bounds), np.int64)
    episodes = {
        "episode_index": np.arange(len(bounds)),
        "tasks": [[task]] * len(bounds),
        "length": stops - starts,
        "dataset_from_index": starts,
        "dataset_to_index": stops,
        **dict.fromkeys(
            ("data/chunk_index", "data/file_index", "meta/episodes/chunk_index", "meta/episodes/file_index"), zeros
        ),
    }
    parquet.write_table(pa.table(episodes), folder / "episodes" / _FILE)
    # LeRobot reads this table with pandas, and finds a task by the index.
    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    index = {"index_columns": ["task"], "column_indexes": [], "columns": described, "pandas_version": "2.0.0"}
    tasks = pa.table({"task_index": np.zeros(1, np.int64), "task": [task]})
    parquet.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(index)}), folder / "tasks.parquet")
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(bounds),
        "total_frames": rows.count,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(bounds)}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATHS["v3"],
        "features": kinds,
    }
    write_json(folder / "info.json", info)


def _statistics(array: np.ndarray) -> dict[str, Any]:
    values = array.reshape(len(array), -1).astype(np.float64)
    found = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
    found |= {f"q{q:02d}": np.percentile(values, q, axis=0) for q in _QUANTILES}
    return {key: value.tolist() for key, value in found.items()} | {"count": [len(values)]}


def _image_statistics(images: Any) -> dict[str, Any]:
    """Of each channel, in [0, 1], from the counts of all 256 levels."""
    counts = np.zeros((3, 256), np.int64)
    for block in blocks(images):
        counts += [np.bincount(block[..., channel].reshape(-1), minlength=256) for channel in range(3)]
    levels, share = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
    mean = share @ levels
    there = [levels[row > 0] for row in counts]
    found = {
        "min": np.array([each[0] for each in there]),
        "max": np.array([each[-1] for each in there]),
        "mean": mean,
        "std": np.sqrt(np.maximum(share @ levels**2 - mean**2, 0)),
    }
    below = np.cumsum(share, axis=1)
    found |= {f"q{q:02d}": levels[np.argmax(below >= q / 100, axis=1)] for q in _QUANTILES}
    return {key: value.reshape(3, 1, 1).tolist() for key, value in found.items()} | {"count": [len(images)]}


def _lost(rows: Rows, features: dict[str, str], images: set[str]) -> list[str]:
    dataset, lost = rows.dataset, rows.lost_masks("LeRobot")
    final = dataset.episodes[:, 1] - 1
    ended = final[dataset.masks[final] == 0]
    after = int(moved(dataset, ended).sum()) if len(ended) else 0
    if after:
        lost.append(f"the state after the end of the task, in {after} episodes. Its value is never used.")
    vectors = [feature for key, feature in features.items() if key not in images]
    if len(vectors) > 1 or vectors not in ([], [STATE]):
        lost.append(
            f"the parts of the state: {', '.join(vectors)} are features of their own, and read as one vector."
        )
    return lost


def _notes(rows: Rows, fps: int) -> list[str]:
    notes = [f"time: {fps} frames a second were written (--fps)."]
    if rows.last.any():
        notes.append(
            f"{int(rows.last.sum())} episodes that were cut have one frame more: their last state, with the last "
            "action repeated."
        )
    if rows.dataset.action_low is not None:
        low, high = (
            " ".join(f"{v:g}" for v in ends or ()) for ends in (rows.dataset.action_low, rows.dataset.action_high)
        )
        notes.append(f"LeRobot stores no action bounds: load it with --action-low {low} --action-high {high}.")
    return notes
