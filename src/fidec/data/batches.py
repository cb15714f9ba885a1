"""Batches: which rows a step takes, how they are gathered, and where from (stages 6, 7 of `fidec.data.transforms`).

A batch is a pure function of (source, key), and the key of (seed, step), so there is no sampler state: the device and
the host give the same bits. Observations are stored singly, an array or a dictionary of parts. Successive ones are
stacked when they are gathered, and images are shifted in the compiled step. The row numbers do not depend on that.

    row_numbers   which rows
    gather_rows   these rows: frames stacked, windows made, of a source on the device or on the host
    sample_rows   both, for one source, for two, or for a replay buffer
    augment       rewards scaled, next frames stacked, images shifted; in the compiled step

Data that is too large for the device stays in memory or in its file. A thread gathers the rows of the next steps
while the device works on these.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fidec import rng
from fidec.data import replay
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import room_for
from fidec.data.memory import free_memory, host_device
from fidec.data.replay import Replay
from fidec.data.windows import SINGLE, Window, last_rows, sum_rewards, take_window
from fidec.errors import ConfigError
from fidec.ops import images
from fidec.parts import is_image, map_parts
from fidec.types import ArrayLike, Batch, PRNGKey, Spec

# Positions below a step's key. They are large numbers because `jax.random.split` uses small ones.
_SECOND, _SHIFT = zlib.crc32(b"second"), zlib.crc32(b"shift")
# The rows of so many steps are sampled at once.
AHEAD_BYTES, AHEAD_STEPS = 2**26, 256


class Source(NamedTuple):
    """Transitions of whole trajectories in time order; row t's trajectory is starts[t], ..., ends[t]."""

    rows: Batch
    starts: ArrayLike | None = None  # only needed to stack observations
    ends: ArrayLike | None = None  # only needed for windows, whose rewards and masks `rows` then has


class Mixture(NamedTuple):
    """Two sources. Each batch takes a share of both: first the offline rows, then those of the second."""

    offline: Source | Batch
    second: Source | Batch | Replay


class OfflineOnline(NamedTuple):
    """Offline rows and rows that were collected online, sampled as from one ring of `Sampling.capacity` slots.

    The offline rows fill its first slots, new rows the free slots after them. When all slots are full, the newest row
    replaces the oldest, which is an offline row at first. The offline rows are never copied or moved.
    """

    offline: Source | Batch
    online: Replay


# A Batch is a Source without the starts of trajectories.
Samplable = Source | Mixture | OfflineOnline | Replay | Batch


@dataclass(frozen=True)
class Sampling:
    """How batches are made: the static settings."""

    frame_stack: int = 1
    """Successive frames of an image."""
    augment: float = 0.0
    """Probability that a batch of images is shifted."""
    fraction: float = 0.5
    """Share of the second source in a mixture."""
    capacity: int = 0
    """Slots of the ring of offline and online rows."""
    window: Window = SINGLE
    """Steps of a transition."""
    reward_scale: float = 1.0
    """Factor of rewards and returns."""
    history: int = 1
    """Successive vectors of a vector."""

    @classmethod
    def of(
        cls, spec: Spec, frame_stack: int, augment: float, fraction: float, history: int = 1, **others: Any
    ) -> Sampling:
        """For data of this specification. What it has no part for is left at its default."""
        stacked = spec.stacked(frame_stack, history)
        counts = {"frame_stack": stacked.frame_stack, "history": stacked.history}
        return cls(augment=augment if spec.images else 0.0, fraction=fraction, **counts, **others)

    @property
    def stacks(self) -> bool:
        """Whether an observation is made of several."""
        return max(self.frame_stack, self.history) > 1

    def stack_of(self, column: Any) -> int:
        """How many successive rows of a column make an observation."""
        return self.frame_stack if _is_camera(column) else self.history


PLAIN = Sampling()  # rows as they are stored


