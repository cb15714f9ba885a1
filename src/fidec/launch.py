"""Start Python processes: on a share of the cores, with a share of the threads, in a controlled environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1]  # the directory that holds the package


def launch(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
    threads: int = 0,
    **options: Any,
) -> subprocess.Popen:
    """Run `python -P *arguments`, which finds the same fidec as this process.

    `environ` is added to this process's environment. With `cores` the process may use only these; XLA starts one
    thread per core. `threads` limits the threads of numerical libraries. `options` are those of `subprocess.Popen`.
    """
    environment = {**os.environ, **(environ or {})}
    if threads:
        environment |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
    paths = [str(SOURCE), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with _on_cores(cores):
        return subprocess.Popen([sys.executable, "-P", *arguments], env=environment, **options)


def share_cores(workers: int) -> list[list[int]]:
    """Divide the cores that this process may use among workers. With more workers than cores, some share one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return [cores[slot::workers] or [cores[slot % len(cores)]] for slot in range(workers)]


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """A process that is started inside this block inherits these cores."""
    if not cores or not hasattr(os, "sched_setaffinity"):  # only Linux has it
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
