"""Batches for a training loop: chunks of successive steps, drawn on the device or on the host.

The rows of a batch are a function of the seed and the step, so both draw the same chunks and give the same bits. Data
that is too large for the device stays in memory or in its file; a thread gathers the rows of the next chunk while the
device works on this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.data.dataset import OfflineDataset
from fidec.data.mapped import room_for
from fidec.data.memory import free_host_memory
from fidec.data.replay import check_columns
from fidec.data.sampling import (
    Drawable,
    Mixture,
    Sampling,
    Source,
    drawn,
    finish,
    gather,
    host_source,
    parts,
    row_numbers,
    source_keys,
)
from fidec.types import ArrayLike, Batch, PRNGKey

CHUNK_BYTES = 2**26  # of rows that are drawn at once
CHUNK_STEPS = 256


class Chunk(NamedTuple):
    """The drawn rows of successive steps: entry i of each column belongs to step `first` + i."""

    rows: Batch
    first: ArrayLike


class Feed(Protocol):
    """Chunks of steps. All have the shapes of `example`."""

    example: Chunk

    def at(self, step: int) -> tuple[Chunk, int]:
        """The chunk with this step, and the first step after it."""
        ...

    def close(self) -> None:
        """Stop the background thread."""


class DeviceFeed:
    """Chunks drawn on the device, from data in its memory."""

    def __init__(self, data: Drawable, seed: int, batch_size: int, sampling: Sampling):
        self._key = rng.stream(seed, "batch")
        one = partial(drawn, count=batch_size, settings=sampling)
        self.steps, self.example = _layout(jax.eval_shape(one, data, self._key))
        self._draw = partial(_draw, count=batch_size, settings=sampling, steps=self.steps)
        self.data = data
        self._now: tuple[int, Chunk] | None = None

    def at(self, step: int) -> tuple[Chunk, int]:
        first = step - step % self.steps
        if self._now is None or self._now[0] != first:
            self._now = None  # free its memory for the next
            self._now = first, Chunk(self._draw(self.data, self._key, np.int32(first)), np.int32(first))
        return self._now[1], first + self.steps

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnames=("count", "settings", "steps"))  # one program for the feeds of several runs
def _draw(data: Drawable, key: PRNGKey, first: Any, *, count: int, settings: Sampling, steps: int) -> Batch:
    return jax.vmap(partial(drawn, data, count=count, settings=settings))(_step_keys(key, first, steps))


class HostFeed:
    """Chunks gathered on the host, from one source or from the two of a mixture, in that order."""

    def __init__(self, sources: Sequence[Source], seed: int, batch_size: int, sampling: Sampling):
        self._sources, self._sampling = sources, sampling
        if len(sources) == 2:
            check_columns(sources[0].rows, sources[1].rows, ("the data", "the buffer"))
        row = _take(sources[0], np.zeros(1, np.int32), sampling)
        shapes = jax.tree.map(lambda column: jax.ShapeDtypeStruct((batch_size, *column.shape[1:]), column.dtype), row)
        self.steps, self.example = _layout(shapes)
        counts = (batch_size,) if len(sources) == 1 else parts(batch_size, sampling.fraction)
        sizes = [len(source.rows.rewards) for source in sources]

        def numbers(key: PRNGKey) -> list[jax.Array]:
            keys = source_keys(key)[: len(sources)]
            return [row_numbers(*each) for each in zip(keys, counts, sizes, strict=True)]

        self._key = rng.stream(seed, "batch")
        self._numbers = jax.jit(lambda key, at: jax.vmap(numbers)(_step_keys(key, at, self.steps)))
        self._thread = ThreadPoolExecutor(1, "fidec-feed")
        self._coming: dict[int, Future[Chunk]] = {}
        self._now: tuple[int, Chunk] | None = None

    def at(self, step: int) -> tuple[Chunk, int]:
        first = step - step % self.steps
        if self._now is None or self._now[0] != first:
            self._now = None  # free its memory for the chunk after the next
            ready = self._coming.pop(first, None) or self._thread.submit(self._chunk, first)
            self._now = first, ready.result()
            self._coming = {first + self.steps: self._thread.submit(self._chunk, first + self.steps)}
        return self._now[1], first + self.steps

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _chunk(self, first: int) -> Chunk:
        with jax.default_device(host_device()):
            numbers = [np.asarray(each) for each in self._numbers(self._key, np.int32(first))]
        rows = [_take(source, each, self._sampling) for source, each in zip(self._sources, numbers, strict=True)]
        if len(rows) == 2:
            rows = [jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *rows)]
        return Chunk(jax.device_put(rows[0]), np.int32(first))


class Data(NamedTuple):
    """The data of one or more runs: one source, or two that are mixed, on the device or on the host."""

    sources: list[Source]
    on_device: bool

    @classmethod
    def of(
        cls,
        datasets: Sequence[OfflineDataset],
        sampling: Sampling,
        *,
        discount: float | None = None,
        limit: float | None = None,
        beside: int = 0,
    ) -> Data:
        """On the device if the data and the bytes `beside` it are at most `limit` bytes, else on the host.

        The default limit is half of the free memory. A `discount` adds returns.
        """
        sources = [host_source(dataset, sampling, discount) for dataset in datasets]
        size = sum(dataset.nbytes for dataset in datasets) + beside
        on_device = size <= (free_memory() / 2 if limit is None else limit)
        return cls([jax.tree.map(jnp.asarray, source) for source in sources] if on_device else sources, on_device)

    def feed(self, seed: int, batch_size: int, sampling: Sampling, proposals: Sequence[Any] = ()) -> Feed:
        """The batches of a run. `proposals` are a column of each source."""
        sources = list(self.sources)
        for number, column in enumerate(proposals):
            column = jax.tree.map(jnp.asarray, column) if self.on_device else column
            sources[number] = sources[number]._replace(rows=sources[number].rows._replace(proposals=column))
        if not self.on_device:
            return HostFeed(sources, seed, batch_size, sampling)
        return DeviceFeed(sources[0] if len(sources) == 1 else Mixture(*sources), seed, batch_size, sampling)


def batch_of(chunk: Chunk, step: Any, key: PRNGKey, sampling: Sampling) -> Batch:
    """The batch of a step, inside compiled code; `key` is the step's own."""
    return finish(jax.tree.map(lambda column: column[step - chunk.first], chunk.rows), key, sampling)


