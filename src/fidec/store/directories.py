"""Directories that are replaced as a whole, and read while another process replaces them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fidec.errors import RunError
from fidec.store.files import exists, hidden, nothing, opened, remove, rename

RENAME_EXCHANGE = 2  # of Linux: renameat2(2)
ATTEMPTS = 100

T = TypeVar("T")


@contextlib.contextmanager
def replacing_directory(final: Path, verify: Callable[[], None] = nothing) -> Iterator[Path]:
    """A new directory to fill in the block. After the block it takes the place of `final` as a whole.

    `verify` may raise an error before anything is changed, and again before the new directory becomes visible.

    On Linux this is one step, so that `final` is never missing. Elsewhere it takes two renames. An error undoes the
    first one. After a crash `restore_directory` does so, or the next call.
    """
    if verify is nothing:
        final.parent.mkdir(parents=True, exist_ok=True)
    # Its own name: a process that was taken for dead may still be writing under another one.
    name, temporary = Path(final.name), Path(f".tmp-{secrets.token_hex(4)}-{final.name}")
    former, exchanged = hidden(name, "old"), False
    with opened(final.parent, verify) as parent:
        try:
            restore_directory(name, parent)
            for leftover in os.listdir(parent):
                if re.fullmatch(rf"\.tmp-([0-9a-f]{{8}}-)?{re.escape(final.name)}", leftover):
                    remove(Path(leftover), parent)
            remove(former, parent)
            os.mkdir(temporary, dir_fd=parent)
            yield final.parent / temporary
            verify()
            exchanged = exists(name, parent) and _exchange(temporary, name, parent)
            if not exchanged:
                if exists(name, parent):
                    rename(name, former, parent)
                rename(temporary, name, parent)
            os.fsync(parent)
        except BaseException:
            with contextlib.suppress(OSError):
                if exchanged:
                    _exchange(temporary, name, parent)
                restore_directory(name, parent)
            with contextlib.suppress(OSError):
                remove(temporary, parent)
            verify()  # its error says why the path in the block led nowhere
            raise
        for left in (former, temporary):  # after an exchange the latter is the earlier directory
            with contextlib.suppress(OSError):
                remove(left, parent)


def restore_directory(final: Path, parent: int | None = None) -> None:
    """Give the earlier directory its name back if a replacement ended between its two renames."""
    former = hidden(final, "old")
    if exists(former, parent) and not exists(final, parent):
        rename(former, final, parent)


def _exchange(first: Path, second: Path, parent: int) -> bool:
    """Exchange the names of two directories in one step; False if this system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return renameat2(parent, os.fsencode(first), parent, os.fsencode(second), RENAME_EXCHANGE) == 0


def read_directory(path: Path, read: Callable[[], T]) -> T:
    """The result of `read`, which reads several files of a directory that another process may replace meanwhile.

    If the directory at `path` is another one afterwards, the files may belong to two directories: it is read again.
    The open descriptor keeps the number of the first directory from being given to a new one.
    """
    for _ in range(ATTEMPTS):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # between two renames, or there is none
            time.sleep(0.01)
            continue
        status = os.fstat(descriptor)
        try:
            result = read()
            if is_at(status, path):
                return result
        except (RunError, OSError):
            if is_at(status, path):
                raise
        finally:
            os.close(descriptor)
    raise RunError(f"{path} is replaced too often to be read, or is missing. Try again later.")


def is_at(status: os.stat_result, path: Path) -> bool:
    """Whether what had this status, and is kept open, is still what is at `path`."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(status, os.stat(path))
    return False
