"""Offline rows and a replay buffer, joined without a copy, behave as one ring."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fidec import rng
from fidec.data import replay
from fidec.data.batches import OfflineOnline, Sampling, Source, sample_batch
from fidec.errors import ConfigError
from fidec.types import Batch
from helpers import ring_of
from helpers.algorithms import fast_jit

OFFLINE = 7


def rows(first: int, count: int) -> Batch:
    number = np.arange(first, first + count, dtype=np.float32)
    two = number[:, None] + np.array([0.25, 0.5], np.float32)
    return Batch(two, number[:, None], number, number % 2, two + 1, number[:, None] + 0.5)


def keys(count: int = 6) -> list:
    return [rng.at(rng.stream(0, "batch"), number) for number in range(count)]


@pytest.mark.parametrize("capacity", [OFFLINE, OFFLINE + 4])
def test_joined_sources_draw_what_one_ring_would_draw(capacity):
    """At every length, also after the ring has gone round: half of the offline rows gone, all gone, and again."""
    offline = Source(jax.tree.map(jax.numpy.asarray, rows(0, OFFLINE)))
    ring, online = ring_of(offline.rows, capacity), replay.empty(rows(0, 1), min(capacity, 60))
    add, sample = fast_jit(replay.add), fast_jit(lambda ring, key: replay.sample(ring, key, 32))
    joined = fast_jit(
        lambda online, key: sample_batch(OfflineOnline(offline, online), key, 32, Sampling(capacity=capacity))
    )
    for number in range(40):
        if number in (0, 1, 2, 3, 5, 8, 15, 16, 30, 39):
            for key in keys(3):
                jax.tree.map(np.testing.assert_array_equal, joined(online, key), sample(ring, key))
        new = rows(1000 + number, 1)
        ring, online = add(ring, new), add(online, new)


def test_with_one_free_slot_the_second_row_replaces_the_first_offline_one():
    """The published capacity of data sets with two million rows, N + 1."""
    offline, online, add = Source(rows(0, OFFLINE)), replay.empty(rows(0, 1), 5), fast_jit(replay.add)
    jitted = fast_jit(sample_batch, static_argnums=(2, 3))
    for number in range(2):
        online = add(online, rows(1000 + number, 1))
    drawn = jitted(OfflineOnline(offline, online), keys()[0], 2000, Sampling(capacity=OFFLINE + 1))
    values, counts = np.unique(np.asarray(drawn.rewards), return_counts=True)
    assert values.tolist() == [1, 2, 3, 4, 5, 6, 1000, 1001]
    assert counts.min() > 0.7 * 2000 / len(values)


def test_a_ring_that_cannot_hold_the_data_is_rejected():
    with pytest.raises(ConfigError, match="6 slots cannot hold the 7 offline rows"):
        sample_batch(
            OfflineOnline(rows(0, OFFLINE), replay.empty(rows(0, 1), 3)), keys()[0], 4, Sampling(capacity=OFFLINE - 1)
        )


def test_follow_stores_the_next_action_of_the_row_before():
    """Two lanes, side by side; -1 is the start of an episode, and the ring may have gone round in between."""
    buffer, follow = replay.empty(rows(0, 1), 4), fast_jit(replay.follow)

    def two(first: int) -> Batch:
        new = rows(first, 2)
        return new._replace(next_actions=new.actions)

    buffer = follow(buffer, two(10), np.array([-1, -1], np.int32))
    assert buffer.rows.next_actions[:2, 0].tolist() == [10, 11]
    buffer = follow(buffer, two(20), np.array([0, -1], np.int32))  # the second lane begins an episode
    assert buffer.rows.next_actions[:, 0].tolist() == [20, 11, 20, 21]
    buffer = follow(buffer, two(30), np.array([2, 3], np.int32))
    assert buffer.rows.next_actions[:, 0].tolist() == [30, 31, 30, 31]
    assert buffer.rows.actions[:, 0].tolist() == [30, 31, 20, 21]