def rows_at(source: Source, numbers: np.ndarray, sampling: Sampling) -> Batch:
    """These rows of a source on the host, as a batch has them but for random shifts."""
    rows = jax.tree.map(jnp.asarray, _take(source, numbers, sampling))
    return finish(rows, rng.stream(0, "batch"), replace(sampling, augment=0.0))


def map_rows(
    function: Callable[[Batch, int], Any],
    source: Source,
    rows: np.ndarray,
    sampling: Sampling,
    *,
    size: int,
    report: Callable[[int], None] = lambda done: None,
    stopped: Callable[[], bool] = lambda: False,
    folder: Path | None = None,
) -> Any:
    """A tree of arrays with one entry for each of these rows of a source on the host.

    They are in main memory. Large ones are in files of the `folder`, if it is given; the files have no name, so
    nothing is left of them when the process ends.

    `function(batch, first)` gives the entries of `size` rows, beginning with rows[first]. The last batch is filled
    with copies of the last row, so all have one shape. `report` is called with the number of finished rows.
    The result is None if `stopped` says so before a batch.
    """
    whole: Any = None
    for first in range(0, len(rows), size):
        if stopped():
            return None
        numbers = rows[np.minimum(np.arange(first, first + size), len(rows) - 1)]
        part = jax.tree.map(np.asarray, function(rows_at(source, numbers, sampling), first))
        if whole is None:
            whole = jax.tree.map(lambda array: room_for((len(rows), *array.shape[1:]), array.dtype, folder), part)
        for every, some in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
            every[first : first + size] = some[: len(rows) - first]
        report(min(first + size, len(rows)))
    return whole


def free_memory() -> float:
    """Free bytes of the device, or of the machine if the device is its CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free_host_memory()


def host_device() -> Any:
    """The CPU, for work while an accelerator is busy; None (the default device) if JAX may not use it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # such as JAX_PLATFORMS=cuda
        return None


def _layout(batch: Batch) -> tuple[int, Chunk]:
    """The number of steps of a chunk and its shapes, for a batch of these shapes."""
    size = sum(column.size * column.dtype.itemsize for column in jax.tree.leaves(batch))
    steps = int(np.clip(CHUNK_BYTES // size, 1, CHUNK_STEPS))
    rows = jax.tree.map(lambda column: jax.ShapeDtypeStruct((steps, *column.shape), column.dtype), batch)
    return steps, Chunk(rows, jax.ShapeDtypeStruct((), np.int32))


def _step_keys(key: PRNGKey, first: Any, steps: int) -> jax.Array:
    """The keys of the batches of these steps; `key` is the root of the stream."""
    return jax.vmap(partial(rng.at, key))(first + jnp.arange(steps, dtype=jnp.int32))


def _take(source: Source, numbers: np.ndarray, sampling: Sampling) -> Batch:
    """Gather rows on the host, for row numbers of any shape, as `sampling.drawn` does on the device."""
    rows = gather(source, numbers.ravel(), sampling, np)
    return jax.tree.map(lambda column: column.reshape(*numbers.shape, *column.shape[1:]), rows)
