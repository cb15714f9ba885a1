"""The rows of the online phase on the device: one array, filled as the environments step, never copied."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.data import replay
from fidec.data.feed import free_memory
from fidec.data.replay import Replay
from fidec.data.sampling import Sampling, Source, drawn, parts
from fidec.errors import ConfigError
from fidec.store.replay import Rows
from fidec.train.config import OnlineConfig
from fidec.train.explore import next_actions
from fidec.types import Batch

CAPACITY = 2_000_000  # of the buffer, by FQL's protocol
BLOCK = 64  # rows that are added at once: two shapes to compile, 64 and 1

_add = jax.jit(replay.add, donate_argnums=0)
_follow = jax.jit(replay.follow, donate_argnums=0)


def check_buffer(settings: OnlineConfig, size: int, batch_size: int) -> int:
    """The capacity of the buffer beside `size` offline transitions, if both suit what is asked for."""
    if settings.sampling == "balanced":
        parts(batch_size, settings.fraction, "online.fraction")
        return settings.capacity or CAPACITY
    if settings.capacity is not None and settings.capacity < size:
        raise ConfigError(
            f"online.capacity {settings.capacity} is less than the {size} offline transitions, which uniform "
            "sampling keeps in the same buffer: give more, or --online.sampling balanced"
        )
    return settings.capacity or max(CAPACITY, size + 1)


class Buffer:
    """Collected row j lies in slot j mod the capacity. `most` is how many rows there will ever be."""

    def __init__(self, offline: Source, sampling: Sampling, most: int):
        row = jax.eval_shape(partial(drawn, count=1, settings=sampling), offline, rng.stream(0, "batch"))
        rows = min(most, sampling.capacity)
        size, free = rows * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(row)), free_memory()
        if size > free:
            raise ConfigError(
                f"the buffer of {rows:,} online transitions takes {size / 1e9:.1f} GB, but {free / 1e9:.1f} GB are "
                "free on the device: give a smaller --online.capacity or fewer --online-steps"
            )
        self.replay: Replay = replay.empty(row, rows)
        self.count = 0
        self._last: dict[int, tuple[int, int, int]] = {}  # of each lane: the episode, step and number of its last row

    def follow(self, rows: Rows) -> None:
        """Add one row of each of some lanes. The row before it in its episode learns its next action."""
        before = []
        for lane, episode, step in zip(rows.lanes.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True):
            *place, number = self._last.get(lane, (-1, -1, -1))
            before.append(number % self.replay.capacity if place == [episode, step - 1] else -1)
        self.replay = _follow(self.replay, rows.batch, np.array(before, np.int32))
        self._count(rows)

    def extend(self, rows: Rows) -> None:
        """Add any number of rows, whose next actions are known as far as they can be."""
        first, total = 0, rows.count
        if rows.steps[0] > 0:  # it goes on with an episode whose last row waits for its next action
            self.follow(jax.tree.map(lambda column: column[:1], rows))
            rows, total = jax.tree.map(lambda column: column[1:], rows), total - 1
        while first < total:
            size = BLOCK if total - first >= BLOCK else 1
            self.replay = _add(self.replay, _cut(rows.batch, first, first + size))
            first += size
        self._count(rows)

    def fill(self, rows: Rows) -> None:
        """Put stored rows back into an empty buffer, each with the next action that it has learnt since."""
        rows = rows._replace(batch=rows.batch._replace(next_actions=next_actions(rows)))
        gone = max(0, rows.count - self.replay.capacity)  # overwritten since: not needed, but counted
        self.count = gone
        self.replay = self.replay._replace(position=jnp.asarray(gone % self.replay.capacity, jnp.int32))
        self.extend(jax.tree.map(lambda column: column[gone:], rows))

    def _count(self, rows: Rows) -> None:
        places = zip(rows.lanes.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True)
        for number, (lane, episode, step) in enumerate(places, start=self.count):
            self._last[lane] = (episode, step, number)
        self.count += rows.count


def _cut(batch: Batch, first: int, last: int) -> Batch:
    return jax.tree.map(lambda column: column[first:last], batch)
