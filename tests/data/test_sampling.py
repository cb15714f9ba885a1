"""Batches are drawn as a function of seed and step: from one data set, from two, of vectors and of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import dataset_from_arrays, rng
from fidec.data import batches
from fidec.data.batches import Mixture, OfflineOnline, Sampling, Source, device_source, sample_batch
from fidec.errors import ConfigError
from fidec.ops import images
from fidec.types import Spec
from helpers import ring_of
from helpers.algorithms import fast_jit
from helpers.runs import random_columns

KEY = rng.at(rng.stream(5, "batch"), 3)
jitted = fast_jit(sample_batch, static_argnums=(2, 3))


def image_dataset(seed: int = 0, episodes=(5, 1, 9, 4)):
    """Frames that differ everywhere; every row is a transition, with a next frame that no other row has."""
    generator, rows = np.random.default_rng(seed), sum(episodes)
    frames = generator.integers(0, 256, (2, rows, 8, 8, 3)).astype(np.uint8)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(episodes) - 1] = True
    frames[1, :-1][~ends[:-1]] = frames[0, 1:][~ends[:-1]]
    return dataset_from_arrays(
        observations=frames[0],
        actions=generator.uniform(-1, 1, (rows, 2)),
        rewards=np.arange(rows),
        truncations=ends,
        next_observations=frames[1],
    )


@pytest.fixture(scope="module")
def vectors():
    return dataset_from_arrays(**random_columns())


def assert_same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_vectors_are_drawn_by_randint_at_the_steps_key(vectors):
    """Bit for bit what runs drew before there were sources: rows by randint at the step's own key."""
    rows = np.asarray(jax.random.randint(KEY, (16,), 0, vectors.size))
    expected = jax.tree.map(lambda column: column[rows], vectors.batch())
    source = device_source(vectors)
    assert source.starts is None
    settings = Sampling.of(vectors.spec, frame_stack=3, augment=0.5, fraction=0.5)  # what a run has by default
    for batch in (jitted(source.rows, KEY, 16), jitted(source, KEY, 16), jitted(source, KEY, 16, settings)):
        assert_same(batch, expected)


def test_a_discount_adds_returns(vectors):
    batch = jitted(device_source(vectors, discount=0.9), KEY, 16)
    rows = np.asarray(jax.random.randint(KEY, (16,), 0, vectors.size))
    np.testing.assert_array_equal(batch.returns, vectors.returns(0.9)[rows])


def test_a_mixture_takes_its_share_of_each(vectors):
    fraction, first, seen = 0.25, 12, set()
    assert [batches.shares(16, share) for share in (0.5, 0.25, 0.9)] == [(8, 8), (12, 4), (2, 14)]
    other = dataset_from_arrays(**{**random_columns(rows=60, seed=1), "rewards": np.full(60, 100.0)})
    mixture, settings = Mixture(device_source(vectors), device_source(other)), Sampling(fraction=fraction)
    root = rng.stream(5, "batch")
    for step in range(40):
        key = rng.at(root, step)
        batch = jax.tree.map(np.asarray, jitted(mixture, key, 16, settings))
        assert (batch.rewards[:first] < 50).all()
        assert (batch.rewards[first:] == 100).all()
        # The offline rows are those of a batch of their own: the second source does not change them.
        assert_same(jax.tree.map(lambda x: x[:first], batch), jitted(mixture.offline, key, first, batches.PLAIN))
        seen |= set(batch.actions[first:, 0].tolist())
    assert len(seen) > 0.8 * other.size  # 160 draws or more from 60 rows


def test_a_replay_buffer_is_a_source_too(vectors):
    source = device_source(vectors)
    buffer = ring_of(source.rows, vectors.size + 10)
    assert_same(jitted(buffer, KEY, 16), jitted(source, KEY, 16))
    batch = jitted(Mixture(source, buffer), KEY, 16)
    assert_same(batch, jitted(Mixture(source, source), KEY, 16))
    assert not np.array_equal(batch.rewards[:8], batch.rewards[8:])  # the halves have their own random numbers


def test_sources_that_do_not_fit_are_rejected_by_the_name_of_the_column(vectors):
    with_returns, buffer = device_source(vectors, discount=0.9), ring_of(device_source(vectors).rows, vectors.size)
    with pytest.raises(ConfigError, match=r"mixture has returns of shape \(\), the second no returns.*discount"):
        jitted(Mixture(with_returns, buffer), KEY, 16)
    rows = with_returns.rows._replace(actions=with_returns.rows.actions[:, :1])
    with pytest.raises(ConfigError, match=r"actions of shape \(\d,\), the second actions of shape \(1,\)"):
        jitted(Mixture(with_returns, rows), KEY, 16)


@pytest.mark.parametrize(("count", "fraction"), [(1, 0.5), (4, 0.05), (4, 0.95)])
def test_a_batch_too_small_to_share_is_rejected(count, fraction):
    with pytest.raises(ConfigError, match=f"batch of {count} rows cannot be shared"):
        batches.shares(count, fraction)


