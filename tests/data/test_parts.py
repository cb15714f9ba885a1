"""Observations of several parts: how they are given and stored, and batches of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import h5py
import jax
import numpy as np
import pytest

from fidec import dataset_from_arrays, load_dataset, rng
from fidec.data import batches, check_dataset, disk_array
from fidec.data.batches import Data, Sampling, batch_of, device_source, sample_batch
from fidec.data.statistics import data_statistics, features_of
from fidec.data.summary import describe_dataset, description_text
from fidec.data.transforms import hold_out
from fidec.data.windows import Window
from fidec.errors import DataError
from fidec.parts import Frames
from helpers.algorithms import equal, fast_jit
from helpers.runs import random_columns
from helpers.two_cameras import EPISODE, FRONT, WRIST, episodes

COUNT = 5
jitted, finished = fast_jit(sample_batch, static_argnums=(2, 3)), fast_jit(batch_of, static_argnums=3)


def flat(listed: dict[str, Any] | None = None) -> dict[str, Any]:
    """The episodes as flat arrays, with the next observations as a dictionary too."""
    listed = listed or episodes(COUNT)
    seen = {name: [each[name] for each in listed["observations"]] for name in ("wrist", "state", "front")}
    return {
        "observations": {name: np.concatenate([a[:-1] for a in arrays]) for name, arrays in seen.items()},
        "next_observations": {name: np.concatenate([a[1:] for a in arrays]) for name, arrays in seen.items()},
        "actions": np.concatenate(listed["actions"]),
        "rewards": np.concatenate(listed["rewards"]),
        "episodes": np.repeat(np.arange(len(listed["actions"])), [len(each) for each in listed["actions"]]),
    }


def stored(columns: dict[str, Any]) -> dict[str, Any]:
    """The keys of a file."""
    found = {key: value for key, value in columns.items() if not isinstance(value, dict)}
    parts = [(key, columns[key]) for key in ("observations", "next_observations") if key in columns]
    return found | {f"{key}/{name}": array for key, arrays in parts for name, array in arrays.items()}


def test_all_forms_give_the_same_data():
    listed = episodes(COUNT)
    by_name = {name: [each[name] for each in listed["observations"]] for name in ("state", "wrist", "front")}
    forms = [listed, listed | {"observations": by_name}, flat(listed)]
    found = [dataset_from_arrays(**form) for form in forms]
    assert len({each.sha256 for each in found}) == 1
    dataset = found[0]
    assert dataset.size == COUNT * EPISODE
    assert {part.name: part.shape for part in dataset.spec.parts} == {"front": FRONT, "state": (3,), "wrist": WRIST}
    assert list(dataset.observations) == list(dataset.next_observations) == ["front", "state", "wrist"]
    assert not dataset.observations["front"].flags.writeable
    other = flat(listed)
    other["observations"]["state"][0, 0] += 1
    assert dataset_from_arrays(**other).sha256 != dataset.sha256


def test_without_next_observations_they_are_those_of_the_next_row():
    columns = flat()
    del columns["next_observations"]
    dataset = dataset_from_arrays(**columns)
    assert dataset.size == COUNT * (EPISODE - 1)  # the last row of a cut episode has no next state
    rows = np.flatnonzero(~dataset.terminals)
    for name, array in dataset.observations.items():
        np.testing.assert_array_equal(dataset.next_observations[name][rows], array[rows + 1])


def test_a_single_array_has_the_hash_that_it_had_before_there_were_parts():
    expected = "4dfc168e24a634fa54bcd2ca5f48d96c24eb5acf85bf9f8cb8d98a2a64797936"
    assert dataset_from_arrays(**random_columns()).sha256 == expected


def _changed(column: str, part: str, value: Any) -> dict[str, Any]:
    columns = flat()
    if value is None:
        del columns[column][part]
    else:
        columns[column][part] = value
    return columns


ROWS = COUNT * EPISODE


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (_changed("next_observations", "front", None), "'next_observations' has no part 'front'"),
        (flat() | {"observations": {}}, "'observations' is a dictionary without entries"),
        (_changed("observations", "front", None), "'observations' has no part 'front', but 'next_observations' has"),
        (flat() | {"next_observations": np.zeros((ROWS, 3))}, "must both be arrays, or both have parts"),
        (
            _changed("observations", "state", np.zeros((7, 3))),
            r"'observations/state' has 7 rows but 'observations/fr",
        ),
        (_changed("observations", "front", np.zeros((ROWS, *FRONT))), "'observations/front' has images of float64"),
        (_changed("observations", "state", np.zeros((ROWS, 2, 2))), r"'observations/state' has shape \(30, 2, 2\)"),
        (_changed("observations", "state", np.zeros(ROWS)), r"'observations/state' has shape \(30,\)"),
        (_changed("observations", "state", np.full((ROWS, 3), np.nan)), "'observations/state', row 0, column 0"),
        (_changed("observations", "state", np.array(["a"] * ROWS)), "'observations/state' holds text"),
        (_changed("observations", "a/b", np.zeros((ROWS, 1))), "a part 'a/b'; expected a name of letters"),
        (_changed("next_observations", "state", np.zeros((ROWS, 4))), r"'next_observations/state' is \(30, 4\)"),
    ],
)
def test_errors_name_the_part(columns, words):
    with pytest.raises(DataError, match=words):
        dataset_from_arrays(**columns)


def test_errors_in_lists_name_the_part_and_the_episode():
    listed = episodes(3)
    del listed["observations"][2]["wrist"]
    with pytest.raises(DataError, match=r"episode 2: has the parts front, state; episode 0 has front, state, wrist"):
        dataset_from_arrays(**listed)
    listed = episodes(3)
    listed["observations"][1]["state"] = listed["observations"][1]["state"][:-1]
    with pytest.raises(DataError, match=r"'observations/state', episode 1: has 6 rows for 6 actions, but 'observat"):
        dataset_from_arrays(**listed)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_files_store_parts_and_large_images_stay_in_them(compressed, tmp_path, monkeypatch):
    columns = stored(flat())
    (np.savez_compressed if compressed else np.savez)(tmp_path / "mine.npz", **columns)
    loaded = load_dataset(f"npz:{tmp_path}/mine.npz")
    assert loaded.sha256 == dataset_from_arrays(**flat()).sha256
    assert not loaded.mapped
    monkeypatch.setattr(disk_array, "MAPPED_BYTES", 0)
    large = load_dataset(f"npz:{tmp_path}/mine.npz")
    assert large.mapped
    assert large.sha256 == loaded.sha256
    settings = Sampling(frame_stack=2, history=3, augment=1.0)
    key = rng.stream(1, "batch")
    assert equal(
        jitted(device_source(large, settings), key, 8, settings),
        jitted(device_source(loaded, settings), key, 8, settings),
    )
    both: dict[str, Any] = columns | {"observations": np.zeros((ROWS, 2))}
    np.savez(tmp_path / "both.npz", **both)
    with pytest.raises(DataError, match=r"'observations/.*' is a part of 'observations', which is there as an array"):
        load_dataset(f"npz:{tmp_path}/both.npz")


def test_a_hostile_name_of_a_part_leaves_no_file_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_array, "MAPPED_BYTES", 0)
    columns = stored(flat())
    columns["observations/../../evil"] = columns["observations/front"]
    (tmp_path / "a" / "b").mkdir(parents=True)
    np.savez_compressed(tmp_path / "a" / "b" / "mine.npz", **columns)
    with pytest.raises(DataError, match="expected a name of letters"):
        load_dataset(f"npz:{tmp_path}/a/b/mine.npz")
    assert not [path for path in tmp_path.rglob("*evil*") if "b" not in path.parts]


def test_hdf5_groups_have_parts(tmp_path):
    columns = stored(flat())
    with h5py.File(tmp_path / "mine.hdf5", "w") as file:
        for key, value in columns.items():
            file[key] = value
    assert load_dataset(f"hdf5:{tmp_path}/mine.hdf5").sha256 == dataset_from_arrays(**flat()).sha256


@pytest.mark.parametrize("window", [Window(), pytest.param(Window(2, 3, 0.9), marks=pytest.mark.slow)])
def test_observations_are_stacked_within_their_episode(window):
    """Against a loop over episodes: `Frames`, which the policy has, stacks what the batch has."""
    dataset = dataset_from_arrays(**episodes(COUNT))
    settings, counts = Sampling(frame_stack=2, history=3, window=window), {"front": 2, "state": 3, "wrist": 2}
    batch = jitted(device_source(dataset, settings), rng.stream(0, "batch"), 64, settings)
    seen, after = {}, {}
    for first, stop in dataset.episodes:
        frames = Frames(counts)
        for row in range(first, stop):
            seen[row] = frames({name: array[row] for name, array in dataset.observations.items()})
        frames.reset()
        for row in range(first, stop):
            stacked = frames({name: array[row] for name, array in dataset.observations.items()})
            last = min(row + window.n_step - 1, stop - 1)
            newest = {name: array[last] for name, array in dataset.next_observations.items()}
            after[row] = {
                k: np.concatenate([seen[last][k][..., newest[k].shape[-1] :], newest[k]], -1) for k in newest
            }
            assert equal(stacked, seen[row])
    rows = np.asarray(jax.random.randint(rng.stream(0, "batch"), (64,), 0, dataset.size))
    for number, row in enumerate(rows):
        assert equal(jax.tree.map(lambda leaf, n=number: leaf[n], batch.observations), seen[row])
        assert equal(jax.tree.map(lambda leaf, n=number: leaf[n], batch.next_observations), after[row])


def test_vectors_without_a_history_are_not_stacked():
    dataset = dataset_from_arrays(**random_columns())
    assert Sampling.of(dataset.spec, 3, 0.5, 0.5, history=1) == Sampling()
    assert Sampling.of(dataset.spec, 3, 0.5, 0.5, history=4) == Sampling(history=4)
    images = dataset_from_arrays(
        **flat() | {"observations": {"a": flat()["observations"]["front"]}, "next_observations": None}
    )
    assert Sampling.of(images.spec, 3, 0.5, 0.5, history=4) == Sampling(frame_stack=3, augment=0.5)
    spec = dataset.spec.stacked(3, 4)
    assert (spec.observation_shape, spec.history, spec.frame_stack) == ((12,), 4, 1)


@pytest.mark.parametrize(
    ("place", "window"), [("mapped", Window()), pytest.param("host", Window(2, 3, 0.9), marks=pytest.mark.slow)]
)
def test_host_and_file_feed_what_the_device_would_draw(place, window, monkeypatch, tmp_path):
    monkeypatch.setattr(batches, "AHEAD_STEPS", 3)
    settings = Sampling(frame_stack=2, history=3, augment=0.5, window=window)
    datasets = [dataset_from_arrays(**flat()), dataset_from_arrays(**flat(episodes(3, seed=1)))]
    expected = Data.of(datasets, settings).feed(3, 8, settings)
    if place == "mapped":
        np.savez(tmp_path / "mine.npz", **stored(flat()))
        monkeypatch.setattr(disk_array, "MAPPED_BYTES", 0)
        datasets[0] = load_dataset(f"npz:{tmp_path}/mine.npz")
        assert datasets[0].mapped
    data = Data.of(datasets, settings, limit=0)
    assert not data.on_device
    actual = data.feed(3, 8, settings)
    key = rng.at(rng.stream(3, "batch"), 4)
    for step in (0, 4):
        assert equal(*(finished(each.at(step)[0], step, key, settings) for each in (expected, actual)))
    actual.close()


def test_all_cameras_of_a_row_are_shifted_by_one_offset():
    rows, generator = 24, np.random.default_rng(0)
    big = generator.integers(0, 256, (rows, 12, 12, 3), dtype=np.uint8)
    columns: dict[str, Any] = {"observations": {"a": big, "b": big[:, :, :, :1], "c": np.arange(rows)[:, None]}}
    columns |= {"next_observations": columns["observations"], "actions": np.zeros((rows, 1), np.float32)}
    dataset = dataset_from_arrays(**columns)
    batch = jitted(device_source(dataset), rng.stream(0, "batch"), 16, Sampling(augment=1.0))
    plain = jitted(device_source(dataset), rng.stream(0, "batch"), 16, Sampling())
    assert equal(batch.observations, batch.next_observations)
    np.testing.assert_array_equal(batch.observations["a"][..., :1], batch.observations["b"])
    assert not equal(batch.observations["a"], plain.observations["a"])
    assert equal(batch.observations["c"], plain.observations["c"])


def test_statistics_checks_and_descriptions_cover_all_parts():
    dataset = dataset_from_arrays(**episodes(10))
    mean, std = dataset.observation_statistics["state"]
    np.testing.assert_allclose(mean, dataset.observations["state"].mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(std, dataset.observations["state"].std(axis=0), rtol=1e-5)
    assert list(dataset.observation_statistics) == ["state"]
    features = features_of(dataset.observations)
    assert features.shape == (dataset.size, 3 + 3 + 3)
    np.testing.assert_allclose(features[:, 3:6], dataset.observations["state"])
    np.testing.assert_allclose(features[:, 0], dataset.observations["front"][:, 0, 0, 0])
    assert len(data_statistics([dataset])["observations"]["mean"]) == 9
    facts = describe_dataset(dataset)
    assert facts["observation_shape"] == {"front": list(FRONT), "state": [3], "wrist": list(WRIST)}
    assert "observations/wrist" in description_text(facts)
    report = check_dataset(dataset)
    assert report.worst in ("ok", "note")
    following = dict(dataset.next_observations)
    following["wrist"] = following["wrist"][::-1]
    broken = check_dataset(replace(dataset, next_observations=following))
    assert "next state" in [finding.topic for finding in broken.findings if finding.severity == "warning"]
    scaled = {**dataset.observations, "state": 1e4 * dataset.observations["state"]}
    texts = [finding.text for finding in check_dataset(replace(dataset, observations=scaled)).findings]
    assert any(text.startswith("observations/state reach 5e+04") for text in texts)
    used, held = hold_out(dataset, 0.2)
    assert (used.size, held.size) == (8 * EPISODE, 2 * EPISODE)
    assert list(held.observations) == ["front", "state", "wrist"]
