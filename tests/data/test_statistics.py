"""Statistics of the data that a policy carries."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fidec
from fidec.data import statistics
from fidec.data.statistics import data_statistics, distances
from helpers.room_env import room_columns
from helpers.runs import random_columns


def test_statistics_are_those_of_numpy_in_the_users_units(monkeypatch):
    monkeypatch.setattr(statistics, "block_rows", lambda array: 33)  # several parts
    columns = random_columns()
    columns["observations"][:, 1] = 4.0
    columns["actions"] = 10 * columns["actions"]
    dataset = fidec.dataset_from_arrays(**columns, action_low=[-10, -10], action_high=[10, 10])
    found = data_statistics([dataset])
    seen = columns["observations"].astype(np.float64)
    mean, std, low, high = (np.array(found["observations"][name]) for name in ("mean", "std", "low", "high"))
    np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(std, [seen[:, 0].std(), 1.0, seen[:, 2].std()], rtol=1e-6)
    np.testing.assert_array_equal([low, high], [seen.min(axis=0), seen.max(axis=0)])
    np.testing.assert_allclose(found["actions"]["high"], columns["actions"].max(axis=0), rtol=1e-4)
    assert found["distance"]["p99"] == pytest.approx(np.quantile(distances(seen, mean, std), 0.99))
    assert found["rows"] == 200
    assert json.loads(json.dumps(found)) == data_statistics([dataset]) == found


def test_two_data_sets_are_taken_together():
    one, two = (fidec.dataset_from_arrays(**random_columns(seed=seed)) for seed in (0, 1))
    both = np.concatenate([one.observations, two.observations]).astype(np.float64)
    found = data_statistics([one, two])["observations"]
    np.testing.assert_allclose(found["mean"], both.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found["std"], both.std(axis=0), rtol=1e-6)


def test_of_images_the_brightness_of_each_channel_is_kept(monkeypatch):
    dataset = fidec.dataset_from_arrays(**room_columns())
    means = dataset.observations[:].mean(axis=(1, 2), dtype=np.float64)
    found = data_statistics([dataset])["observations"]
    np.testing.assert_allclose(found["mean"], means.mean(axis=0))
    np.testing.assert_allclose(found["high"], means.max(axis=0))
    monkeypatch.setattr(statistics, "FRAMES", 5)
    some = means[np.linspace(0, len(means) - 1, 5).astype(int)]
    np.testing.assert_allclose(data_statistics([dataset])["observations"]["mean"], some.mean(axis=0))


def test_a_run_stores_them_in_its_policy(tmp_path):
    dataset = fidec.dataset_from_arrays(**random_columns())
    fidec.fit(dataset, tmp_path / "run", algo="bc", steps=1, options={"hidden": (8,)}, quiet=True)
    assert fidec.load_policy(tmp_path / "run").info["data_statistics"] == data_statistics([dataset])
