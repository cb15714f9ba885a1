"""The free memory of this machine, and the error for data that does not fit into it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fidec.errors import DataError


def free_host_memory() -> float:
    """Free bytes of the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):  # no such file outside Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def unreadable(path: str | Path, error: Exception, damaged: DataError) -> Exception:
    """The error for a file that a parser could not read. Without memory nothing is wrong with the file."""
    if isinstance(error, MemoryError):
        return MemoryError(*error.args)
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return MemoryError(f"reading {path}: {error.strerror or error}")
    return damaged


@contextmanager
def naming_memory(source: str) -> Iterator[None]:
    """Turn a MemoryError into a DataError that says what was asked for and what there is."""
    try:
        yield
    except MemoryError as error:
        asked = str(error).rstrip(".") or "an array could not be allocated"
        raise DataError(
            f"{source}: the data does not fit into memory: {asked}; {free_host_memory() / 1e9:.1f} GB are free. "
            "Close other programs, use fewer rows, or store the data in .npz files: large arrays stay on the disk."
        ) from error
