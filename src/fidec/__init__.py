"""Offline reinforcement learning with flow policies, refined inside a Fisher trust region.

The public names are imported when first used, so that worker processes and `--help` stay free of JAX.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Batch": "fidec.types",
    "FidecError": "fidec.errors",
    "OfflineDataset": "fidec.data",
    "Policy": "fidec.train.policy",
    "Spec": "fidec.types",
    "check_dataset": "fidec.data",
    "compare": "fidec.report.compare",
    "dataset_from_arrays": "fidec.data",
    "evaluate": "fidec.api",
    "export_policy": "fidec.export.run",  # `fidec.export` is the package
    "fit": "fidec.api",
    "load_dataset": "fidec.data",
    "load_policy": "fidec.train.policy",
    "make_algorithm": "fidec.algos:make",  # `fidec.make` is the package that makes data
    "resume": "fidec.train.run",
}
__all__ = [
    "Batch",
    "FidecError",
    "OfflineDataset",
    "Policy",
    "Spec",
    "check_dataset",
    "compare",
    "dataset_from_arrays",
    "evaluate",
    "export_policy",
    "fit",
    "load_dataset",
    "load_policy",
    "make_algorithm",
    "resume",
]

if TYPE_CHECKING:
    from fidec.algos import make as make_algorithm
    from fidec.api import evaluate as evaluate
    from fidec.api import fit as fit
    from fidec.data import OfflineDataset as OfflineDataset
    from fidec.data import check_dataset as check_dataset
    from fidec.data import dataset_from_arrays as dataset_from_arrays
    from fidec.data import load_dataset as load_dataset
    from fidec.errors import FidecError as FidecError
    from fidec.export.run import export_policy as export_policy
    from fidec.report.compare import compare as compare
    from fidec.train.policy import Policy as Policy
    from fidec.train.policy import load_policy as load_policy
    from fidec.train.run import resume as resume
    from fidec.types import Batch as Batch
    from fidec.types import Spec as Spec


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module, _, attribute = _PUBLIC[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module 'fidec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
