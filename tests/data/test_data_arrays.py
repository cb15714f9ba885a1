"""dataset_from_arrays: episode borders, the three flags, action units, and errors that name the place."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidec.data import dataset_from_arrays
from fidec.errors import DataError


def numbered(rows: int, dim: int = 2) -> dict[str, Any]:
    """Rows that can be told apart: the observation is the row's number."""
    return {
        "observations": np.arange(rows, dtype=np.float32)[:, None],
        "actions": np.linspace(-0.9, 0.9, rows * dim, dtype=np.float32).reshape(rows, dim),
        "rewards": np.arange(rows, dtype=np.float32) / 10,
    }


flags = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(flags, st.booleans(), st.booleans())
def test_nothing_crosses_an_episode_border(rows, give_masks, give_next):
    terminals, cuts, bootstrap = (np.array(column) for column in zip(*rows, strict=True))
    data = numbered(len(rows))
    if give_masks:
        data["masks"] = bootstrap
    if give_next:
        data["next_observations"] = data["observations"] + 0.5
    ends = terminals | cuts
    ends[-1] = True
    masks = bootstrap if give_masks else ~terminals
    unclear = not give_masks and cuts.any() and terminals[cuts].all()
    if unclear or (not give_next and not (~ends | ~masks).any()):
        with pytest.raises(DataError, match=r"every truncated row|no episode has a next state"):
            dataset_from_arrays(**data, terminals=terminals, truncations=cuts)
        return
    dataset = dataset_from_arrays(**data, terminals=terminals, truncations=cuts)
    episode_of_row = np.concatenate([[0], np.cumsum(ends)[:-1]])
    row = dataset.observations[:, 0].astype(int)

    # Which rows are transitions.
    expected = np.arange(len(rows)) if give_next else np.flatnonzero(~ends | ~masks)
    assert row.tolist() == expected.tolist()
    np.testing.assert_array_equal(dataset.rewards, data["rewards"][row])
    np.testing.assert_array_equal(dataset.masks, masks[row].astype(np.float32))
    # Episodes tile the rows, hold one source episode each, and end where terminals say.
    assert dataset.episodes[0, 0] == 0
    assert dataset.episodes[-1, 1] == dataset.size
    assert (dataset.episodes[1:, 0] == dataset.episodes[:-1, 1]).all()
    for start, stop in dataset.episodes:
        assert len(set(episode_of_row[row[start:stop]])) == 1
        assert dataset.terminals[start:stop].tolist() == [False] * (stop - start - 1) + [True]
        np.testing.assert_array_equal(dataset.next_actions[start : stop - 1], dataset.actions[start + 1 : stop])
        np.testing.assert_array_equal(dataset.next_actions[stop - 1], dataset.actions[stop - 1])
    assert len(dataset.episodes) == len(set(episode_of_row[row]))
    # Next states stay inside; where there is none, nothing is bootstrapped from it.
    if give_next:
        np.testing.assert_array_equal(dataset.next_observations, dataset.observations + 0.5)
    else:
        following = dataset.next_observations[:, 0].astype(int)
        own = following == row
        assert (following[~own] == row[~own] + 1).all()
        assert (episode_of_row[following] == episode_of_row[row]).all()
        assert (dataset.masks[own] == 0).all()


