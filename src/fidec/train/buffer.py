"""The rows of the online phase on the device: arrays that are filled in place as the environments step."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.data import replay
from fidec.data.batches import Sampling, Source, sample_rows, shares
from fidec.data.memory import free_memory
from fidec.data.replay import Replay
from fidec.data.windows import WindowBuilder
from fidec.errors import ConfigError
from fidec.store.replay import Rows
from fidec.train.config import OnlineConfig
from fidec.types import Batch

CAPACITY = 2_000_000  # by FQL's protocol
_FILLED = 4096  # rows that are made into windows at once
BLOCK = 64  # rows that are added at once; only the shapes 64 and 1 are compiled

_add = jax.jit(replay.add, donate_argnums=0)
_follow = jax.jit(replay.follow, donate_argnums=0)


def check_buffer(config: OnlineConfig, size: int, batch_size: int) -> int:
    """The capacity of the buffer beside `size` offline transitions; ConfigError if they do not fit."""
    if config.sampling == "balanced":
        shares(batch_size, config.fraction, "online.fraction")
        return config.capacity or CAPACITY
    if config.capacity is not None and config.capacity < size:
        raise ConfigError(
            f"online.capacity {config.capacity} is less than the {size} offline transitions, which uniform "
            "sampling keeps in the same buffer: give more, or --online.sampling balanced"
        )
    return config.capacity or max(CAPACITY, size + 1)


class Buffer:
    """Row j of what is stored is in slot j mod the capacity. There will be at most `most` rows.

    Stored are the collected transitions, or windows of several steps, each as soon as all its steps are known.
    """

    def __init__(self, offline: Source, sampling: Sampling, most: int):
        row = jax.eval_shape(partial(sample_rows, count=1, settings=sampling), offline, rng.stream(0, "batch"))
        rows = min(most, sampling.capacity)
        size, free = rows * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(row)), free_memory()
        if size > free:
            raise ConfigError(
                f"the buffer of {rows:,} online transitions takes {size / 1e9:.1f} GB, but {free / 1e9:.1f} GB are "
                "free on the device: give a smaller --online.capacity or fewer --online-steps"
            )
        self.replay: Replay = replay.empty(row, rows)
        self.count = 0  # transitions that were collected
        self.added = 0  # rows that were stored
        self._windows = None if sampling.window.single else WindowBuilder(sampling.window)
        self._last: dict[int, tuple[int, int, int]] = {}  # the episode, step and number of each lane's last row

    def follow(self, rows: Rows) -> None:
        """Add one row of each of some lanes. Its action is the next action of the row before it in its episode."""
        if self._windows is not None:
            self.extend(rows)
            return
        before = []
        for lane, episode, step in zip(rows.lanes.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True):
            *place, number = self._last.get(lane, (-1, -1, -1))
            before.append(number % self.replay.capacity if place == [episode, step - 1] else -1)
        self.replay = _follow(self.replay, rows.batch, np.array(before, np.int32))
        self.added += rows.count
        self._count(rows)

    def extend(self, rows: Rows) -> None:
        """Add any number of rows that have their next actions, or, of windows, rows in the order of their steps."""
        if self._windows is not None:
            if (complete := self._windows.add(rows)) is not None:
                self._add(complete)
            self._count(rows)
            return
        if rows.steps[0] > 0:  # the last stored row of this episode has no next action yet
            self.follow(jax.tree.map(lambda column: column[:1], rows))
            rows = jax.tree.map(lambda column: column[1:], rows)
        self._add(rows.batch)
        self._count(rows)

    def _add(self, batch: Batch) -> None:
        first, total = 0, len(batch.rewards)
        while first < total:
            size = BLOCK if total - first >= BLOCK else 1
            self.replay = _add(self.replay, _cut(batch, first, first + size))
            first += size
        self.added += total

    def fill(self, rows: Rows) -> None:
        """Put stored rows back into an empty buffer, with their next actions."""
        if self._windows is not None:
            for first in range(0, rows.count, _FILLED):  # not all windows at once: they take more memory than rows
                self.extend(jax.tree.map(lambda column, first=first: column[first : first + _FILLED], rows))
            return
        rows = rows._replace(batch=rows.batch._replace(next_actions=next_actions(rows)))
        gone = max(0, rows.count - self.replay.capacity)  # rows that were overwritten
        self.count = self.added = gone
        self.replay = self.replay._replace(position=jnp.asarray(gone % self.replay.capacity, jnp.int32))
        self.extend(jax.tree.map(lambda column: column[gone:], rows))

    def _count(self, rows: Rows) -> None:
        places = zip(rows.lanes.tolist(), rows.episodes.tolist(), rows.steps.tolist(), strict=True)
        for number, (lane, episode, step) in enumerate(places, start=self.count):
            self._last[lane] = (episode, step, number)
        self.count += rows.count


def next_actions(rows: Rows) -> np.ndarray:
    """For each row the action of the next row of its episode; its own action if there is none."""
    actions = np.array(rows.batch.actions)
    order = np.lexsort((rows.steps, rows.episodes))
    here, there = order[:-1], order[1:]
    follows = (rows.episodes[here] == rows.episodes[there]) & (rows.steps[here] + 1 == rows.steps[there])
    actions[here[follows]] = rows.batch.actions[there[follows]]
    return actions


def _cut(batch: Batch, first: int, last: int) -> Batch:
    return jax.tree.map(lambda column: column[first:last], batch)
