"""Files: atomic writes, JSON, hashes and manifests.

A manifest holds the SHA-256 of every file of a directory, because safetensors does not notice a flipped bit in an
array.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypedDict

import numpy as np

from fidec.errors import CheckpointError, RunError
from fidec.store.schema import check, parse_json

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1


class Entry(TypedDict):
    """A file, in a manifest or in the index of a replay buffer."""

    bytes: int
    sha256: str


class Manifest(TypedDict):
    format: int
    files: dict[str, Entry]
    extra: dict[str, Any]
    sha256: str


def nothing() -> None:
    """The `verify` of a directory that is not a run's. It may be created, with those above it."""


@contextlib.contextmanager
def opened(directory: str | Path, verify: Callable[[], None] = nothing) -> Iterator[int]:
    """The descriptor of a directory. What is done relative to it stays there, also if the directory is renamed.

    `verify` raises an error if the directory is no longer the one that is meant (`fidec.store.rundir`). It is called
    after the directory was opened, so what replaces the directory later is never changed.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        verify()  # which says more
        raise
    try:
        verify()
        yield descriptor
    finally:
        os.close(descriptor)


def write_whole(path: Path, write: Callable[[IO[bytes]], object], verify: Callable[[], None] = nothing) -> None:
    """Write a file so that after a crash at any time it has either its old content or its new one.

    `verify` may raise an error before anything is changed, and again before the new content becomes visible.
    """
    temporary = Path(f".{path.name}.{os.getpid()}.tmp")
    with opened(path.parent, verify) as directory:
        try:
            remove(temporary, directory)
            opener = partial(os.open, mode=0o666, dir_fd=directory)
            with open(temporary, "xb", opener=opener) as file:  # "x" does not follow a symbolic link
                write(file)
                file.flush()
                os.fsync(file.fileno())
            verify()
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(temporary, directory)
            raise
        os.fsync(directory)


def open_to_append(path: Path, verify: Callable[[], None] = nothing) -> int:
    """The descriptor of a file for reading and appending, created if need be. A symbolic link is not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with opened(path.parent, verify) as directory:
        return os.open(path.name, flags, 0o666, dir_fd=directory)


def make_directory(path: Path, verify: Callable[[], None] = nothing) -> None:
    """Create a directory, unless there is one."""
    if path.is_dir():
        return
    if verify is nothing:
        path.mkdir(parents=True, exist_ok=True)
    with opened(path.parent, verify) as parent:
        if not exists(Path(path.name), parent):
            os.mkdir(path.name, dir_fd=parent)
        os.fsync(parent)


def fsync_directory(path: str | Path, verify: Callable[[], None] = nothing) -> None:
    """Write a directory's entries to the disk. A rename is durable only after this."""
    with opened(path, verify) as descriptor:
        os.fsync(descriptor)


def remove(path: Path, directory: int | None = None) -> None:
    """Remove a file or a directory, or nothing if there is none. `path` may be relative to an open directory."""
    try:
        status = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path, dir_fd=directory)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=directory)


def rename(source: Path, target: Path, directory: int | None = None) -> None:
    """Rename a file or a directory. Both paths may be relative to an open directory."""
    os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)


def exists(path: Path, directory: int | None = None) -> bool:
    """Whether there is such a file or directory. `path` may be relative to an open directory."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path, dir_fd=directory)
        return True
    return False


def hidden(path: Path, kind: str) -> Path:
    """A name beside `path` for what takes its place ("tmp"), what it replaced ("old") or what goes away ("trash")."""
    return path.with_name(f".{kind}-{path.name}")


def has_entries(directory: Path) -> bool:
    """Whether it is a directory that is not empty."""
    return directory.is_dir() and any(directory.iterdir())


def sha256_file(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# What to do about an error of the system, by its number.
_ADVICE = {
    errno.EACCES: "You may not write there. Choose another directory, or change its permissions.",
    errno.EPERM: "This is not allowed there. Choose another directory.",
    errno.EROFS: "Nothing can be written there. Choose another directory.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOTDIR: "A part of the path is a file. Choose another directory.",
    errno.EEXIST: "There is a file of that name. Choose another directory.",
    errno.ENOENT: "No file or directory can be created there. Choose another directory.",
    errno.ELOOP: "A symbolic link is in its place. Remove the link, or choose another directory.",
}


class WriteError(RunError):
    """A file that could not be written. Its cause is the OSError."""


def disk_error(error: OSError, path: Path, what: str) -> WriteError:
    """The error for `what` that could not be written; it says what the user can do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
        free = shutil.disk_usage(place).free
        return WriteError(
            f"the disk is full: could not write {what} ({path}), {free / 1e6:.1f} MB are free there. "
            "Files written before are intact. Free some space and try again; a run goes on with --resume."
        )
    advice = "Check the disk and try again; a run goes on with --resume."
    reason = error.strerror or str(error)
    return WriteError(f"could not write {what} ({path}): {reason}. {_ADVICE.get(error.errno or 0, advice)}")


