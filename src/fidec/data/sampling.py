"""Draw batches from one data set, from two, or from a replay buffer.

A batch is a pure function of (source, key), so there is no sampler state. Observations are stored singly, an array or
a dictionary of parts; successive ones are stacked, and images shifted, when they are drawn. The row indices do not
depend on stacking or shifting.
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
from fidec.parts import is_image, map_parts
from fidec.types import ArrayLike, Batch, PRNGKey, Spec

# Positions below a step's key. They are large numbers because `jax.random.split` uses small ones.
_SECOND, _SHIFT = zlib.crc32(b"second"), zlib.crc32(b"shift")


class Source(NamedTuple):
    """Transitions of whole trajectories in time order; row t's trajectory is starts[t], ..., ends[t]."""

    rows: Batch
    starts: ArrayLike | None = None  # only needed to stack observations
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
    """Successive frames of an image."""
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


def source_of(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the device, with returns if a discount is given."""
    return jax.tree.map(jnp.asarray, host_source(dataset, settings, discount))


def host_source(dataset: OfflineDataset, settings: Sampling = PLAIN, discount: float | None = None) -> Source:
    """A data set on the host, in memory or mapped from its file (see `fidec.data.feed`)."""
    source = Source(dataset.batch(discount))
    if settings.stacks:
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
    """Complete drawn rows on the device: scale rewards, stack next observations, and shift images at random."""
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

    Observations are stacked. Next observations are single ones, which `finish` stacks, unless the transitions are
    windows: then they are stacked here.
    """
    data, starts, ends = (source, None, None) if isinstance(source, Batch) else source
    window = settings.window
    if settings.stacks and starts is None:
        raise ConfigError("observations cannot be stacked without the starts of trajectories: use sampling.source_of")

    def part(column: Any, rows: Any) -> Any:
        count = settings.stack_of(column)
        return column[rows] if count == 1 else images.stack(column, rows, starts, count, xp)

    def observed(rows: Any) -> Any:
        return map_parts(lambda column: part(column, rows), data.observations)

    if window.single:
        batch = jax.tree.map(lambda column: column[rows], data._replace(observations=None))
        return batch._replace(observations=observed(rows))
    if ends is None:
        raise ConfigError("windows need the ends of trajectories: use sampling.source_of")
    end = ends[rows]
    last = xp.minimum(rows + (window.n_step - 1), end)
    following = map_parts(lambda column: column[last], data.next_observations)
    return take_window(data, rows, last, end, window.chunk, xp)._replace(
        observations=observed(rows),
        next_observations=_pushed(observed(last), following, settings, xp) if settings.stacks else following,
        proposals=jax.tree.map(lambda column: column[rows], data.proposals),
    )