def slow_stack(dataset, row: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    (start,) = [first for first, stop in dataset.episodes if first <= row < stop]
    history = [dataset.observations[max(t, start)] for t in range(row - count + 1, row + 1)]
    following = [*history[1:], dataset.next_observations[row]]
    return np.concatenate(history, axis=-1), np.concatenate(following, axis=-1)


@pytest.mark.parametrize("count", [1, 3])
def test_frames_are_stacked_within_their_trajectory(count):
    dataset = image_dataset()
    batch = jitted(device_source(dataset, Sampling(frame_stack=count)), KEY, 200, Sampling(frame_stack=count))
    rows = np.asarray(batch.rewards).astype(int)
    assert set(rows) == set(range(dataset.size))  # all starts and all ends are among them
    for i, row in enumerate(rows):
        seen, following = slow_stack(dataset, row, count)
        np.testing.assert_array_equal(batch.observations[i], seen)
        np.testing.assert_array_equal(batch.next_observations[i], following)
    assert batch.observations.dtype == batch.next_observations.dtype == np.uint8
    assert_same(batch.actions, dataset.actions[rows])
    spec = dataset.spec.stacked(count)
    assert spec.observation_shape == batch.observations.shape[1:] == (8, 8, 3 * count)
    assert spec.frame_stack == count
    assert dataset.spec.frame_stack == 1


def test_augmentation_changes_images_and_nothing_else():
    source = device_source(image_dataset(), Sampling(frame_stack=3))
    plain = jitted(source, KEY, 32, Sampling(frame_stack=3))
    moved = jitted(source, KEY, 32, Sampling(frame_stack=3, augment=1.0))
    keep = {"observations": None, "next_observations": None}
    assert_same(moved._replace(**keep), plain._replace(**keep))
    assert (np.asarray(moved.observations) != plain.observations).any(axis=(1, 2, 3)).mean() > 0.8
    # The same shift for both, and for every frame of a stack: shifting commutes with stacking.
    both = jnp.concatenate([plain.observations, plain.next_observations], axis=-1)
    together = jnp.concatenate([moved.observations, moved.next_observations], axis=-1)
    every = np.stack(np.meshgrid(np.arange(7), np.arange(7), indexing="ij"), -1).reshape(-1, 2)
    shifted = fast_jit(lambda image: images.shift(jnp.repeat(image[None], 49, axis=0), every))
    for image, result in zip(both, together, strict=True):
        assert (np.asarray(shifted(image)) == np.asarray(result)).all(axis=(1, 2, 3)).sum() == 1


def test_images_of_two_data_sets(vectors):
    first, second = image_dataset(0), image_dataset(1, episodes=(3, 8))
    mixture = Mixture(device_source(first, Sampling(2)), device_source(second, Sampling(2)))
    batch = jitted(mixture, KEY, 40, Sampling(frame_stack=2))
    for i, dataset in [(0, first), (19, first), (20, second), (39, second)]:
        seen, following = slow_stack(dataset, int(batch.rewards[i]), 2)
        np.testing.assert_array_equal(batch.observations[i], seen)
        np.testing.assert_array_equal(batch.next_observations[i], following)
    assert Sampling.of(first.spec, 2, 0.5, 0.25) == Sampling(2, 0.5, 0.25)
    assert Sampling.of(vectors.spec, 2, 0.5, 0.25) == Sampling(1, 0.0, 0.25)
    assert vectors.spec.stacked(3) == vectors.spec
    assert Spec((4, 4, 1), 2).stacked(1) == Spec((4, 4, 1), 2)


def test_a_replay_buffer_holds_stacks_and_the_frame_that_follows():
    """Filled with every row of a data set so, alone or after that data set, it gives what the data set gives."""
    dataset, settings = image_dataset(), Sampling(frame_stack=2, capacity=1000)
    source, size = device_source(dataset, Sampling(2)), dataset.size
    stacks = np.stack([slow_stack(dataset, row, 2)[0] for row in range(size)])
    buffer = ring_of(source.rows._replace(observations=stacks), size)
    assert_same(jitted(buffer, KEY, 64, settings), jitted(source, KEY, 64, settings))
    batch = jitted(OfflineOnline(source, buffer), KEY, 64, settings)
    for i in range(64):
        seen, following = slow_stack(dataset, int(batch.rewards[i]), 2)
        np.testing.assert_array_equal(batch.observations[i], seen)
        np.testing.assert_array_equal(batch.next_observations[i], following)


def test_frames_without_trajectories_are_rejected():
    rows = device_source(image_dataset()).rows
    for source in (rows, Source(rows)):
        with pytest.raises(ConfigError, match="starts of trajectories"):
            jitted(source, KEY, 4, Sampling(frame_stack=3))
