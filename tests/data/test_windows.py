"""Windows of several steps: against a plain loop, against the closed form of a linear system, and online."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import dataset_from_arrays
from fidec.data.batches import Sampling, _gather_on_host, device_source, gather_rows, host_source, sample_batch
from fidec.data.windows import Window, WindowBuilder
from fidec.errors import ConfigError
from fidec.store.replay import Rows
from fidec.types import Batch

GAMMA = 0.9
WINDOWS = [Window(1, 3, GAMMA), Window(3, 3, GAMMA), Window(2, 5, GAMMA)]


def episodes_of_many_lengths(images: bool = False):
    """Episodes of 1 to 12 steps. The task ends in the middle of some, and at the end of others."""
    rng, lengths = np.random.default_rng(0), [1, 2, 3, 4, 7, 12, 12]
    total = sum(lengths)
    masks, ends = np.ones(total, np.float32), np.cumsum(lengths) - 1
    masks[[ends[2], ends[5], ends[5] - 5]] = 0.0
    if images:
        observations: Any = rng.integers(0, 255, (total, 4, 4, 1)).astype(np.uint8)
    else:
        observations = rng.normal(size=(total, 3)).astype(np.float32)
    return dataset_from_arrays(
        observations=observations,
        actions=rng.uniform(-1, 1, (total, 2)).astype(np.float32),
        rewards=rng.normal(size=total).astype(np.float32),
        terminals=np.isin(np.arange(total), ends),
        masks=masks,
    )


def by_hand(dataset, row: int, window: Window) -> dict[str, Any]:
    """The window that begins at a row, step by step."""
    (end,) = (stop - 1 for start, stop in dataset.episodes if start <= row < stop)
    reward, mask, factor, last = 0.0, 1.0, 1.0, row
    for k in range(window.n_step):
        if row + k > end:
            break
        last = row + k
        reward += mask * GAMMA**k * dataset.rewards[last]
        mask *= dataset.masks[last]
        factor = GAMMA**k
    chunk = [dataset.actions[min(row + k, end)] for k in range(window.chunk)]
    following = [dataset.actions[min(last + 1 + k, end)] for k in range(window.chunk)]
    return {
        "actions": np.concatenate(chunk),
        "rewards": reward,
        "masks": factor * mask,
        "next_actions": np.concatenate(following),
        "last": last,
        "valid": [float(row + k <= end) for k in range(window.chunk)],
    }


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_on_the_device_and_on_the_host_equal_a_plain_loop(window, images):
    dataset = episodes_of_many_lengths(images)
    settings = Sampling(frame_stack=2 if images else 1, window=window)
    rows = np.arange(dataset.size, dtype=np.int32)
    host: Any = _gather_on_host(host_source(dataset, settings), rows, settings)
    device = gather_rows(device_source(dataset, settings), jnp.asarray(rows), settings)
    assert jax.tree.structure(host) == jax.tree.structure(device)
    jax.tree.map(np.testing.assert_array_equal, host, device)
    for row in rows:
        expected = by_hand(dataset, int(row), window)
        for name in ("actions", "rewards", "masks", "next_actions"):
            np.testing.assert_allclose(getattr(host, name)[row], expected[name], rtol=1e-5, atol=1e-6)
        seen = dataset.next_observations[expected["last"]]
        if images:  # the next observation is a stack that ends with this frame
            assert host.next_observations.shape == host.observations.shape
            seen = np.concatenate([dataset.observations[expected["last"]], seen], axis=-1)
        np.testing.assert_array_equal(host.next_observations[row], seen)
        if window.chunk == 1:
            assert (host.valid, host.value_weights, host.action_weights) == (None, None, None)
        else:
            np.testing.assert_array_equal(host.valid[row], expected["valid"])
            np.testing.assert_array_equal(host.action_weights[row], np.repeat(expected["valid"], 2))
            known = expected["valid"][-1] or expected["masks"] == 0
            assert host.value_weights[row] == known


def test_a_window_of_one_step_is_a_row_as_it_is_stored():
    dataset, key = episodes_of_many_lengths(), jax.random.key(0)
    settings = Sampling(window=Window(1, 1, GAMMA))
    plain, windows = (
        sample_batch(device_source(dataset), key, 32),
        sample_batch(device_source(dataset, settings), key, 32, settings),
    )
    assert windows.valid is None
    jax.tree.map(np.testing.assert_array_equal, plain, windows)


def test_a_backup_is_at_least_as_long_as_a_chunk():
    with pytest.raises(ConfigError, match="n_step must be at least chunk"):
        Window(3, 2)
    settings = Sampling(window=WINDOWS[0])
    with pytest.raises(ConfigError, match="ends of trajectories"):
        gather_rows(device_source(episodes_of_many_lengths()), jnp.zeros(2, jnp.int32), settings)


@pytest.mark.parametrize("window", [Window(1, 1, GAMMA), *WINDOWS])
def test_the_value_of_a_chunk_on_a_linear_system_is_the_closed_form(window):
    """x' = a x + b u, reward -x^2 - u^2, policy u = -k x: Q of a chunk is a known quadratic form.

    V(x) = -p x^2 with p = 1 + k^2 + gamma (a - b k)^2 p. The value of a chunk is the reward of its steps and the
    discounted V after them. With n_step > chunk, the data between follows the policy, as the return assumes.
    """
    a, b, k = 0.9, 0.5, 0.4
    p = (1 + k**2) / (1 - GAMMA * (a - b * k) ** 2)
    h, n, rng = window.chunk, window.n_step, np.random.default_rng(1)
    columns = []
    for _ in range(60):
        x = rng.uniform(-1, 1)
        length = int(rng.integers(n, n + 4))
        for step in range(length):
            # One free chunk at the start of each episode; windows that begin later are on the policy.
            u = rng.uniform(-1, 1) if step < h else -k * x
            before, x = x, a * x + b * u
            columns.append((before, u, -(before**2) - u**2, x, step == length - 1))
    states, actions, rewards, following, ends = zip(*columns, strict=True)
    dataset = dataset_from_arrays(
        observations=np.array(states, np.float32)[:, None],
        actions=np.array(actions, np.float32)[:, None],
        rewards=np.array(rewards, np.float32),
        terminals=np.array(ends),
        masks=np.ones(len(ends), np.float32),
        next_observations=np.array(following, np.float32)[:, None],
    )
    settings = Sampling(window=window)
    starts = dataset.episodes[:, 0]
    batch = _gather_on_host(host_source(dataset, settings), starts, settings)

    def features(x, u):
        z = np.concatenate([x, u], axis=1).astype(np.float64)
        return np.stack([z[:, i] * z[:, j] for i, j in itertools.combinations_with_replacement(range(h + 1), 2)], 1)

    next_x, chunk = batch.next_observations, []
    for _ in range(h):
        chunk.append(-k * next_x)
        next_x = a * next_x + b * chunk[-1]
    phi = features(batch.observations, batch.actions)
    next_phi = features(batch.next_observations, np.concatenate(chunk, axis=1))
    # Least squares on the fixed point, with the target that all methods use: r + gamma m Q(s', pi(s')).
    theta = np.linalg.lstsq(phi - GAMMA * batch.masks[:, None] * next_phi, batch.rewards, rcond=None)[0]

    x, u = rng.uniform(-1, 1, (20, 1)), rng.uniform(-1, 1, (20, h))
    value, now = np.zeros(20), x[:, 0]
    for step in range(h):
        value -= GAMMA**step * (now**2 + u[:, step] ** 2)
        now = a * now + b * u[:, step]
    np.testing.assert_allclose(features(x, u) @ theta, value - GAMMA**h * p * now**2, atol=2e-4)


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_collected_episodes_are_those_of_a_data_set(window):
    """Two lanes take turns. One of them fails in an episode, which is cut there, and begins another one."""
    dataset = episodes_of_many_lengths()
    settings = Sampling(window=window)
    expected = _gather_on_host(host_source(dataset, settings), np.arange(dataset.size, dtype=np.int32), settings)
    rows: list[tuple[int, int, int, int, bool]] = []  # of the data, lane, episode, step, whether it ended there
    lanes = [dataset.episodes[::2], dataset.episodes[1::2]]
    for lane, own in enumerate(lanes):
        failed = len(own) - 2
        for number, (start, stop) in enumerate(own):
            ends = number != failed
            own_rows = enumerate(range(start, stop))
            rows += [(row, lane, 2 * number + lane, step, ends and row == stop - 1) for step, row in own_rows]
    turns = [row for pair in itertools.zip_longest(*([r for r in rows if r[1] == i] for i in (0, 1))) for row in pair]
    builder, found = WindowBuilder(window), []
    for row, lane, episode, step, ended in filter(None, turns):
        batch = jax.tree.map(lambda column, row=row: column[row : row + 1], dataset.batch())
        one = np.array([episode]), np.array([step]), np.array([lane]), np.array([ended])
        complete = builder.add(Rows(batch, *one))
        found += [] if complete is None else [complete]
    windows: Batch = jax.tree.map(lambda *each: np.concatenate(each), *found)
    assert len(windows.rewards) == dataset.size

    def in_order(batch: Batch) -> Batch:
        order = np.lexsort(batch.observations.T)
        return jax.tree.map(lambda column: column[order], batch)

    jax.tree.map(np.testing.assert_array_equal, in_order(windows), in_order(expected))


def test_windows_do_not_cross_rows_that_were_lost():
    builder = WindowBuilder(Window(2, 2, GAMMA))
    steps = np.array([0, 1, 2, 50, 51, 52, 53])
    batch = dataset_from_arrays(
        observations=steps[:, None].astype(np.float32),
        actions=steps[:, None].astype(np.float32) / 100,
        rewards=np.ones(7, np.float32),
        terminals=steps == 53,
    ).batch()
    zeros = np.zeros(7, np.int32)
    windows = builder.add(Rows(batch, zeros, steps, zeros, steps == 53))
    assert windows is not None
    found = dict(zip(windows.observations[:, 0].tolist(), windows.actions.tolist(), strict=True))
    np.testing.assert_allclose([found[1], found[2]], [[0.01, 0.02], [0.02, 0.02]], rtol=1e-6)
    assert windows.valid is not None
    assert windows.valid[windows.observations[:, 0] == 2].tolist() == [[1.0, 0.0]]
