"""A replay buffer: a ring of transitions as a pytree, for compiled loops and checkpoints.

The newest transition overwrites the oldest one. A buffer that starts with N offline rows keeps all of them only while
there are free slots. With capacity N + 1, which the FQL code uses for data sets of two million rows, the second
transition that is added already replaces the first offline row.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fidec.errors import ConfigError, DataError
from fidec.types import ArrayLike, Batch, PRNGKey


class Replay(NamedTuple):
    """A ring of `capacity` slots. The first `filled` hold transitions; the one at `position` is written next."""

    rows: Batch
    position: ArrayLike
    filled: ArrayLike

    @property
    def capacity(self) -> int:
        return self.rows.rewards.shape[0]


def empty(example: Batch, capacity: int) -> Replay:
    """An empty buffer for rows like those of `example` (arrays or their shapes, of any length)."""
    if capacity < 1:
        raise ConfigError(f"the capacity of a replay buffer must be at least 1, not {capacity}")
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape[1:]), x.dtype), example)
    return Replay(rows, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add(replay: Replay, transitions: Batch) -> Replay:
    """Append rows in their order; if there are more rows than slots, the last ones stay. Works inside jit."""
    check_columns(replay.rows, transitions, ("the replay buffer", "the new transitions"))
    count, capacity = transitions.rewards.shape[0], replay.capacity
    skipped = max(0, count - capacity)
    slots = (replay.position + jnp.arange(skipped, count, dtype=jnp.int32)) % capacity
    rows = jax.tree.map(
        lambda slot, new: slot.at[slots].set(jnp.asarray(new, slot.dtype)[skipped:], unique_indices=True),
        replay.rows,
        transitions,
    )
    return Replay(rows, (replay.position + count) % capacity, jnp.minimum(replay.filled + count, capacity))


def follow(replay: Replay, transitions: Batch, before: ArrayLike) -> Replay:
    """Append rows of running episodes, and store each action as the next action of the row in slot `before`.

    `before` is -1 at the start of an episode. Until the next step is taken, a row's next action is its own action, as
    at the end of a trajectory.
    """
    slots = jnp.where(before < 0, replay.capacity, before)  # outside the buffer: dropped
    told = replay.rows.next_actions.at[slots].set(transitions.actions, mode="drop")
    return add(replay._replace(rows=replay.rows._replace(next_actions=told)), transitions)


def sample(replay: Replay, key: PRNGKey, count: int) -> Batch:
    """`count` rows, uniform with replacement over the filled slots: a function of the key.

    Sampling from an empty buffer is an error outside jit. Inside jit its size is not known, and the rows are zeros.
    """
    if not isinstance(replay.filled, Tracer) and int(replay.filled) == 0:
        raise DataError("the replay buffer is empty: add transitions before sampling")
    rows = jax.random.randint(key, (count,), 0, replay.filled)
    return jax.tree.map(lambda slot: slot[rows], replay.rows)


def check_columns(first: Batch, second: Batch, names: tuple[str, str]) -> None:
    """Raise a ConfigError for rows of different shapes, which would be broadcast, and for columns that one lacks."""
    for column, ours, theirs in zip(Batch._fields, first, second, strict=True):
        shapes = [jax.tree.map(lambda array: tuple(array.shape[1:]), each) for each in (ours, theirs)]
        if shapes[0] != shapes[1]:
            words = [f"no {column}" if s is None else f"{column} of shape {s}" for s in shapes]
            hint = "; `OfflineDataset.batch(discount)` has returns" if None in shapes else ""
            raise ConfigError(f"{names[0]} has {words[0]}, {names[1]} {words[1]}: they cannot be joined{hint}")
