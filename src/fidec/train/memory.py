"""Memory that does not suffice, on the host or on the device, as an error that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from fidec.data import OfflineDataset
from fidec.data.feed import free_memory
from fidec.errors import OutOfMemoryError
from fidec.train.config import RunConfig


@contextmanager
def memory_errors(config: RunConfig, *datasets: OfflineDataset | None) -> Iterator[None]:
    """Turn Python's and XLA's errors inside the block into an `OutOfMemoryError`."""
    try:
        yield
    except MemoryError as error:
        raise _error("this machine", error, config, datasets) from error
    except jax.errors.JaxRuntimeError as error:
        # Inside a compiled program the CPU calls it INTERNAL (jax 0.10).
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise _error("the device", error, config, datasets) from error
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise _error("this machine", error, config, datasets) from error


def _error(where: str, error: Exception, config: RunConfig, datasets: tuple[OfflineDataset | None, ...]) -> Exception:
    size = sum(dataset.nbytes for dataset in datasets if dataset is not None)
    asked = f"the data takes {size / 1e9:.1f} GB, " if size else ""
    detail = (str(error).splitlines() or [""])[0][:200]
    return OutOfMemoryError(
        f"{where} has not enough memory{f' ({detail})' if detail else ''}: {asked}a batch has {config.batch_size} "
        f"rows, and {free_memory() / 1e9:.1f} GB are free now. Stop other programs, or start a run with a smaller "
        "--batch-size, with smaller networks, or with a --memory-limit (in GB) below the size of the data, which is "
        "then not copied to the device. A run that was saved goes on with --resume."
    )
