"""Data sets in numbers, for `fidec data show` and the checker, and the files in the cache, for `fidec data list`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.cache import read_sidecar, search_dirs
from fidec.data.columns import existing_file, is_column
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import extremes
from fidec.data.npz import npz_headers
from fidec.data.sources.hdf5 import open_hdf5
from fidec.errors import DataError
from fidec.parts import map_parts, named


def info_text(value: Any) -> str:
    """A value of `OfflineDataset.info` in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def describe_dataset(dataset: OfflineDataset) -> dict[str, Any]:
    """Facts of a data set that JSON can hold, for `fidec data show`."""
    lengths = np.diff(dataset.episodes, axis=1)[:, 0]
    lowest, highest = extremes(dataset.actions)
    values, counts = np.unique(lengths, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:5]
    ends = dataset.terminals
    returns = np.add.reduceat(dataset.rewards.astype(np.float64), dataset.episodes[:, 0])
    return {
        "name": dataset.name,
        "source": dataset.source,
        "sha256": dataset.sha256,
        "transitions": dataset.size,
        "episodes": len(dataset.episodes),
        "observation_shape": map_parts(lambda array: list(array.shape[1:]), dataset.observations),
        "observation_dtype": map_parts(lambda array: str(array.dtype), dataset.observations),
        "observation_range": map_parts(_range, dataset.observations),
        "action_dim": dataset.actions.shape[1],
        "action_range": [float(lowest.min()), float(highest.max())],
        "action_low": dataset.action_low,
        "action_high": dataset.action_high,
        "episode_length": {
            "min": int(lengths.min()),
            "median": float(np.median(lengths)),
            "max": int(lengths.max()),
            "most_common": [[int(values[i]), int(counts[i])] for i in common],
        },
        "episode_return": {"min": float(returns.min()), "mean": float(returns.mean()), "max": float(returns.max())}
        if dataset.has_rewards
        else None,
        "rewards": _histogram(dataset.rewards) if dataset.has_rewards else [],
        "masked_rows": int((dataset.masks == 0).sum()),
        "ends_of_task": int((ends & (dataset.masks == 0)).sum()),
        "ends_by_cut": int((ends & (dataset.masks != 0)).sum()),
        "mapped": dataset.mapped,
        "megabytes": round(dataset.nbytes / 1e6, 3),
        "info": dict(dataset.info),
    }


def description_text(facts: dict[str, Any]) -> str:
    """The facts of `describe_dataset` as aligned lines."""
    length, ret = facts["episode_length"], facts["episode_return"]
    table = ", ".join(f"{count} of {steps}" for steps, count in length["most_common"])
    units = "" if facts["action_low"] is None else ", rescaled from your bounds"
    place = "if loaded; large arrays stay on the disk" if facts["mapped"] else "in memory"
    rows = {
        "name": facts["name"],
        "source": facts["source"],
        "sha256": facts["sha256"],
        "transitions": f"{facts['transitions']} in {facts['episodes']} episodes, {facts['megabytes']:.3g} MB {place}",
        **_observation_rows(facts),
        "actions": f"{facts['action_dim']} dimensions, {_span(facts['action_range'])}{units}",
        "episode steps": f"{length['min']} to {length['max']}, median {length['median']:g} ({table})",
        "episode return": f"{ret['min']:.4g} to {ret['max']:.4g}, mean {ret['mean']:.4g}" if ret else "no rewards",
        "ends": f"{facts['ends_of_task']} by the task (mask 0), {facts['ends_by_cut']} cut (mask 1)",
        "mask 0": f"{facts['masked_rows']} rows, {share(facts['masked_rows'], facts['transitions'])}",
        **{
            key: info_text(value)
            for key, value in facts["info"].items()
            if key not in ("rows", "transitions", "next_state_rows", "unused_rows") and value is not None
        },
    }
    width = max(15, *map(len, rows))
    lines = [f"{key:<{width}} {value}" for key, value in rows.items()]
    lines += ["rewards"] if facts["rewards"] else []
    lines += [f"  {label:<24} {count:>9}  {share(count, facts['transitions'])}" for label, count in facts["rewards"]]
    return "\n".join(lines)


def _range(array: np.ndarray) -> list[float]:
    low, high = extremes(array)
    return [float(low.min()), float(high.max())]


def _observation_rows(facts: dict[str, Any]) -> dict[str, str]:
    """One row for each part of an observation."""
    columns = [named("observations", facts[f"observation_{name}"]) for name in ("shape", "dtype", "range")]
    return {key: f"{tuple(columns[0][key])} {columns[1][key]}, {_span(columns[2][key])}" for key in columns[0]}


def _histogram(rewards: np.ndarray) -> list[list[Any]]:
    """Counts by value if there are few values, else in ten bins."""
    rewards = rewards[np.isfinite(rewards)]
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) <= 12:
        return [[f"{v:g}", int(c)] for v, c in zip(values, counts, strict=True)]
    counts, edges = np.histogram(rewards.astype(np.float64), bins=10)
    labels = [f"[{a:.4g}, {b:.4g})" for a, b in pairwise(edges)]
    return [[label, int(count)] for label, count in zip(labels, counts, strict=True)]


def _span(pair: list[float]) -> str:
    return f"{pair[0]:.4g} to {pair[1]:.4g}"


def share(part: int, whole: int) -> str:
    """A part of a whole in per cent."""
    return f"{100 * part / whole:.3g} %"


@dataclass(frozen=True)
class CachedFile:
    """A row of `fidec data list`. `rows` and `origin` are None where they are not known."""

    name: str
    path: str
    bytes: int
    rows: int | None
    origin: str | None
    sha256: str | None
    problem: str | None = None


def list_cache(cache_dir: str | Path | None = None) -> list[CachedFile]:
    """The data files of the search directories, by name. Only headers are read."""
    return [_describe(path) for folder in search_dirs(cache_dir) for path in _data_files(folder)]


def _data_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in (".npz", ".hdf5"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror or error}. Check the directory.") from error


def _describe(path: Path) -> CachedFile:
    size, rows, record, problem = 0, None, {}, None
    try:
        size = existing_file(path).stat().st_size
        rows = _rows(path)
        record = read_sidecar(path)
    except DataError as error:
        problem = str(error)
    origin, sha256 = record.get("origin"), record.get("sha256")
    return CachedFile(path.stem, str(path), size, rows, origin, sha256, problem)


def _rows(path: Path) -> int | None:
    if path.suffix == ".npz":
        headers = npz_headers(path)
        shapes = [shape for key, (shape, _) in headers.items() if is_column(key, ("observations",))]
        return shapes[0][0] if shapes and shapes[0] else None
    with open_hdf5(path) as handle:
        shape = getattr(handle.get("observations"), "shape", None)
    return int(shape[0]) if shape else None
