"""Discounted returns of a data set: G = r + gamma m G', and the last reward for ever after a cut."""

from __future__ import annotations

import numpy as np
import pytest

from fidec.data.dataset import OfflineDataset, episodes_of
from fidec.errors import DataError


def dataset(rewards, masks, terminals):
    rows = len(rewards)
    nothing, terminals = np.zeros((rows, 1), np.float32), np.asarray(terminals, bool)
    return OfflineDataset(
        observations=nothing,
        actions=nothing,
        rewards=np.asarray(rewards, np.float32),
        masks=np.asarray(masks, np.float32),
        terminals=terminals,
        next_observations=nothing,
        next_actions=nothing,
        episodes=episodes_of(terminals),
        name="made",
        source="made",
    )


def ends(rows, *at):
    return np.isin(np.arange(rows), [*at, rows - 1])


def by_the_definition(data, discount):
    returns, after = np.empty(len(data)), 0.0
    for i in reversed(range(len(data))):
        if data.terminals[i]:
            after = float(data.rewards[i]) / (1.0 - discount)
        after = float(data.rewards[i]) + discount * float(data.masks[i]) * after
        returns[i] = after
    return returns


def test_a_trajectory_that_ends_is_a_geometric_sum():
    masks = np.ones(7)
    masks[-1] = 0
    returns = dataset(np.full(7, -1.0), masks, ends(7)).returns(0.9)
    np.testing.assert_allclose(returns, -(1 - 0.9 ** np.arange(7, 0, -1)) / (1 - 0.9), rtol=1e-6)


def test_a_cut_trajectory_continues_with_its_last_reward():
    """A failure at -1 a step is worth the same at every row: the time limit is not a rescue."""
    np.testing.assert_allclose(dataset(np.full(7, -1.0), np.ones(7), ends(7)).returns(0.9), -10.0, rtol=1e-6)
    returns = dataset([0.0, 0.0, 2.0], np.ones(3), ends(3)).returns(0.5)
    np.testing.assert_allclose(returns, [1.0, 2.0, 4.0])


def test_a_mask_in_the_middle_ends_the_sum():
    returns = dataset([1.0, 2.0, 4.0, 8.0], [1, 0, 1, 0], ends(4)).returns(0.5)
    np.testing.assert_allclose(returns, [2.0, 2.0, 8.0, 8.0])


def test_trajectories_are_independent():
    first = dataset([1.0, 2.0], [1, 1], ends(2)).returns(0.9)
    second = dataset([-5.0, 3.0, 7.0], [1, 1, 0], ends(3)).returns(0.9)
    both = dataset([1.0, 2.0, -5.0, 3.0, 7.0], [1, 1, 1, 1, 0], ends(5, 1)).returns(0.9)
    np.testing.assert_array_equal(both, np.concatenate([first, second]))


@pytest.mark.parametrize("discount", [0.0, 0.5, 0.99, 0.999])
@pytest.mark.parametrize("length", [1, 2, 37, 1000])
def test_returns_are_those_of_the_definition(discount, length):
    rng = np.random.default_rng(length)
    terminals = rng.random(3000) < 1 / length
    terminals[-1] = True
    data = dataset(rng.normal(size=3000), rng.random(3000) > 0.02, terminals)
    np.testing.assert_allclose(data.returns(discount), by_the_definition(data, discount), rtol=1e-6, atol=1e-6)


def test_one_long_trajectory_keeps_its_precision():
    """Doubling multiplies weights that become tiny; what is left of float64 is still far below float32's."""
    rng = np.random.default_rng(0)
    data = dataset(rng.uniform(-1, 0, 50_000), np.ones(50_000), ends(50_000))
    np.testing.assert_allclose(data.returns(0.995), by_the_definition(data, 0.995), rtol=1e-6)


def test_a_batch_has_returns_if_a_discount_is_given():
    data = dataset([1.0, 2.0], [1, 0], ends(2))
    assert data.batch().returns is None
    returns = data.batch(0.5).returns
    assert returns is not None
    assert returns.dtype == np.float32
    np.testing.assert_array_equal(returns, [2.0, 2.0])


@pytest.mark.parametrize("discount", [1.0, -0.1, 2.0, float("nan")])
def test_a_discount_without_a_finite_sum_is_rejected(discount):
    with pytest.raises(DataError, match="discount"):
        dataset([1.0], [1], ends(1)).returns(discount)
