"""Exclusive locks on files. The kernel releases a lock when its holder ends, however it ends.

A process that holds a run directory keeps it open, and checks before each write that it is still at its path.

On a file system that other machines can write to, the kernel's lock may not reach them. There a run directory has a
lease as well (`fidec.store.lease`). FIDEC_LOCKS is `auto`, `flock` for locks only, or `lease` for leases only, where
flock is known to do nothing.
"""

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

from fidec.errors import BusyError, ConfigError, RunError
from fidec.store import files, lease
from fidec.store.directories import is_at
from fidec.store.lease import Lease
from fidec.store.schema import parse_json

LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "apfs", "hfs")


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


class GoneError(RunError):
    """The run directory is no longer at the path at which this process opened it."""


class Hold:
    """A run directory that this process holds: it is open, and has a lock, a lease or both.

    While the directory and the lock are open, no others get their numbers.
    """

    def __init__(self, path: Path, directory: int, locked: bool, held: Lease | None, stack: contextlib.ExitStack):
        self._path, self._directory, self._lease, self._stack = path, directory, held, stack
        with files.writing(path, "the lock"):
            self._found = {path.parent: os.fstat(directory)} | ({path: os.stat(path)} if locked else {})

    @property
    def taken_over(self) -> bool:
        """Whether the process that held it before may still be alive."""
        return self._lease is not None and self._lease.taken_over

    def verify(self) -> None:
        """Raise an error if the directory is no longer at its path, or if another process has taken it.

        Call it right before each write. A write relative to a directory that was opened before this call cannot go
        to another run (`fidec.store.files.opened`).
        """
        with files.writing(self._path.parent, "the run directory"):
            there = [is_at(status, path) for path, status in self._found.items()]
        if not all(there):
            raise GoneError(self._describe(moved=not there[0]))
        if self._lease is not None:
            self._lease.verify()

    def release(self) -> None:
        self._stack.close()

    def _describe(self, moved: bool) -> str:
        run, advice = self._path.parent, "This process stops, and writes nothing more to that path."
        if not moved:
            return f"the files in {run} were deleted or replaced: the lock of this process is not there. {advice}"
        where = ""
        with contextlib.suppress(OSError):  # Linux knows where an open directory is
            place = os.readlink(f"/proc/self/fd/{self._directory}")
            where = f" It is now {place}: continue it from its last checkpoint with --resume {place}."
            where = " It was deleted." if place.endswith(" (deleted)") else where
        return f"the run directory is no longer at {run}: it was moved, deleted or replaced.{where} {advice}"


def hold(path: Path) -> Hold:
    """Take the run directory of the lock file `path`; `BusyError` names the process that holds it."""
    locks, held, stack = _locks(), None, contextlib.ExitStack()
    leased = locks == "lease" or (locks == "auto" and is_shared(path.parent))
    try:
        with files.writing(path.parent, "the run directory"):
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, directory)  # not sooner: the thread of the lease uses this number
        if locked := locks != "lease" and not (leased and not _has_flock(path)):
            stack.callback(acquire(path).release)
        if leased:
            held = lease.acquire(path.parent, directory, dead_if_here=locked)
            stack.callback(held.release)
        result = Hold(path, directory, locked, held, stack)
        result.verify()
    except BaseException:
        stack.close()
        raise
    return result


def is_held(path: Path) -> bool:
    """Whether a process holds the run directory of the lock file `path`."""
    if is_locked(path):
        return True
    found = lease.newest(path.parent)
    trusted = _locks() != "lease" and found.here  # then the lock would say so
    return not trusted and lease.is_held(path.parent)


def _locks() -> str:
    locks = os.environ.get("FIDEC_LOCKS", "auto")
    if locks not in ("auto", "flock", "lease"):
        raise ConfigError(f"FIDEC_LOCKS is {locks!r}, expected auto, flock or lease")
    return locks


def is_shared(directory: Path, table: Path = Path("/proc/self/mounts")) -> bool:
    """Whether other machines may write to a directory: True unless it is on a known local file system."""
    try:
        mounts = [line.split() for line in table.read_text().splitlines()]
    except OSError:
        return False  # not Linux
    place = os.path.realpath(directory)
    above = [(len(point), kind) for _, point, kind, *_ in mounts if f"{place}/".startswith(f"{point.rstrip('/')}/")]
    return bool(above) and max(above, key=lambda pair: pair[0])[1] not in LOCAL


def _has_flock(path: Path) -> bool:
    """Whether the file system has flock at all."""
    try:
        with path.open("ab") as file:
            lock_descriptor(file.fileno(), blocking=False)
        return True
    except OSError:
        return False


def lock_open_file(file: IO[bytes]) -> bool:
    """Try to lock an open file. A child process that inherits the file keeps the lock until it ends.

    Where there is no flock, this succeeds, and the lease of the run directory decides.
    """
    try:
        return _locks() == "lease" or lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return True


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