def test_a_time_limit_is_bootstrapped_and_a_task_end_is_not():
    data = numbered(6)
    dataset = dataset_from_arrays(
        **data,
        terminals=[0, 0, 1, 0, 0, 0],
        truncations=[0, 0, 0, 0, 0, 1],
        next_observations=data["observations"] + 1,
    )
    assert dataset.terminals.tolist() == [False, False, True, False, False, True]
    assert dataset.masks.tolist() == [1, 1, 0, 1, 1, 1]
    dropped = dataset_from_arrays(**data, terminals=[0, 0, 1, 0, 0, 0], truncations=[0, 0, 0, 0, 0, 1])
    assert dropped.observations[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert dropped.next_observations[:, 0].tolist() == [1, 2, 2, 4, 5]
    assert dropped.terminals.tolist() == [False, False, True, False, True]


def test_done_given_as_terminals_is_rejected():
    done = [0, 0, 1, 0, 0, 1]
    with pytest.raises(DataError, match="row 2: every truncated row is also terminal"):
        dataset_from_arrays(**numbered(6), terminals=done, truncations=done)


def test_actions_are_rescaled_and_the_spec_gives_them_back():
    data = numbered(8)
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    user = low + (np.random.default_rng(0).uniform(size=(8, 2))) * (high - low)
    user[0], user[1] = low, high
    data["actions"] = user
    with pytest.raises(DataError, match=r"'actions', row 0, dimension 0: -2.0 lies outside \[-1, 1\].*action_low"):
        dataset_from_arrays(**data)
    dataset = dataset_from_arrays(**data, action_low=low, action_high=high)
    assert np.abs(dataset.actions).max() <= 1 - 1e-5
    np.testing.assert_allclose(dataset.spec.to_user_units(dataset.actions), user[:-1], atol=1e-4)
    assert dataset.spec.action_low == (-2.0, 0.0)
    unit = dataset_from_arrays(**numbered(8), action_low=-1, action_high=1)
    assert unit.spec.action_low is None
    assert unit.sha256 == dataset_from_arrays(**numbered(8)).sha256
    with pytest.raises(DataError, match="outside the given bounds"):
        dataset_from_arrays(**data, action_low=-1, action_high=10)
    with pytest.raises(DataError, match="'action_high' is missing"):
        dataset_from_arrays(**data, action_low=-1)
    with pytest.raises(DataError, match="not below action_high"):
        dataset_from_arrays(**data, action_low=[-2, 10], action_high=[2, 10])


def test_images_stay_bytes_and_numbers_become_float32():
    images = np.zeros((5, 8, 8, 3), np.uint8)
    data: dict[str, Any] = numbered(5) | {"observations": images}
    assert dataset_from_arrays(**data).observations.dtype == np.uint8
    assert dataset_from_arrays(**data).spec.observation_dtype == "uint8"
    data["observations"] = np.zeros((5, 3), np.float64)
    assert dataset_from_arrays(**data).observations.dtype == np.float32
    data["rewards"] = np.zeros((5, 1), int)
    assert dataset_from_arrays(**data).rewards.shape == (4,)


def test_hash_depends_on_content_only():
    first, again = dataset_from_arrays(**numbered(9)), dataset_from_arrays(**numbered(9), name="other")
    assert first.sha256 == again.sha256
    changed = numbered(9)
    changed["rewards"][3] += 1e-3
    assert dataset_from_arrays(**changed).sha256 != first.sha256
    ended = dataset_from_arrays(**numbered(9), terminals=[0, 0, 0, 1, 0, 0, 0, 0, 0], masks=np.ones(9))
    assert ended.sha256 != first.sha256


def test_the_data_set_is_a_copy_and_read_only():
    data = numbered(5)
    data["next_observations"] = data["observations"] + 1
    dataset = dataset_from_arrays(**data)
    for array in data.values():
        array[:] = -7
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert dataset.next_observations[0, 0] == 1
    assert dataset.rewards[1] == pytest.approx(0.1)
    with pytest.raises(ValueError, match="read-only"):
        dataset.rewards[0] = 1


def test_batch_holds_the_whole_arrays():
    dataset = dataset_from_arrays(**numbered(5))
    batch = dataset.batch()
    assert batch.observations is dataset.observations
    assert batch.next_actions.shape == (4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observations": np.full((6, 1), np.nan)}, r"'observations', row 0, column 0: the value is nan"),
        ({"rewards": [0, 0, 0, np.inf, 0, 0]}, r"'rewards', row 3: the value is inf"),
        ({"rewards": [0, 0, 0, 1e39, 0, 0]}, r"'rewards', row 3: .*not a finite float32"),
        ({"rewards": np.zeros(5)}, r"'rewards' has 5 rows but 'observations' has 6"),
        ({"rewards": np.zeros((6, 2))}, r"'rewards' has shape \(6, 2\)"),
        ({"rewards": list("abcdef")}, r"'rewards' holds text"),
        ({"rewards": np.array([None] * 6)}, r"'rewards' holds Python objects"),
        ({"rewards": np.zeros(6, complex)}, r"'rewards' holds complex numbers"),
        ({"observations": np.zeros(6)}, r"'observations' has shape \(6,\)"),
        ({"observations": np.zeros((6, 2, 2))}, r"'observations' has shape \(6, 2, 2\)"),
        ({"observations": np.zeros((6, 4, 4, 3))}, r"'observations' has images of float64; expected uint8"),
        ({"observations": np.zeros((0, 3))}, r"'observations' has shape \(0, 3\)"),
        ({"observations": [[1], [1, 2]]}, r"'observations' is not an array of numbers"),
        ({"actions": np.zeros(6, np.float32)}, r"actions\[:, None\]"),
        ({"actions": np.zeros((6, 1), int)}, r"discrete actions"),
        ({"terminals": [0, 0, 2, 0, 0, 0]}, r"'terminals', row 2: the value is 2.0; expected 0 or 1"),
        ({"masks": [0.5] * 6}, r"'masks', row 0"),
        ({"next_observations": np.zeros((6, 4))}, r"'next_observations' is \(6, 4\)"),
        ({"terminals": np.ones(6), "masks": np.ones(6)}, r"no episode has a next state"),
        ({"actions": None}, r"'actions' is missing"),
    ],
)
def test_errors_name_key_and_row(change, message):
    with pytest.raises(DataError, match=message):
        dataset_from_arrays(**(numbered(6) | change), name="mine")


