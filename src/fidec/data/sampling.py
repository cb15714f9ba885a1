"""Draw batches from one data set, from two, or from a replay buffer.

A batch is a pure function of (source, key), so there is no sampler state. Images are stored as single frames; they
are stacked and shifted when they are drawn. The row indices do not depend on stacking or shifting.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fidec import rng
from fidec.data import replay
from fidec.data.dataset import OfflineDataset
from fidec.data.replay import Replay
from fidec.data.windows import SINGLE, Window, last_rows, sum_rewards, take_window
from fidec.errors import ConfigError
from fidec.ops import images
from fidec.types import ArrayLike, Batch, PRNGKey, Spec

# Positions below a step's key. They are large numbers because `jax.random.split` uses small ones.
_SECOND, _SHIFT = zlib.crc32(b"second"), zlib.crc32(b"shift")


class Source(NamedTuple):
    """Transitions of whole trajectories in time order; row t's trajectory is starts[t], ..., ends[t]."""

    rows: Batch
    starts: ArrayLike | None = None  # only needed to stack frames
    ends: ArrayLike | None = None  # only needed for windows, whose rewards and masks `rows` then has


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
    window: Window = SINGLE
    """Steps of a transition."""
    reward_scale: float = 1.0
    """Factor of rewards and returns."""

    @classmethod
    def of(cls, spec: Spec, frame_stack: int, augment: float, fraction: float, **others: Any) -> Sampling:
        """For data of this specification: vectors are neither stacked nor shifted."""
        if not spec.images:
            return cls(fraction=fraction, **others)
        return cls(frame_stack, augment, fraction, **others)


PLAIN = Sampling()  # rows as they are stored


def source_of(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the device, with returns if a discount is given."""
    return jax.tree.map(jnp.asarray, host_source(dataset, settings, discount))


def host_source(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the host, in memory or mapped from its file (see `fidec.data.feed`)."""
    source = Source(dataset.batch(discount))
    if settings.frame_stack > 1:
        first, stop = dataset.episodes.T
        source = source._replace(starts=np.repeat(first, stop - first).astype(np.int32))
    if not settings.window.single:
        ends = last_rows(dataset.episodes)
        rewards, masks = sum_rewards(settings.window, dataset.rewards, dataset.masks, ends)
        source = source._replace(rows=source.rows._replace(rewards=rewards, masks=masks), ends=ends)
    return source


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
        first, second = (_rows(each, its_key, share, settings) for each, its_key, share in shares)
        replay.check_columns(first, second, ("the offline source of a mixture", "the second"))
        return jax.tree.map(lambda *each: jnp.concatenate(each), first, second)
    if isinstance(source, Joined):
        return _joined(source, key, count, settings)
    return _rows(source, key, count, settings)


def finish(batch: Batch, key: PRNGKey, settings: Sampling) -> Batch:
    """Complete drawn rows on the device: scale rewards, stack the next frame, and shift images at random."""
    if settings.reward_scale != 1:
        scale = settings.reward_scale
        returns = None if batch.returns is None else scale * batch.returns
        batch = batch._replace(rewards=scale * batch.rewards, returns=returns)
    if settings.frame_stack > 1 and settings.window.single:
        following = images.push(batch.observations, batch.next_observations)
        batch = batch._replace(next_observations=following)
    if settings.augment == 0:
        return batch
    observed = (batch.observations, batch.next_observations)
    seen, following = images.random_shift(rng.at(key, _SHIFT), observed, settings.augment)
    return batch._replace(observations=seen, next_observations=following)


def _rows(source: Source | Batch | Replay, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    if isinstance(source, Replay):
        return replay.sample(source, key, count)
    return gather(source, row_numbers(key, count, _size(source)), settings)


def _joined(source: Joined, key: PRNGKey, count: int, settings: Sampling) -> Batch:
    """Collected row j is in slot (offline rows + j) mod capacity; the other slots hold offline rows."""
    size, filled = _size(source.offline), source.online.filled
    if settings.capacity < size:
        raise ConfigError(f"a ring of {settings.capacity} slots cannot hold the {size} offline rows")
    slots = jax.random.randint(key, (count,), 0, jnp.minimum(size + filled, settings.capacity))
    places = (slots - size) % settings.capacity
    fresh = places < filled
    old = gather(source.offline, jnp.where(fresh, 0, slots), settings)
    new = jax.tree.map(lambda column: column[jnp.where(fresh, places, 0)], source.online.rows)
    replay.check_columns(old, new, ("the offline source", "the replay buffer"))
    return jax.tree.map(lambda a, b: jnp.where(fresh.reshape(-1, *[1] * (a.ndim - 1)), b, a), old, new)


def _size(source: Source | Batch) -> int:
    return (source if isinstance(source, Batch) else source.rows).rewards.shape[0]


def gather(source: Source | Batch, rows: Any, settings: Sampling, xp: Any = jnp) -> Batch:
    """These rows, as a `Replay` stores them. `xp` is jax.numpy, or numpy for a source on the host.

    Observations are stacked. Next observations are single frames, which `finish` stacks, unless the transitions are
    windows: then they are stacked here.
    """
    data, starts, ends = (source, None, None) if isinstance(source, Batch) else source
    count, window = settings.frame_stack, settings.window
    if count > 1 and starts is None:
        raise ConfigError("frames cannot be stacked without the starts of trajectories: use sampling.source_of")

    def observed(rows: Any) -> Any:
        return data.observations[rows] if count == 1 else images.stack(data.observations, rows, starts, count, xp)

    if window.single:
        batch = jax.tree.map(lambda column: column[rows], data._replace(observations=None))
        return batch._replace(observations=observed(rows))
    if ends is None:
        raise ConfigError("windows need the ends of trajectories: use sampling.source_of")
    end = ends[rows]
    last = xp.minimum(rows + (window.n_step - 1), end)
    following = data.next_observations[last]
    return take_window(data, rows, last, end, window.chunk, xp)._replace(
        observations=observed(rows),
        next_observations=following if count == 1 else images.push(observed(last), following, xp),
        proposals=jax.tree.map(lambda column: column[rows], data.proposals),
    )
