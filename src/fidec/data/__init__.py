"""Data: sources -> `OfflineDataset`, checks, and the cache of OGBench files.

Nothing here imports jax but `replay` and `sampling`, which lay data on the device.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fidec.data.arrays import dataset_from_arrays
    from fidec.data.cache import data_dir
    from fidec.data.check import Report, check_dataset
    from fidec.data.dataset import OfflineDataset
    from fidec.data.describe import describe_dataset
    from fidec.data.listing import CachedFile, list_cache
    from fidec.data.source import DataSource, load_dataset

_HOMES = {
    "CachedFile": "listing",
    "DataSource": "source",
    "OfflineDataset": "dataset",
    "Report": "check",
    "check_dataset": "check",
    "data_dir": "cache",
    "dataset_from_arrays": "arrays",
    "describe_dataset": "describe",
    "list_cache": "listing",
    "load_dataset": "source",
}

__all__ = [
    "CachedFile",
    "DataSource",
    "OfflineDataset",
    "Report",
    "check_dataset",
    "data_dir",
    "dataset_from_arrays",
    "describe_dataset",
    "list_cache",
    "load_dataset",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"fidec.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