def test_a_data_set_rejects_an_episode_index_that_does_not_fit():
    good = dataset_from_arrays(**numbered(5))
    with pytest.raises(DataError, match="episode index"):
        dataclasses.replace(good, episodes=np.array([[0, 2], [2, 4]]))
    with pytest.raises(DataError, match="'rewards' has 2 rows"):
        dataclasses.replace(good, rewards=good.rewards[:2])


def test_data_is_loaded_and_checked_without_jax_and_without_a_simulator(tmp_path):
    np.savez(tmp_path / "mine.npz", **numbered(5), terminals=np.arange(5) == 4)
    code = (
        "import sys\n"
        "for name in ('jax', 'gymnasium', 'ogbench', 'mujoco', 'minari', 'gymnasium_robotics'):\n"
        "    sys.modules[name] = None\n"
        "from fidec.data import check_dataset, load_dataset\n"
        "from fidec.data.summary import list_cache\n"
        "import fidec.data.sources.minari, fidec.data.sources.d4rl, fidec.data.download\n"
        "check_dataset(load_dataset(sys.argv[1])).to_text()\n"
        "try:\n"
        "    load_dataset('cube-single-play-singletask-v0')\n"
        "except fidec.errors.ConfigError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "mine.npz")]
    printed = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert "needs the package ogbench: pip install 'fidec[ogbench]'" in printed


@pytest.mark.parametrize("give_next", [False, True])
def test_a_small_mapped_file_is_copied(tmp_path, give_next):
    """Only many images stay in their file; these are plain arrays, and the file may change afterwards."""
    data: dict[str, Any] = numbered(50) | {"observations": np.arange(150, dtype=np.float32).reshape(50, 3)}
    np.save(tmp_path / "obs.npy", data["observations"])
    mapped = np.load(tmp_path / "obs.npy", mmap_mode="r")
    data |= {"observations": mapped, "next_observations": mapped if give_next else None}
    dataset = dataset_from_arrays(**data)
    assert not dataset.mapped
    assert dataset.observations.mean() > 0
    before = dataset.observations.copy()
    np.load(tmp_path / "obs.npy", mmap_mode="r+")[:] = 0
    np.testing.assert_array_equal(dataset.observations, before)
    assert dataset.next_observations.max() > 0
