"""Directories that are replaced as a whole, and read while another process replaces them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from fidec.errors import RunError
from fidec.store.files import fsync_directory, hidden, remove

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: <fcntl.h> and renameat2(2)
ATTEMPTS = 100

T = TypeVar("T")


@contextlib.contextmanager
def replacing_directory(final: Path, verify: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """A new directory to fill in the block. After the block it takes the place of `final` as a whole.

    `verify` may raise an error before anything is changed, and again before the new directory becomes visible.

    On Linux this is one step, so that `final` is never missing. Elsewhere it takes two renames. An error undoes the
    first one. After a crash `restore_directory` does so, or the next call.
    """
    # Its own name: a process that was taken for dead may still be writing under another one.
    temporary, former = hidden(final, f"tmp-{secrets.token_hex(4)}"), hidden(final, "old")
    exchanged = False
    verify()
    try:
        restore_directory(final)
        for leftover in final.parent.glob(".tmp-*") if final.parent.is_dir() else ():
            if re.fullmatch(rf"\.tmp-([0-9a-f]{{8}}-)?{re.escape(final.name)}", leftover.name):
                remove(leftover)
        remove(former)
        temporary.mkdir(parents=True)
        yield temporary
        verify()
        exchanged = final.exists() and _exchange(temporary, final)
        if not exchanged:
            if final.exists():
                os.rename(final, former)
            os.rename(temporary, final)
        fsync_directory(final.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            if exchanged:
                _exchange(temporary, final)
            restore_directory(final)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(former, ignore_errors=True)
    shutil.rmtree(temporary, ignore_errors=True)  # the earlier directory after an exchange


def restore_directory(final: Path) -> None:
    """Give the earlier directory its name back if a replacement ended between its two renames."""
    former = hidden(final, "old")
    if former.exists() and not final.exists():
        os.rename(former, final)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories in one step; False if this system or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    return renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0


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
        try:
            result = read()
            if _is_at(descriptor, path):
                return result
        except (RunError, OSError):
            if _is_at(descriptor, path):
                raise
        finally:
            os.close(descriptor)
    raise RunError(f"{path} is replaced too often to be read, or is missing. Try again later.")


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open directory is still the one at `path`."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False