@contextlib.contextmanager
def writing(path: str | Path, what: str) -> Iterator[None]:
    """Turn an OSError inside the block into a `RunError` that names `what` and says what to do.

    Blocks may be nested. The message then names what the outermost block writes. A RunError of a file that could not
    be read stays as it is.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error, Path(path), what) from error
    except WriteError as error:
        if isinstance(error.__cause__, OSError):
            raise disk_error(error.__cause__, Path(path), what) from error.__cause__
        raise


def atomic_write(path: str | Path, content: bytes | str, verify: Callable[[], None] = nothing) -> None:
    """`write_whole`, with errors that say what to do."""
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    with writing(path, path.name):
        write_whole(path, lambda file: file.write(data), verify)


# --- JSON ---------------------------------------------------------------------------------------------------


def to_builtin(value: Any) -> Any:
    """Convert a value for JSON: NumPy and JAX numbers become Python's, tuples lists, NaN and infinity None.

    Narrow floats take their shortest decimal form. A float32 0.1 is written as 0.1, which reads back to the same
    float32.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_builtin(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(item) for item in value]
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
        return [to_builtin(item) for item in array]
    scalar = array[()]
    if array.dtype == np.bool_:
        return bool(scalar)
    if array.dtype.kind in "iu":
        return int(scalar)
    if not np.isfinite(scalar):
        return None
    return float(str(scalar)) if array.dtype.kind == "f" else float(scalar)


def write_json(path: str | Path, value: Any, verify: Callable[[], None] = nothing) -> None:
    """Write a value as JSON, atomically."""
    atomic_write(path, json.dumps(to_builtin(value), indent=2) + "\n", verify)


def read_json(path: str | Path, schema: Any = dict) -> dict[str, Any]:
    """Read a JSON object; `RunError` if the file is missing or does not fit its `schema` (`fidec.store.schema`)."""
    try:
        value = parse_json(Path(path).read_text(encoding="utf-8"))
        check(value, schema)
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged or was not written by fidec: {error}") from error
    return value


def sha256_json(value: Any) -> str:
    """The SHA-256 of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(to_builtin(value), sort_keys=True).encode()).hexdigest()


def find_json(path: str | Path, schema: Any = dict) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing or does not fit its schema."""
    try:
        return read_json(path, schema)
    except RunError:
        return None


# --- the manifest -------------------------------------------------------------------------------------------


def write_manifest(directory: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Record size and SHA-256 of every file under `directory`, and `extra`, in its manifest. Call it last."""
    directory = Path(directory)
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name = path.relative_to(directory).as_posix()
        if name != MANIFEST:
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    body = {"format": MANIFEST_FORMAT, "files": files, "extra": to_builtin(dict(extra or {}))}
    atomic_write(directory / MANIFEST, render_manifest(body))


def verify_manifest(directory: str | Path) -> dict[str, Any]:
    """Check every file of the manifest and the manifest itself; return its `extra`.

    Files that the manifest does not name are ignored. Raises `CheckpointError` naming the file.
    """
    directory = Path(directory)
    body = parse_manifest(read_bytes(directory / MANIFEST), directory / MANIFEST)
    for name, entry in body["files"].items():
        check_inside(name, directory / MANIFEST)
        verify_file(directory / name, entry, "manifest")
    return body["extra"]


def check_inside(name: str, manifest: str | Path) -> None:
    """Raise `CheckpointError` if a name in a manifest leads out of its directory."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise CheckpointError(f"{manifest} names {name!r}, which lies outside the directory")


def check_schema(path: Path, value: Any, schema: Any) -> None:
    """Raise `CheckpointError`, naming the file, unless a value of a manifest fits its schema."""
    try:
        check(value, schema)
    except ValueError as error:
        raise CheckpointError(f"{path} was not written by fidec: {error}") from error


def verify_file(path: Path, entry: Mapping[str, Any], whose: str) -> None:
    """Raise `CheckpointError` unless the file has the `bytes` and the `sha256` that its manifest or index has."""
    try:
        size = path.stat().st_size if path.is_file() else None
        digest = sha256_file(path) if size == entry["bytes"] else None
    except OSError as error:
        raise unreadable(path, error) from error
    if size is None:
        raise CheckpointError(f"{path} is missing")
    if digest is None:
        raise CheckpointError(f"{path} has {size} bytes, its {whose} says {entry['bytes']}")
    if digest != entry["sha256"]:
        raise CheckpointError(f"{path} has SHA-256 {digest}, its {whose} says {entry['sha256']}")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file; `CheckpointError` if it is missing or cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | Path, error: OSError) -> Exception:
    """The error for a file that cannot be read. Without memory nothing is wrong with the file."""
    if error.errno == errno.ENOMEM:
        return MemoryError(f"reading {path}")
    return CheckpointError(f"{path} cannot be read: {error.strerror or error}")


def render_manifest(body: dict[str, Any]) -> str:
    """The text of a manifest, with a digest of the rest. Any other text with the same content is rejected."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({**body, "sha256": digest}, sort_keys=True, indent=1) + "\n"


def parse_manifest(raw: bytes, where: str | Path) -> dict[str, Any]:
    """What `render_manifest` was given; `CheckpointError` if the text was changed or is of another version."""
    try:
        body = parse_json(raw)
        check(body, Manifest)
        del body["sha256"]
        intact = raw == render_manifest(body).encode()
    except ValueError:
        intact, body = False, {}
    if not intact:
        raise CheckpointError(f"{where} is damaged: its content does not match its own SHA-256")
    if body.get("format") != MANIFEST_FORMAT:
        raise CheckpointError(
            f"{where} has format {body.get('format')}, this fidec reads format {MANIFEST_FORMAT}; "
            "use the version of fidec that wrote it (environment.json of the run names it)"
        )
    return body
