"""Moments in one pass are those of all rows at once."""

from __future__ import annotations

import numpy as np
import pytest

from fidec.data.statistics import moments_of


@pytest.mark.parametrize("sizes", [(500,), (1, 499), (3, 200, 297), (1,) * 500])
def test_parts_of_any_size_have_the_moments_of_all_rows(sizes):
    generator = np.random.default_rng(0)
    offsets = np.array([0.0, 1e4, -1e8])  # a sum of squares would lose the deviation of the last column
    rows = generator.normal(size=(500, 3)) * [1.0, 0.1, 10.0] + offsets
    found = moments_of(np.split(rows, np.cumsum(sizes)[:-1]))
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.std, [*rows.std(axis=0)[:2], 1.0], rtol=1e-9)  # 10 is nothing beside 1e8
    np.testing.assert_array_equal([found.low, found.high], [rows.min(axis=0), rows.max(axis=0)])


def test_a_constant_column_has_the_deviation_one():
    assert moments_of([np.full((4, 1), 0.1, np.float32), np.full((3, 1), 0.1, np.float32)]).std == [1.0]


def test_each_part_is_read_once():
    parts = iter([np.ones((2, 1)), np.zeros((2, 1))])
    assert moments_of(parts).mean == [0.5]
