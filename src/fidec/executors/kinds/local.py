"""Jobs as processes of this machine. Each has its share of the cores and of the GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

from fidec.executors import Executor, Pool, Request, Work
from fidec.launch import launch, share_cores, usable_cores


class LocalPool:
    """Starts jobs with `launch`. Their processes inherit the open logs and so their locks."""

    remote, retries = False, 0

    def __init__(self, request: Request):
        self.slots = request.workers
        self._shares = share_cores(request.workers)
        if request.cpus is not None:
            cores = usable_cores()
            firsts = [slot * request.cpus for slot in range(request.workers)]
            self._shares = [sorted({cores[(f + k) % len(cores)] for k in range(request.cpus)}) for f in firsts]
        self._environs = [gpu_share(slot, request.workers, request.gpus) for slot in range(request.workers)]

    def cores(self, slot: int) -> int:
        return len(self._shares[slot])

    def submit(self, slot: int, work: Work, files: Sequence[IO[bytes]]) -> subprocess.Popen:
        log, *others = files
        return launch(
            *work.argv,
            environ=self._environs[slot],
            cores=self._shares[slot],
            pass_fds=[file.fileno() for file in others],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def batch(self) -> AbstractContextManager[object]:
        return nullcontext()


def gpu_share(slot: int, workers: int, gpus: float | None = None) -> dict[str, str]:
    """Environment variables that give a worker its GPUs, or its part of one.

    Without `gpus`, workers take turns with the GPUs of this machine. CUDA_VISIBLE_DEVICES of the user stays.
    """
    count = count_gpus()
    if gpus == 0:
        return {"CUDA_VISIBLE_DEVICES": ""}
    if not count or "CUDA_VISIBLE_DEVICES" in os.environ:
        return memory_share(1 / gpus if gpus and gpus < 1 else workers)
    if gpus is None:
        return {"CUDA_VISIBLE_DEVICES": str(slot % count)} | memory_share(-(-workers // count))
    if gpus < 1:
        return {"CUDA_VISIBLE_DEVICES": str(int(slot * gpus) % count)} | memory_share(1 / gpus)
    numbers = sorted({(slot * int(gpus) + k) % count for k in range(int(gpus))})
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}


def count_gpus() -> int:
    """The NVIDIA GPUs that this machine, or this container, has. JAX is not started for it."""
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))


def memory_share(workers: float) -> dict[str, str]:
    """Environment variables that share a GPU's memory: by default JAX takes three quarters of it for each process."""
    names = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # JAX accepts only one of them
    if workers <= 1 or any(name in os.environ for name in names):
        return {}
    return {names[0]: f"{0.9 / workers:.3f}"}


@contextmanager
def open_local(request: Request) -> Iterator[Pool]:
    request.refuse("local", "memory", "hours", "address", "settings")
    yield LocalPool(request)


EXECUTOR = Executor(open_local)
