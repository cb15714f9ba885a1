"""Random shifts and stacked frames against slow NumPy."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from fidec.envs.wrappers import FrameStack, stacked
from fidec.ops import images

ROWS, HEIGHT, WIDTH, CHANNELS = 12, 9, 7, 2


def pictures(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, HEIGHT, WIDTH, CHANNELS)).astype(np.uint8)


def reference(batch: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    padded = np.pad(batch, ((0, 0), (3, 3), (3, 3), (0, 0)), mode="edge")
    return np.stack([p[y : y + HEIGHT, x : x + WIDTH] for p, (y, x) in zip(padded, offsets, strict=True)])


def test_a_shift_is_a_crop_of_the_padded_image():
    every = np.array([(y, x) for y in range(7) for x in range(7)])
    batch = pictures(rows=len(every))
    moved = jax.jit(images.shift)(batch, every)
    assert moved.dtype == np.uint8
    np.testing.assert_array_equal(moved, reference(batch, every))
    np.testing.assert_array_equal(images.shift(batch, every), moved)
    np.testing.assert_array_equal(images.shift(batch, np.full((len(batch), 2), 3)), batch)
    floats = batch.astype(np.float32) / 255
    np.testing.assert_array_equal(images.shift(floats, every), reference(floats, every))


def offsets_of(batch: np.ndarray, moved: np.ndarray) -> list[tuple[int, int]]:
    """Which shift turned each image into what it is now."""
    every = [(y, x) for y in range(7) for x in range(7)]
    found = []
    for image, result in zip(batch, moved, strict=True):
        candidates = reference(np.repeat(image[None], 49, axis=0), np.array(every))
        (which,) = np.flatnonzero((candidates == result).all(axis=(1, 2, 3)))
        found.append(every[which])
    return found


def test_the_two_observations_of_a_sample_move_together_and_samples_apart():
    before, after = pictures(0), pictures(1)
    seen, following = images.random_shift(jax.random.key(0), (before, after), 1.0)
    offsets = offsets_of(before, np.asarray(seen))
    assert offsets == offsets_of(after, np.asarray(following))
    assert len(set(offsets)) > ROWS / 2
    assert np.asarray(seen).dtype == np.uint8


def test_offsets_are_uniform():
    batch = pictures(rows=400)
    shifted = jax.jit(lambda key: images.random_shift(key, (batch,), 1.0)[0])
    found = [o for seed in range(3) for o in offsets_of(batch, np.asarray(shifted(jax.random.key(seed))))]
    counts = np.bincount([7 * y + x for y, x in found], minlength=49)
    expected = len(found) / 49
    assert ((counts - expected) ** 2 / expected).sum() < 84.0  # 99.9 % of chi-square with 48 degrees


def test_one_coin_for_the_batch():
    batch = pictures()
    (same,) = images.random_shift(jax.random.key(0), (batch,), 0.0)
    np.testing.assert_array_equal(same, batch)
    shifted = jax.jit(lambda key: images.random_shift(key, (batch,), 0.3)[0])
    tossed = 0
    for seed in range(200):
        result = np.asarray(shifted(jax.random.key(seed)))
        moved = (result != batch).any(axis=(1, 2, 3))
        assert not moved.any() or moved.mean() > 0.5  # all or none, but for the one offset in 49 that moves nothing
        tossed += moved.any()
    assert 35 < tossed < 85  # 60 are expected, and a standard deviation is 6.5


def test_under_vmap_it_is_the_same():
    batches, keys = np.stack([pictures(i) for i in range(6)]), jax.random.split(jax.random.key(2), 6)
    one = jax.jit(lambda key, batch: images.random_shift(key, (batch,), 0.5)[0])
    together = jax.jit(jax.vmap(one))(keys, batches)
    for key, batch, found in zip(keys, batches, np.asarray(together), strict=True):
        np.testing.assert_array_equal(one(key, batch), found)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stacking_repeats_the_first_frame_of_a_trajectory(count):
    frames = pictures()
    starts = np.array([0, 0, 0, 3, 4, 4, 4, 4, 4, 4, 10, 10])
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(ROWS), 2))
    found = jax.jit(images.stack, static_argnums=3)(frames, rows, starts, count)
    later = images.push(found, frames[rows][:, ::-1])
    assert found.shape == later.shape == (2 * ROWS, HEIGHT, WIDTH, count * CHANNELS)
    assert found.dtype == later.dtype == np.uint8
    for row, got, then in zip(rows, np.asarray(found), np.asarray(later), strict=True):
        history = [frames[row]]
        while len(history) < count:
            row = row - 1 if row > starts[row] else row
            history.insert(0, frames[row])
        np.testing.assert_array_equal(got, np.concatenate(history, axis=-1))
        expected = np.concatenate([*history[1:], history[-1][::-1]], axis=-1)
        np.testing.assert_array_equal(then, expected)


class Film(gymnasium.Env):
    """Shows the frames that it is given, all drawn into one array."""

    observation_space = gymnasium.spaces.Box(0, 255, (HEIGHT, WIDTH, CHANNELS), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        self.screen, self.frames = np.zeros((HEIGHT, WIDTH, CHANNELS), np.uint8), []

    def _draw(self):
        self.screen[:] = self.np_random.integers(0, 256, self.screen.shape)
        self.frames.append(self.screen.copy())
        return self.screen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frames = []
        return self._draw(), {"seed": seed}

    def step(self, action):
        return self._draw(), 1.0, False, len(self.frames) == 6, {"success": 0.0}


def test_an_environment_stacks_its_frames_as_data_does():
    env: Any = stacked(Film(), 3)
    assert env.observation_space.shape == (HEIGHT, WIDTH, 3 * CHANNELS)
    assert env.observation_space.dtype == np.uint8
    for seed in (4, 5):  # nothing of an episode is left in the next
        observation, info = env.reset(seed=seed)
        assert info == {"seed": seed}
        seen, over = [observation], False
        while not over:
            observation, reward, _, over, info = env.step(np.zeros(1, np.float32))
            seen.append(observation)
        assert (reward, info) == (1.0, {"success": 0.0})
        frames = np.stack(env.unwrapped.frames)
        rows = np.arange(len(frames))
        np.testing.assert_array_equal(np.stack(seen), images.stack(frames, rows, np.zeros_like(rows), 3))
        assert all(env.observation_space.contains(each) for each in seen)


def test_an_environment_without_images_stays_as_it_is():
    env = stacked(gymnasium.wrappers.TransformObservation(Film(), np.ravel, VECTOR), 3)
    assert not isinstance(env, FrameStack)


VECTOR = gymnasium.spaces.Box(0, 255, (HEIGHT * WIDTH * CHANNELS,), np.uint8)


def test_environment_processes_stay_free_of_jax():
    code = "import sys, fidec.envs.wrappers; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
