"""The replay buffer is a ring: it behaves as a deque of bounded length, inside compiled programs too."""

from __future__ import annotations

import random
from collections import deque

import jax
import numpy as np
import pytest

from fidec import rng
from fidec.data import replay
from fidec.errors import ConfigError, DataError
from fidec.types import Batch
from helpers import ring_of, some
from helpers.algorithms import fast_jit


def transitions(first: int, count: int) -> Batch:
    """Rows whose every number tells which row it is."""
    number = np.arange(first, first + count, dtype=np.float32)
    return Batch(
        observations=number[:, None] + np.array([0.25, 0.5], np.float32),
        actions=number[:, None] - 1,
        rewards=number,
        masks=number % 2,
        next_observations=number[:, None] + np.array([1.25, 1.5], np.float32),
        next_actions=number[:, None],
    )


def oldest_first(buffer: replay.Replay) -> list[float]:
    held = np.asarray(buffer.rows.rewards)
    filled, position = int(buffer.filled), int(buffer.position)
    return held[:filled].tolist() if filled < buffer.capacity else np.roll(held, -position).tolist()


def assert_whole_rows(batch: Batch) -> None:
    """No row mixes the numbers of two transitions."""
    for got, expected in zip(batch, rows_of(np.asarray(batch.rewards)), strict=True):
        if expected is not None:
            np.testing.assert_allclose(some(got), expected)


def rows_of(numbers: np.ndarray) -> Batch:
    table = transitions(0, int(numbers.max()) + 1)
    return jax.tree.map(lambda column: column[numbers.astype(int)], table)


@pytest.mark.parametrize("capacity", [1, 5])
def test_a_replay_buffer_is_a_deque(capacity):
    """Random sequences of additions, of fewer rows than the capacity and of more."""
    add, dice = fast_jit(replay.add), random.Random(capacity)
    for _ in range(8):
        check_sequence(add, capacity, dice.choices((1, 2, 5, 13), k=dice.randrange(8)))


def check_sequence(add, capacity: int, chunks: list[int]) -> None:
    buffer, plain, count = replay.empty(transitions(0, 1), capacity), deque(maxlen=capacity), 0
    for chunk in chunks:
        buffer = add(buffer, transitions(count, chunk))
        plain.extend(range(count, count + chunk))
        count += chunk
        assert oldest_first(buffer) == list(plain)
        assert int(buffer.filled) == len(plain)
    if count:
        assert_whole_rows(jax.tree.map(lambda slot: np.asarray(slot)[: len(plain)], buffer.rows))


def test_a_data_set_is_overwritten_only_when_the_free_slots_are_used_up():
    """The quirk of capacity N + 1: one addition is free, the second costs the first offline row."""
    rows, add = 6, fast_jit(replay.add)
    buffer = ring_of(transitions(0, rows), rows + 1)
    assert (int(buffer.filled), oldest_first(buffer)) == (rows, list(range(rows)))
    buffer = add(buffer, transitions(100, 1))
    assert oldest_first(buffer) == [*range(rows), 100]
    buffer = add(buffer, transitions(101, 1))
    assert oldest_first(buffer) == [*range(1, rows), 100, 101]
    assert int(buffer.filled) == rows + 1


def test_adding_and_sampling_are_the_same_under_scan_and_vmap():
    chunks = [transitions(5 * i, 5) for i in range(4)]
    start, add = replay.empty(chunks[0], 7), fast_jit(replay.add)
    singles, buffer = [add(start, chunk) for chunk in chunks], start
    for chunk in chunks:
        buffer = add(buffer, chunk)
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *chunks)
    scan = fast_jit(
        lambda start, all: jax.lax.scan(lambda buffer, chunk: (replay.add(buffer, chunk), None), start, all)
    )
    jax.tree.map(np.testing.assert_array_equal, scan(start, stacked)[0], buffer)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(buffer))

    keys = jax.random.split(rng.stream(0, "batch"), 4)
    sample = fast_jit(replay.sample, static_argnums=2)
    add_and_sample = jax.vmap(lambda chunk, key: replay.sample(replay.add(start, chunk), key, 9))
    many = fast_jit(add_and_sample)(stacked, keys)
    for i, single in enumerate(singles):
        one = sample(single, keys[i], 9)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(np.asarray(a)[i], b), many, one)


def test_rows_are_drawn_by_seed_and_step_from_filled_slots_only_and_from_all_equally():
    buffer = fast_jit(replay.add)(replay.empty(transitions(0, 1), 50), transitions(1, 20))  # an empty slot is 0
    draw = fast_jit(lambda seed, step: replay.sample(buffer, rng.at(rng.stream(seed, "batch"), step), 64))
    batches = [draw(3, step) for step in range(100)]
    assert_whole_rows(batches[0])
    numbers = np.concatenate([np.asarray(batch.rewards) for batch in batches])
    counts = np.bincount(numbers.astype(int), minlength=21)
    assert counts[0] == 0
    assert len(counts) == 21
    expected = len(numbers) / 20
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 43.8  # 99.9 % of chi-square with 19 degrees
    np.testing.assert_array_equal(draw(3, 7).rewards, batches[7].rewards)
    assert len({tuple(np.asarray(draw(seed, step).rewards)) for seed in range(3) for step in range(3)}) == 9


def test_wrong_arguments_are_rejected():
    buffer = replay.empty(transitions(0, 1), 4)
    with pytest.raises(DataError, match="empty: add transitions"):
        replay.sample(buffer, rng.stream(0, "batch"), 2)
    inside = fast_jit(replay.sample, static_argnums=2)(buffer, rng.stream(0, "batch"), 2)
    assert not np.asarray(inside.rewards).any()  # as documented
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        replay.empty(transitions(0, 1), 0)
    with pytest.raises(ConfigError, match=r"buffer has no returns, the new transitions returns of shape \(\)"):
        replay.add(buffer, transitions(0, 2)._replace(returns=np.zeros(2)))
    with pytest.raises(ConfigError, match=r"actions of shape \(1,\), .* actions of shape \(3,\)"):
        replay.add(buffer, transitions(0, 2)._replace(actions=np.zeros((2, 3))))
