"""Rewards that count what is left become -1 a step and 0 where the task is done, if a run asks for it."""

import numpy as np
import pytest

from fidec.data import dataset_from_arrays
from fidec.data.transforms import Transforms
from fidec.errors import DataError


def recorded(rewards, done, second=None):
    """Two episodes with these rewards; the last row of the first one ends the task if `done`."""
    rewards = np.asarray([*rewards, *(rewards if second is None else second)], np.float32)
    rows, half = len(rewards), len(rewards) // 2
    terminals, truncations = np.zeros(rows, bool), np.zeros(rows, bool)
    terminals[half - 1], truncations[-1] = done, True
    truncations[half - 1] = not done  # the last row of a cut episode has no next one, and is left out
    columns = np.arange(rows, dtype=np.float32)[:, None]
    return dataset_from_arrays(columns, np.zeros((rows, 1), np.float32), rewards, terminals, truncations=truncations)


def counting():
    """-3, -2, -1 and 0 at the end of the first episode, where the task is done; the second one stops before."""
    return recorded([-3, -2, -2, 0], done=True, second=[-3, -2, -2, -1])


def test_a_task_that_counts_what_is_left_is_sparse():
    dataset = counting()
    assert np.flatnonzero(dataset.masks == 0).tolist() == [3]
    (seen,) = Transforms("auto").view(dataset)
    assert seen.rewards.tolist() == [-1, -1, -1, 0, -1, -1, -1]
    assert seen.info["reward_done"] == 0.0
    assert dataset.rewards.min() == -3, "the data itself does not change"


@pytest.mark.parametrize(
    ("rewards", "done"),
    [
        ([-1, -1, -1, -1], True),  # one reward: there is nothing to change
        ([-3, -2, -2, 0], False),  # the highest one does not end the task
        ([0, -2, -1, 0], True),  # it also stands where the task is not done
        (list(np.linspace(-4, 0, 40)), True),  # dense
    ],
)
def test_other_rewards_stay_as_they_are(rewards, done):
    dataset = recorded(rewards, done)
    (seen,) = Transforms("auto").view(dataset)
    np.testing.assert_array_equal(seen.rewards, dataset.rewards)
    assert "reward_done" not in seen.info


def test_a_second_data_set_has_the_rule_of_the_first():
    first, second = counting(), recorded([-3, -2, -1, -1], done=False)
    assert [seen.rewards.max() for seen in Transforms("auto").view(first, second)] == [0, -1]
    assert Transforms("sparse").view(second)[0].rewards.tolist() == [-1, -1, 0] * 2
    assert Transforms().view(first) == [first]


def test_the_hash_is_that_of_the_rewards_as_given():
    """So runs with another rule are comparable, and a flow of one serves the other."""
    dataset = counting()
    (seen,) = Transforms("sparse", held_out=0.5).view(dataset)
    assert seen.sha256 == dataset.sha256
    used, held = Transforms("sparse", held_out=0.5).split(seen)
    assert held is not None
    assert len({dataset.sha256, used.sha256, held.sha256}) == 3
    (late,) = Transforms("sparse", delay=1).view(dataset)
    assert late.sha256 == Transforms(delay=1).view(dataset)[0].sha256 != dataset.sha256


def test_rewards_that_tell_nothing_are_refused():
    with pytest.raises(DataError, match="all rewards are -1"):
        Transforms("sparse").view(recorded([-1, -1, -1], done=True))
    bare = dataset_from_arrays(np.zeros((4, 1), np.float32), np.zeros((4, 1), np.float32))
    with pytest.raises(DataError, match="there are no rewards"):
        Transforms("sparse").view(bare)
