"""What several test modules share."""

from typing import TypeVar

from fidec.data import replay
from fidec.types import Batch

T = TypeVar("T")


def some(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value


def ring_of(batch: Batch, capacity: int) -> replay.Replay:
    """A replay buffer that starts with all rows of a batch, and free slots after them."""
    return replay.add(replay.empty(batch, capacity), batch)
