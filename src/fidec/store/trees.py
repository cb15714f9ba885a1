"""Trees of arrays as safetensors files. The name of an array is its path in the tree."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fidec.errors import CheckpointError
from fidec.store import files

_CODES = {"BOOL": "?", "F16": "f2", "F32": "f4", "F64": "f8", "BF16": ml_dtypes.bfloat16}
_CODES |= {"U8": "u1", "U16": "u2", "U32": "u4", "U64": "u8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
_DTYPES = {name: np.dtype(code) for name, code in _CODES.items()}  # by their names in safetensors


def _paths(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Leaves with their paths as text ("critic/params/Dense_0/kernel"), and the structure of the tree."""
    import jax  # here, so that reading a run's logs does not import jax

    def escape(entry: Any) -> str:  # as in JSON pointers, so that {"a/b": x} and {"a": {"b": x}} differ
        return jax.tree_util.keystr((entry,), simple=True).replace("~", "~0").replace("/", "~1")

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [("/".join(escape(entry) for entry in path), leaf) for path, leaf in leaves]
    seen = {"__metadata__"}  # reserved by safetensors
    for name, _ in named:
        if name in seen:
            raise CheckpointError(f"the state has two leaves called {name!r}, or the name is reserved")
        seen.add(name)
    return named, structure


def names(tree: Any) -> set[str]:
    """The paths of the leaves."""
    return {name for name, _ in _paths(tree)[0]}


def flatten_tree(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of an array-only pytree as NumPy arrays on the host, keyed by path."""
    flat = {}
    for name, leaf in _paths(tree)[0]:
        dtype = getattr(leaf, "dtype", None)
        if not isinstance(dtype, np.dtype) or dtype not in _DTYPES.values():
            raise CheckpointError(
                f"the state's leaf {name!r} is {dtype or type(leaf).__name__}, which cannot be stored; "
                "a state holds arrays of numbers or booleans only"
            )
        flat[name] = np.asarray(leaf, order="C")
    return flat


def unflatten_like(template: Any, flat: Mapping[str, np.ndarray]) -> Any:
    """Put arrays back into the structure of `template`, whose leaves have a shape and a dtype.

    The leaves are NumPy arrays. Every leaf must be there with its shape and dtype, and nothing else may be.
    """
    import jax

    named, structure = _paths(template)
    wanted = dict(named)
    for name in wanted:
        if name not in flat:
            raise CheckpointError(f"the stored state has no leaf {name!r}, which this configuration needs")
    for name in flat:
        if name not in wanted:
            raise CheckpointError(f"the stored state has a leaf {name!r} that this configuration lacks")
    for name, leaf in wanted.items():
        array = flat[name]
        if tuple(array.shape) != tuple(leaf.shape):
            raise CheckpointError(
                f"leaf {name!r} is stored with shape {tuple(array.shape)}, expected {tuple(leaf.shape)}"
            )
        if array.dtype != leaf.dtype:
            raise CheckpointError(f"leaf {name!r} is stored as {array.dtype}, expected {leaf.dtype}")
    return jax.tree_util.tree_unflatten(structure, [flat[name] for name in wanted])


def describe_non_finite(flat: Mapping[str, np.ndarray]) -> str | None:
    """The first leaf that holds NaN or infinity, in words; None if there is none."""
    for name, array in flat.items():
        if array.dtype.kind not in "biu" and not np.isfinite(array).all():
            count = int(np.size(array) - np.isfinite(array).sum())
            return f"leaf {name!r} holds {count} non-finite number{'s' if count > 1 else ''} of {array.size}"
    return None


def save_tree(path: str | Path, tree: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write an array-only pytree to one safetensors file, atomically."""
    save_flat(path, flatten_tree(tree), metadata)


def save_flat(
    path: str | Path,
    flat: dict[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    verify: Callable[[], None] = files.nothing,
) -> None:
    """Write what `flatten_tree` gave, as `files.write_whole`. Equal arrays and metadata make equal bytes."""
    from safetensors.numpy import save

    # One entry: safetensors writes several in an order that changes from call to call.
    header = {"fidec": json.dumps(files.to_builtin(metadata or {}), sort_keys=True)}
    files.atomic_write(path, save(flat, header), verify)


def load_tree(path: str | Path, template: Any) -> Any:
    """Read what `save_tree` wrote into the structure of `template` (leaves: `jax.ShapeDtypeStruct`)."""
    try:
        return unflatten_like(template, load_flat(path))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def load_flat(path: str | Path) -> dict[str, np.ndarray]:
    """Every array of a safetensors file, keyed by path. Verify the manifest first."""
    from safetensors import SafetensorError, deserialize

    try:
        entries = deserialize(files.read_bytes(path))
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
    flat = {}
    for name, entry in entries:  # not safetensors.numpy.load, which does not know bfloat16
        if entry["dtype"] not in _DTYPES:
            raise CheckpointError(f"{path}: array {name!r} has type {entry['dtype']}, which fidec never writes")
        flat[name] = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return flat
