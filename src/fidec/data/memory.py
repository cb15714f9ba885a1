"""Memory of this machine and of the device: what is free, and errors that say what to do if it does not suffice."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidec.errors import DataError, FidecError, OutOfMemoryError

if TYPE_CHECKING:
    from fidec.data.dataset import OfflineDataset


def free_host_memory() -> float:
    """Free bytes of the machine."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):  # no such file outside Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def free_memory() -> float:
    """Free bytes of the device, or of the machine if the device is its CPU."""
    import jax  # here, because data is loaded without JAX

    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_host_memory()


def host_device() -> Any:
    """The CPU, for work while an accelerator is busy; None (the default device) if JAX may not use it."""
    import jax

    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # such as JAX_PLATFORMS=cuda
        return None


@contextmanager
def parsing(path: str | Path, damaged: Callable[[str], DataError]) -> Iterator[None]:
    """Turn what a parser raises on hostile bytes into the error `damaged(its words)`.

    Errors of fidec stay. Without memory nothing is wrong with the file.
    """
    try:
        yield
    except (FidecError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError(f"reading {path}: {error.strerror or error}") from error
        text = " ".join(str(error).split())[:160]
        raise damaged(f"{type(error).__name__}: {text}" if text else type(error).__name__) from error


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


@contextmanager
def memory_errors(batch_size: int, *datasets: OfflineDataset | None) -> Iterator[None]:
    """Turn Python's and XLA's errors while a run trains into an `OutOfMemoryError`."""
    import jax

    def named(where: str, error: Exception) -> OutOfMemoryError:
        size = sum(dataset.nbytes for dataset in datasets if dataset is not None)
        data = f"the data takes {size / 1e9:.1f} GB, " if size else ""
        detail = (str(error).splitlines() or [""])[0][:200]
        return OutOfMemoryError(
            f"not enough memory on {where}{f' ({detail})' if detail else ''}: {data}a batch has {batch_size} rows, "
            f"and {free_memory() / 1e9:.1f} GB are free now. Stop other programs, or start a run with a smaller "
            "--batch-size, with smaller networks, or with a --memory-limit (in GB) below the size of the data, which "
            "is then not copied to the device. A run that was saved goes on with --resume."
        )

    try:
        yield
    except MemoryError as error:
        raise named("this machine", error) from error
    except jax.errors.JaxRuntimeError as error:
        # Inside a compiled program the CPU calls it INTERNAL (jax 0.10).
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise named("the device", error) from error
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise named("this machine", error) from error
