"""Exclusive locks on files. The kernel releases a lock when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout, lock_descriptor

from fidec.errors import BusyError, RunError
from fidec.store import files
from fidec.store.schema import parse_json


def acquire(path: str | Path) -> FileLock:
    """Take the lock on the file `path`, which is created if need be; `BusyError` names the process that holds it.

    Call `release` on the result. The file stays: it says who holds the lock.
    """
    lock = _lock(path)
    _attempt(lock, timeout=0)
    return lock


@contextlib.contextmanager
def wait_for(path: str | Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock on the file `path`. If another process holds it, call `on_wait` once and wait.

    The file is removed in the end.
    """
    lock = _lock(path)
    try:
        _attempt(lock, timeout=0)
    except BusyError:
        on_wait()
        _attempt(lock, timeout=-1)
    try:
        yield
    finally:
        Path(path).unlink(missing_ok=True)  # before the release: a waiting process notices and creates a new file
        lock.release()


def lock_open_file(file: IO[bytes]) -> bool:
    """Try to lock an open file. A child process that inherits the file keeps the lock until it ends."""
    return lock_descriptor(file.fileno(), blocking=False)


def is_locked(path: str | Path) -> bool:
    """Whether a process holds the lock on a file; False if there is no such file."""
    try:
        with open(path, "rb") as file:
            return not lock_open_file(file)
    except OSError:
        return False


def _lock(path: str | Path) -> FileLock:
    return FileLock(path, thread_local=False, preserve_lock_file=True, on_acquired=_write_owner)


def _attempt(lock: FileLock, timeout: float) -> None:
    path = Path(lock.lock_file)
    try:
        with files.writing(path, "the lock"):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout)
    except Timeout:
        raise BusyError(f"{path.parent} is in use by {_owner(path)}. Wait for it, or stop it first.") from None
    except OSError as error:
        raise RunError(
            f"{path} cannot be locked: {error.strerror or error}. Locks need write permission and a file system "
            "with flock. Choose another directory."
        ) from error


def _write_owner(descriptor: int) -> None:
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    with contextlib.suppress(OSError):  # only messages need it, so a full disk does not matter
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(path: Path) -> str:
    try:
        owner = parse_json(path.read_bytes())
        return f"process {int(owner['pid'])} on host {owner['host']!s}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