def host_source(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the host, in memory or mapped from its file, with returns if a discount is given."""
    source = Source(dataset.batch(discount))
    if settings.stacks:
        first, stop = dataset.episodes.T
        source = source._replace(starts=np.repeat(first, stop - first).astype(np.int32))
    if not settings.window.single:
        ends = last_rows(dataset.episodes)
        rewards, masks = sum_rewards(settings.window, dataset.rewards, dataset.masks, ends)
        source = source._replace(rows=source.rows._replace(rewards=rewards, masks=masks), ends=ends)
    return source


def device_source(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the device."""
    return jax.tree.map(jnp.asarray, host_source(dataset, settings, discount))


# --- which rows -----------------------------------------------------------------------------------------------------


def shares(count: int, fraction: float, name: str = "buffer_fraction") -> tuple[int, int]:
    """How many of `count` rows come from the offline source, and how many from the second."""
    second = round(count * fraction)
    if not 0 < second < count:
        raise ConfigError(f"a batch of {count} rows cannot be shared by two data sets at {name} {fraction}")
    return count - second, second


def row_numbers(key: PRNGKey, count: int, size: int) -> Int[Array, "count"]:
    """Which of `size` rows are sampled: uniform, with replacement."""
    return jax.random.randint(key, (count,), 0, size)


def _source_keys(key: PRNGKey) -> tuple[PRNGKey, PRNGKey]:
    """A step's keys for the rows of the first source and for those of the second."""
    return key, rng.at(key, _SECOND)


def _step_keys(key: PRNGKey, first: Any, steps: int) -> jax.Array:
    """The keys of the batches of these steps; `key` is the root of the stream."""
    return jax.vmap(partial(rng.at, key))(first + jnp.arange(steps, dtype=jnp.int32))


# --- a batch --------------------------------------------------------------------------------------------------------


def sample_batch(source: Samplable, key: PRNGKey, count: int, settings: Sampling = PLAIN) -> Batch:
    """`count` transitions, uniform with replacement over each source."""
    return augment(sample_rows(source, key, count, settings), key, settings)


def sample_rows(source: Samplable, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    """The rows of a batch; `augment` makes the batch from them."""
    if isinstance(source, Mixture):
        each = zip(source, _source_keys(key), shares(count, settings.fraction), strict=True)
        first, second = (sample_rows(one, its_key, share, settings) for one, its_key, share in each)
        replay.check_columns(first, second, ("the offline source of a mixture", "the second"))
        return jax.tree.map(lambda *columns: jnp.concatenate(columns), first, second)
    if isinstance(source, OfflineOnline):
        return _sample_ring(source, key, count, settings)
    if isinstance(source, Replay):
        return replay.sample(source, key, count)
    return gather_rows(source, row_numbers(key, count, _size(source)), settings)


def _sample_ring(source: OfflineOnline, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    """Collected row j is in slot (offline rows + j) mod capacity; the other slots hold offline rows."""
    size, filled = _size(source.offline), source.online.filled
    if settings.capacity < size:
        raise ConfigError(f"a ring of {settings.capacity} slots cannot hold the {size} offline rows")
    slots = jax.random.randint(key, (count,), 0, jnp.minimum(size + filled, settings.capacity))
    places = (slots - size) % settings.capacity
    fresh = places < filled
    old = gather_rows(source.offline, jnp.where(fresh, 0, slots), settings)
    new = jax.tree.map(lambda column: column[jnp.where(fresh, places, 0)], source.online.rows)
    replay.check_columns(old, new, ("the offline source", "the replay buffer"))
    return jax.tree.map(lambda a, b: jnp.where(fresh.reshape(-1, *[1] * (a.ndim - 1)), b, a), old, new)


def _size(source: Source | Batch) -> int:
    return (source if isinstance(source, Batch) else source.rows).rewards.shape[0]


def gather_rows(source: Source | Batch, rows: Any, settings: Sampling, xp: Any = jnp) -> Batch:
    """These rows, as a `Replay` stores them. `xp` is jax.numpy, or numpy for a source on the host.

    Observations are stacked. Next observations are single ones, which `augment` stacks, unless the transitions are
    windows: then they are stacked here.
    """
    data, starts, ends = (source, None, None) if isinstance(source, Batch) else source
    window = settings.window
    if settings.stacks and starts is None:
        raise ConfigError(
            "observations cannot be stacked without the starts of trajectories: use batches.device_source"
        )

    def part(column: Any, rows: Any) -> Any:
        count = settings.stack_of(column)
        return column[rows] if count == 1 else images.stack(column, rows, starts, count, xp)

    def observed(rows: Any) -> Any:
        return map_parts(lambda column: part(column, rows), data.observations)

    if window.single:
        batch = jax.tree.map(lambda column: column[rows], data._replace(observations=None))
        return batch._replace(observations=observed(rows))
    if ends is None:
        raise ConfigError("windows need the ends of trajectories: use batches.device_source")
    end = ends[rows]
    last = xp.minimum(rows + (window.n_step - 1), end)
    following = map_parts(lambda column: column[last], data.next_observations)
    return take_window(data, rows, last, end, window.chunk, xp)._replace(
        observations=observed(rows),
        next_observations=_pushed(observed(last), following, settings, xp) if settings.stacks else following,
        proposals=jax.tree.map(lambda column: column[rows], data.proposals),
    )


def _gather_on_host(source: Source, numbers: np.ndarray, sampling: Sampling) -> Batch:
    """The rows of a source on the host, for row numbers of any shape, as `sample_rows` gathers on the device."""
    rows = gather_rows(source, numbers.ravel(), sampling, np)
    return jax.tree.map(lambda column: column.reshape(*numbers.shape, *column.shape[1:]), rows)


def augment(batch: Batch, key: PRNGKey, settings: Sampling) -> Batch:
    """Complete gathered rows on the device: scale rewards, stack next observations, and shift images at random."""
    if settings.reward_scale != 1:
        scale = settings.reward_scale
        returns = None if batch.returns is None else scale * batch.returns
        batch = batch._replace(rewards=scale * batch.rewards, returns=returns)
    if settings.stacks and settings.window.single:
        batch = batch._replace(next_observations=_pushed(batch.observations, batch.next_observations, settings))
    return batch if settings.augment == 0 else _shifted(batch, rng.at(key, _SHIFT), settings.augment)


def _shifted(batch: Batch, key: PRNGKey, probability: float) -> Batch:
    """Shift all images of a row, those of the next observation too, by one offset."""
    leaves, structure = jax.tree.flatten((batch.observations, batch.next_observations))
    cameras = [number for number, leaf in enumerate(leaves) if _is_camera(leaf)]
    moved = images.random_shift(key, tuple(leaves[number] for number in cameras), probability)
    for number, leaf in zip(cameras, moved, strict=True):
        leaves[number] = leaf
    seen, following = jax.tree.unflatten(structure, leaves)
    return batch._replace(observations=seen, next_observations=following)


def _is_camera(column: Any) -> bool:
    return is_image(column.shape[1:])


def _pushed(seen: Any, following: Any, settings: Sampling, xp: Any = jnp) -> Any:
    """Next observations that are stacked, from the stacked observations of the same rows and single next ones."""

    def push(old: Any, new: Any) -> Any:
        return new if settings.stack_of(old) == 1 else images.push(old, new, xp)

    return jax.tree.map(push, seen, following)


# --- the batches of successive steps --------------------------------------------------------------------------------


class StepBatches(NamedTuple):
    """The rows of successive steps: entry i of each column belongs to step `first` + i."""

    rows: Batch
    first: ArrayLike


def batch_of(batches: StepBatches, step: Any, key: PRNGKey, sampling: Sampling) -> Batch:
    """The batch of a step, inside compiled code; `key` is the step's own."""
    return augment(jax.tree.map(lambda column: column[step - batches.first], batches.rows), key, sampling)


class Feed(Protocol):
    """The batches of all steps, some steps at a time. All have the shapes of `example`."""

    example: StepBatches

    def at(self, step: int) -> tuple[StepBatches, int]:
        """The batches that include this step's, and the first step after them."""
        ...

    def close(self) -> None:
        """Stop the background thread."""


class DeviceFeed:
    """Batches sampled on the device, from data in its memory."""

    def __init__(self, data: Samplable, seed: int, batch_size: int, sampling: Sampling):
        self._key = rng.stream(seed, "batch")
        one = partial(sample_rows, count=batch_size, settings=sampling)
        self.steps, self.example = _layout(jax.eval_shape(one, data, self._key))
        self._sample = partial(_sample_steps, count=batch_size, settings=sampling, steps=self.steps)
        self.data = data
        self._now: tuple[int, StepBatches] | None = None

    def at(self, step: int) -> tuple[StepBatches, int]:
        first = step - step % self.steps
        if self._now is None or self._now[0] != first:
            self._now = None  # free its memory for the next
            self._now = first, StepBatches(self._sample(self.data, self._key, np.int32(first)), np.int32(first))
        return self._now[1], first + self.steps

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnames=("count", "settings", "steps"))  # one program for the feeds of several runs
def _sample_steps(data: Samplable, key: PRNGKey, first: Any, *, count: int, settings: Sampling, steps: int) -> Batch:
    return jax.vmap(partial(sample_rows, data, count=count, settings=settings))(_step_keys(key, first, steps))


class HostFeed:
    """Batches gathered on the host, from one source or from the two of a mixture, in that order."""

    def __init__(self, sources: Sequence[Source], seed: int, batch_size: int, sampling: Sampling):
        self._sources, self._sampling = sources, sampling
        if len(sources) == 2:
            replay.check_columns(sources[0].rows, sources[1].rows, ("the data", "the buffer"))
        row = _gather_on_host(sources[0], np.zeros(1, np.int32), sampling)
        shapes = jax.tree.map(lambda column: jax.ShapeDtypeStruct((batch_size, *column.shape[1:]), column.dtype), row)
        self.steps, self.example = _layout(shapes)
        counts = (batch_size,) if len(sources) == 1 else shares(batch_size, sampling.fraction)
        sizes = [len(source.rows.rewards) for source in sources]

        def numbers(key: PRNGKey) -> list[jax.Array]:
            keys = _source_keys(key)[: len(sources)]
            return [row_numbers(*each) for each in zip(keys, counts, sizes, strict=True)]

        self._key = rng.stream(seed, "batch")
        self._numbers = jax.jit(lambda key, at: jax.vmap(numbers)(_step_keys(key, at, self.steps)))
        self._thread = ThreadPoolExecutor(1, "fidec-feed")
        self._coming: dict[int, Future[StepBatches]] = {}
        self._now: tuple[int, StepBatches] | None = None

    def at(self, step: int) -> tuple[StepBatches, int]:
        first = step - step % self.steps
        if self._now is None or self._now[0] != first:
            self._now = None  # free its memory for those after the next
            ready = self._coming.pop(first, None) or self._thread.submit(self._gather, first)
            self._now = first, ready.result()
            self._coming = {first + self.steps: self._thread.submit(self._gather, first + self.steps)}
        return self._now[1], first + self.steps

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _gather(self, first: int) -> StepBatches:
        with jax.default_device(host_device()):
            numbers = [np.asarray(each) for each in self._numbers(self._key, np.int32(first))]
        rows = [_gather_on_host(*each, self._sampling) for each in zip(self._sources, numbers, strict=True)]
        if len(rows) == 2:
            rows = [jax.tree.map(lambda *columns: np.concatenate(columns, axis=1), *rows)]
        return StepBatches(jax.device_put(rows[0]), np.int32(first))


def _layout(batch: Batch) -> tuple[int, StepBatches]:
    """How many steps are sampled at once, and the shapes of their rows, for a batch of these shapes."""
    size = sum(column.size * column.dtype.itemsize for column in jax.tree.leaves(batch))
    steps = int(np.clip(AHEAD_BYTES // size, 1, AHEAD_STEPS))
    rows = jax.tree.map(lambda column: jax.ShapeDtypeStruct((steps, *column.shape), column.dtype), batch)
    return steps, StepBatches(rows, jax.ShapeDtypeStruct((), np.int32))


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
        size = sum(dataset.nbytes for dataset in datasets) + beside
        on_device = size <= (free_memory() / 2 if limit is None else limit)
        make = device_source if on_device else host_source
        return cls([make(dataset, sampling, discount) for dataset in datasets], on_device)

    def feed(self, seed: int, batch_size: int, sampling: Sampling, proposals: Sequence[Any] = ()) -> Feed:
        """The batches of a run. `proposals` are a column of each source."""
        sources = list(self.sources)
        for number, column in enumerate(proposals):
            column = jax.tree.map(jnp.asarray, column) if self.on_device else column
            sources[number] = sources[number]._replace(rows=sources[number].rows._replace(proposals=column))
        if not self.on_device:
            return HostFeed(sources, seed, batch_size, sampling)
        return DeviceFeed(sources[0] if len(sources) == 1 else Mixture(*sources), seed, batch_size, sampling)


# --- all rows -------------------------------------------------------------------------------------------------------


def gather_batch(source: Source, numbers: np.ndarray, sampling: Sampling) -> Batch:
    """These rows of a source on the host, as a batch has them but for random shifts."""
    rows = jax.tree.map(jnp.asarray, _gather_on_host(source, numbers, sampling))
    return augment(rows, rng.stream(0, "batch"), replace(sampling, augment=0.0))


def map_batches(
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
        entries = jax.tree.map(np.asarray, function(gather_batch(source, numbers, sampling), first))
        if whole is None:
            whole = jax.tree.map(lambda array: room_for((len(rows), *array.shape[1:]), array.dtype, folder), entries)
        for every, some in zip(jax.tree.leaves(whole), jax.tree.leaves(entries), strict=True):
            every[first : first + size] = some[: len(rows) - first]
        report(min(first + size, len(rows)))
    return whole
