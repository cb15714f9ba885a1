"""Actions measured by the quantiles of the data."""

from __future__ import annotations

import numpy as np
import pytest

from fidec import dataset_from_arrays
from fidec.data.transforms import Transforms, quantile_bounds, within
from fidec.errors import ConfigError


@pytest.fixture
def robot():
    rng = np.random.default_rng(0)
    actions = np.stack([rng.uniform(2, 4, 1000), rng.uniform(-1, 1, 1000), np.full(1000, 5.0)], axis=1)
    actions[0] = [-40, 30, 5]  # a single outlier
    return dataset_from_arrays(
        rng.normal(size=(1000, 2)), actions, np.zeros(1000), action_low=-40.0, action_high=40.0, name="robot"
    )


def test_bounds_are_the_quantiles_in_the_units_of_the_data(robot):
    low, high = quantile_bounds(robot, 0.01)
    assert low[:2] == pytest.approx((2.02, -0.98), abs=0.02)
    assert high[:2] == pytest.approx((3.98, 0.98), abs=0.02)
    assert (low[2], high[2]) == (-40, 40)  # a constant dimension has no range of its own
    whole = quantile_bounds(robot, 0.0)
    assert whole[0][0] == pytest.approx(-40, abs=1e-2)
    assert whole[1][1] == pytest.approx(30, abs=1e-2)


def test_actions_keep_their_meaning_and_are_clipped_to_the_bounds(robot):
    bounds = quantile_bounds(robot, 0.01)
    narrow = within(robot, bounds)
    before, after = (each.spec.to_user_units(each.actions) for each in (robot, narrow))
    assert np.abs(after - np.clip(before, *bounds)).max() < 1e-3
    assert np.abs(narrow.actions).max() <= 1
    assert np.abs(narrow.actions[:, :2]).mean() > 0.4  # the data fills its range
    assert np.array_equal(narrow.next_actions[:-1], narrow.actions[1:])
    assert 0.03 < narrow.info["clipped_action_rows"] < 0.05
    assert narrow.sha256 != robot.sha256


def test_a_quantile_is_below_a_half():
    with pytest.raises(ConfigError, match=r"\[0, 0.5\), not 0.7"):
        Transforms(action_quantile=0.7)
