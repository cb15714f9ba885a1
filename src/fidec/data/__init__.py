"""Data: sources -> `OfflineDataset`, checks, transforms, batches. `transforms` tells the way of a row in its order.

Nothing here imports jax but `replay` and `batches`, which lay data on the device.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fidec.data.arrays import dataset_from_arrays
    from fidec.data.check import check_dataset
    from fidec.data.dataset import OfflineDataset
    from fidec.data.source import load_dataset

__all__ = ["OfflineDataset", "check_dataset", "dataset_from_arrays", "load_dataset"]
_HOMES = dict(zip(__all__, ("dataset", "check", "arrays", "source"), strict=True))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fidec.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
