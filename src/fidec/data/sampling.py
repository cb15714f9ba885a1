"""Draw batches from one data set, from two, or from a replay buffer.

A batch is a pure function of (source, key), so there is no sampler state. Images are stored as single frames; they
are stacked and shifted when they are drawn. The row indices do not depend on stacking or shifting.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fidec import rng
from fidec.data import replay
from fidec.data.dataset import OfflineDataset
from fidec.data.replay import Replay
from fidec.errors import ConfigError
from fidec.ops import images
from fidec.types import ArrayLike, Batch, PRNGKey, Spec

# Positions below a step's key. They are large numbers because `jax.random.split` uses small ones.
_SECOND, _SHIFT = zlib.crc32(b"second"), zlib.crc32(b"shift")


class Source(NamedTuple):
    """Transitions of whole trajectories in time order; `starts[t]` is the first row of the trajectory of row t."""

    rows: Batch
    starts: ArrayLike | None = None  # only needed to stack frames


class Mixture(NamedTuple):
    """Two sources. Each batch takes a share of both: first the offline rows, then those of the second."""

    offline: Source | Batch
    second: Source | Batch | Replay


class Joined(NamedTuple):
    """Offline rows and rows that were collected online, drawn as from one ring of `Sampling.capacity` slots.

    The offline rows fill its first slots, new rows the free slots after them. When all slots are full, the newest row
    replaces the oldest, which is an offline row at first. The offline rows are never copied or moved.
    """

    offline: Source | Batch
    online: Replay


Drawable = Source | Mixture | Joined | Replay | Batch  # a Batch is a Source without the starts of trajectories


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn: the static settings."""

    frame_stack: int = 1
    """Frames that make an observation."""
    augment: float = 0.0
    """Probability that a batch of images is shifted."""
    fraction: float = 0.5
    """Share of the second source in a mixture."""
    capacity: int = 0
    """Slots of the ring of joined sources."""

    @classmethod
    def of(cls, spec: Spec, frame_stack: int, augment: float, fraction: float) -> Sampling:
        """For data of this specification: vectors are neither stacked nor shifted."""
        return cls(frame_stack, augment, fraction) if spec.images else cls(fraction=fraction)


PLAIN = Sampling()  # rows as they are stored


def source_of(dataset: OfflineDataset, frame_stack: int = 1, discount: float | None = None) -> Source:
    """A data set on the device, with returns if a discount is given."""
    return jax.tree.map(jnp.asarray, host_source(dataset, frame_stack, discount))


def host_source(dataset: OfflineDataset, frame_stack: int = 1, discount: float | None = None) -> Source:
    """A data set on the host, in memory or mapped from its file (see `fidec.data.feed`)."""
    rows = dataset.batch(discount)
    if frame_stack == 1:
        return Source(rows)
    first, stop = dataset.episodes.T
    return Source(rows, np.repeat(first, stop - first).astype(np.int32))


def parts(count: int, fraction: float, name: str = "buffer_fraction") -> tuple[int, int]:
    """How many of `count` rows come from the offline source, and how many from the second."""
    second = round(count * fraction)
    if not 0 < second < count:
        raise ConfigError(f"a batch of {count} rows cannot be shared by two data sets at {name} {fraction}")
    return count - second, second


def source_keys(key: PRNGKey) -> tuple[PRNGKey, PRNGKey]:
    """A step's keys for the rows of the first source and for those of the second."""
    return key, rng.at(key, _SECOND)


def row_numbers(key: PRNGKey, count: int, size: int) -> Int[Array, "count"]:
    """Which of `size` rows are drawn."""
    return jax.random.randint(key, (count,), 0, size)


def draw(source: Drawable, key: PRNGKey, count: int, settings: Sampling = PLAIN) -> Batch:
    """`count` transitions, uniform with replacement over each source."""
    return finish(drawn(source, key, count, settings), key, settings)


def drawn(source: Drawable, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    """Gather the rows of a batch; `finish` makes the batch from them."""
    if isinstance(source, Mixture):
        shares = zip(source, source_keys(key), parts(count, settings.fraction), strict=True)
        first, second = (_rows(each, its_key, share, settings.frame_stack) for each, its_key, share in shares)
        replay.check_columns(first, second, ("the offline source of a mixture", "the second"))
        return jax.tree.map(lambda *each: jnp.concatenate(each), first, second)
    if isinstance(source, Joined):
        return _joined(source, key, count, settings)
    return _rows(source, key, count, settings.frame_stack)


def finish(batch: Batch, key: PRNGKey, settings: Sampling) -> Batch:
    """Complete drawn rows on the device: stack the next frame, and shift images at random."""
    if settings.frame_stack > 1:
        following = images.push(batch.observations, batch.next_observations)
        batch = batch._replace(next_observations=following)
    if settings.augment == 0:
        return batch
    observed = (batch.observations, batch.next_observations)
    seen, following = images.random_shift(rng.at(key, _SHIFT), observed, settings.augment)
    return batch._replace(observations=seen, next_observations=following)


def _rows(source: Source | Batch | Replay, key: PRNGKey, count: int, frame_stack: int) -> Batch:
    """Drawn rows: observations are stacked, next observations are single frames, as in a `Replay`."""
    if isinstance(source, Replay):
        return replay.sample(source, key, count)
    return _gather(source, row_numbers(key, count, _size(source)), frame_stack)


def _joined(source: Joined, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    """Collected row j is in slot (offline rows + j) mod capacity; the other slots hold offline rows."""
    size, filled = _size(source.offline), source.online.filled
    if settings.capacity < size:
        raise ConfigError(f"a ring of {settings.capacity} slots cannot hold the {size} offline rows")
    slots = jax.random.randint(key, (count,), 0, jnp.minimum(size + filled, settings.capacity))
    places = (slots - size) % settings.capacity
    fresh = places < filled
    old = _gather(source.offline, jnp.where(fresh, 0, slots), settings.frame_stack)
    new = jax.tree.map(lambda column: column[jnp.where(fresh, places, 0)], source.online.rows)
    replay.check_columns(old, new, ("the offline source", "the replay buffer"))
    return jax.tree.map(lambda a, b: jnp.where(fresh.reshape(-1, *[1] * (a.ndim - 1)), b, a), old, new)


def _size(source: Source | Batch) -> int:
    return (source if isinstance(source, Batch) else source.rows).rewards.shape[0]


def _gather(source: Source | Batch, rows: Int[Array, "count"], frame_stack: int) -> Batch:
    data, starts = (source, None) if isinstance(source, Batch) else source
    if frame_stack == 1:
        return jax.tree.map(lambda array: array[rows], data)
    if starts is None:
        raise ConfigError("frames cannot be stacked without the starts of trajectories: use sampling.source_of")
    batch = jax.tree.map(lambda array: array[rows], data._replace(observations=None))
    return batch._replace(observations=images.stack(data.observations, rows, starts, frame_stack))
