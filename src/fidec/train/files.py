"""Files that survive: written whole or not at all, and checked before they are used.

A tree of arrays becomes one safetensors file whose names are the paths of the leaves; a manifest beside it
holds the SHA-256 of every file, because neither safetensors nor orbax notices a flipped bit in an array.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np

from fidec.errors import CheckpointError, RunError

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
_DTYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


# --- the disk -----------------------------------------------------------------------------------------------


def disk_error(error: OSError, path: Path, what: str) -> RunError:
    """The error a user can act on when `what` could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
        free = shutil.disk_usage(place).free
        return RunError(
            f"the disk is full: could not write {what} ({path}), {free / 1e6:.1f} MB are free there. "
            "What was written before is intact. Free some space, then go on with --resume."
        )
    reason = error.strerror or str(error)
    return RunError(
        f"could not write {what} ({path}): {reason}. What was written before is intact. "
        "Check the disk and the permissions of the directory, then go on with --resume."
    )


@contextlib.contextmanager
def writing(path: str | Path, what: str) -> Iterator[None]:
    """Turn the operating system's errors inside the block into a `RunError` that says what to do.

    Blocks may be nested; the outermost one names what the user was waiting for.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error, Path(path), what) from error
    except RunError as error:
        if isinstance(error.__cause__, OSError):
            raise disk_error(error.__cause__, Path(path), what) from error.__cause__
        raise


def fsync_directory(path: str | Path) -> None:
    """A rename is only durable once the directory that holds the name is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def atomic_write(path: str | Path, content: bytes | str) -> None:
    """Write a file so that after a crash at any time it has either its old content or its new one."""
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path, path.name):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        fsync_directory(path.parent)


def remove(path: Path) -> None:
    """Remove a file or a directory, or nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- JSON ---------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NumPy and JAX numbers become Python's, tuples lists, NaN and inf None.

    Narrow floats take their shortest decimal form, so a float32 0.1 is written 0.1 and reads back, as a
    float32, to the very same bits.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and not hasattr(value, "dtype"):
        return value if np.isfinite(value) else None
    if not hasattr(value, "dtype"):
        raise TypeError(f"cannot write {type(value).__name__} {value!r} as JSON")
    array = np.asarray(value)
    if array.ndim:
        return [plain(item) for item in array]
    scalar = array[()]
    if array.dtype == np.bool_:
        return bool(scalar)
    if array.dtype.kind in "iu":
        return int(scalar)
    if not np.isfinite(scalar):
        return None
    return float(str(scalar)) if array.dtype.kind == "f" else float(scalar)


def write_json(path: str | Path, value: Any) -> None:
    atomic_write(path, json.dumps(plain(value), indent=2) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file of a run; `RunError` if it is missing or is not JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing: this is not a complete run directory") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


# --- the manifest -------------------------------------------------------------------------------------------


def write_manifest(directory: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Record size and SHA-256 of every file under `directory`, and `extra`, in its manifest. Call it last."""
    directory = Path(directory)
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name = path.relative_to(directory).as_posix()
        if name != MANIFEST:
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    body = {"format": MANIFEST_FORMAT, "files": files, "extra": plain(dict(extra or {}))}
    atomic_write(directory / MANIFEST, _render_manifest(body))


def verify_manifest(directory: str | Path) -> dict[str, Any]:
    """Check every file of the manifest and the manifest itself; return its `extra`.

    Files that the manifest does not name are ignored. Raises `CheckpointError` naming the file.
    """
    directory = Path(directory)
    body = _read_manifest(directory / MANIFEST)
    for name, entry in body["files"].items():
        path = directory / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"{directory / MANIFEST} names {name!r}, which lies outside the directory")
        try:
            size = path.stat().st_size if path.is_file() else None
            digest = sha256_file(path) if size == entry["bytes"] else None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        if size is None:
            raise CheckpointError(f"{path} is missing")
        if digest is None:
            raise CheckpointError(f"{path} has {size} bytes, its manifest says {entry['bytes']}")
        if digest != entry["sha256"]:
            raise CheckpointError(f"{path} has SHA-256 {digest}, its manifest says {entry['sha256']}")
    return body["extra"]


def _render_manifest(body: dict[str, Any]) -> str:
    """One canonical text: the digest covers the rest, and any other spelling of it is refused."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, sort_keys=True, indent=1) + "\n"


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
        body = json.loads(raw)
        del body["sha256"]
        intact = raw == _render_manifest(body).encode()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError):
        intact = False
        body = {}
    if not intact:
        raise CheckpointError(f"{path} is damaged: its content does not match its own SHA-256")
    if body.get("format") != MANIFEST_FORMAT:
        raise CheckpointError(
            f"{path} has format {body.get('format')}, this fidec reads format {MANIFEST_FORMAT}; "
            "use the version of fidec that wrote it (environment.json of the run names it)"
        )
    return body


# --- trees of arrays ----------------------------------------------------------------------------------------


def _paths(tree: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Leaves with their paths as text ("critic/params/Dense_0/kernel"), and the structure of the tree."""
    import jax  # here, so that reading a run's logs does not import jax

    def escape(entry: Any) -> str:  # as JSON pointers do, so that {"a/b": x} and {"a": {"b": x}} differ
        return jax.tree_util.keystr((entry,), simple=True).replace("~", "~0").replace("/", "~1")

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [("/".join(escape(entry) for entry in path), leaf) for path, leaf in leaves]
    seen = {"__metadata__"}  # reserved by safetensors
    for name, _ in named:
        if name in seen:
            raise CheckpointError(f"the state has two leaves called {name!r}, or the name is reserved")
        seen.add(name)
    return named, structure


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
        found = flat[name]
        if tuple(found.shape) != tuple(leaf.shape):
            raise CheckpointError(
                f"leaf {name!r} is stored with shape {tuple(found.shape)}, expected {tuple(leaf.shape)}"
            )
        if found.dtype != leaf.dtype:
            raise CheckpointError(f"leaf {name!r} is stored as {found.dtype}, expected {leaf.dtype}")
    return jax.tree_util.tree_unflatten(structure, [flat[name] for name in wanted])


def save_tree(path: str | Path, tree: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write an array-only pytree to one safetensors file, atomically."""
    save_flat(path, flatten_tree(tree), metadata)


def save_flat(path: str | Path, flat: dict[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write what `flatten_tree` gave. Equal arrays and metadata make equal bytes."""
    from safetensors.numpy import save

    # One entry: safetensors writes several in an order that changes from call to call.
    header = {"fidec": json.dumps(plain(metadata or {}), sort_keys=True)}
    atomic_write(path, save(flat, header))


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
        entries = deserialize(Path(path).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
    flat = {}
    for name, entry in entries:  # not safetensors.numpy.load, which does not know bfloat16
        if entry["dtype"] not in _DTYPES:
            raise CheckpointError(f"{path}: array {name!r} has type {entry['dtype']}, which fidec never writes")
        flat[name] = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return flat
