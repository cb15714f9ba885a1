"""Data larger than memory: mapped from its file, unpacked once if it is compressed, and fed with the same bits."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import tracemalloc
from collections import namedtuple
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import jax
import numpy as np
import pytest

from fidec import dataset_from_arrays, load_dataset, rng
from fidec.data import batches, cache, check_dataset, disk_array
from fidec.data.batches import (
    Data,
    DeviceFeed,
    HostFeed,
    Mixture,
    Sampling,
    batch_of,
    device_source,
    host_source,
    sample_batch,
)
from fidec.data.npz import read_npz, write_npz
from fidec.data.statistics import data_statistics
from fidec.data.transforms import hold_out
from fidec.data.windows import Window
from fidec.errors import DataError
from fidec.launch import launch
from helpers.algorithms import fast_jit
from helpers.runs import random_columns

SEED, BATCH = 3, 8
images = partial(Sampling, frame_stack=3, augment=0.5)


def frame_columns(rows: int = 60, episode: int = 12, size: int = 8, seed: int = 0) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {
        "observations": generator.integers(0, 256, (rows, size, size, 3)).astype(np.uint8),
        "actions": generator.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": generator.normal(size=rows).astype(np.float32),
        "truncations": np.arange(rows) % episode == episode - 1,
    }


@pytest.fixture
def map_all(monkeypatch):
    monkeypatch.setattr(disk_array, "MAPPED_BYTES", 0)
    monkeypatch.setattr(disk_array, "VECTOR_BYTES", 0)


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(batches, "AHEAD_STEPS", 3)


def saved(path, compressed: bool = False, **columns):
    path.parent.mkdir(exist_ok=True)
    (np.savez_compressed if compressed else np.savez)(path, **(columns or frame_columns()))
    return path


def assert_same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


CASES = {
    "vectors": ([random_columns()], Sampling()),
    "single frames": ([frame_columns()], Sampling(augment=1.0)),
    "two sets of frames": ([frame_columns(), frame_columns(36, seed=1)], images(fraction=0.25)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_host_feeds_what_the_device_would_draw(case, short_chunks):
    """Group by group in order, after a jump as a resumed run makes it, and going back; and as `sample_batch` does."""
    columns, sampling = CASES[case]
    datasets = [dataset_from_arrays(**each) for each in columns]
    device, host = (
        Data.of(datasets, sampling, discount=0.9, limit=limit).feed(SEED, BATCH, sampling) for limit in (1e9, 0)
    )
    assert (type(device), type(host)) == (DeviceFeed, HostFeed)
    assert jax.tree.structure(device.example) == jax.tree.structure(host.example)
    assert jax.tree.leaves(device.example) == jax.tree.leaves(host.example)
    sources = [device_source(dataset, sampling, 0.9) for dataset in datasets]
    data = Mixture(*sources) if len(sources) == 2 else sources[0]
    finished, at_once = fast_jit(batch_of, static_argnums=3), fast_jit(sample_batch, static_argnums=(2, 3))
    for step in (0, 1, 2, 3, 7, 20, 4):
        (ours, stop), (theirs, end) = host.at(step), device.at(step)
        assert stop == end == step - step % 3 + 3
        assert_same(ours, theirs)
        key = rng.at(rng.stream(SEED, "batch"), step)
        assert_same(finished(ours, step, key, sampling), at_once(data, key, BATCH, sampling))
    host.close()


def test_a_failure_while_reading_ahead_is_not_lost(short_chunks):
    host: Any = Data.of([dataset_from_arrays(**frame_columns())], images(), limit=0).feed(SEED, BATCH, images())
    host._sources = [None]
    with pytest.raises(TypeError):
        host.at(0)
    host.close()


def test_the_default_limit_is_half_of_the_free_memory(monkeypatch):
    dataset = dataset_from_arrays(**frame_columns())
    assert batches.free_memory() > 1e6
    for free, kind in ((2 * dataset.nbytes, DeviceFeed), (2 * dataset.nbytes - 2, HostFeed)):
        monkeypatch.setattr(batches, "free_memory", lambda free=free: free)
        made = Data.of([dataset], images()).feed(SEED, BATCH, images())
        assert type(made) is kind
        made.close()


@pytest.mark.parametrize("compressed", [False, True])
def test_mapped_images_equal_loaded_ones(tmp_path, map_all, monkeypatch, compressed):
    path = saved(tmp_path / "frames.npz", compressed)
    on_disk: Any = load_dataset(f"npz:{path}")
    assert on_disk.mapped
    assert on_disk.observations.frames is on_disk.next_observations.frames  # one image is stored once
    with monkeypatch.context() as patch:
        patch.setattr(disk_array, "MAPPED_BYTES", 2**40)
        patch.setattr(disk_array, "VECTOR_BYTES", 2**40)
        loaded = load_dataset(f"npz:{path}")
    assert not loaded.mapped
    for key in ("observations", "next_observations", "actions", "masks"):
        np.testing.assert_array_equal(getattr(on_disk, key), getattr(loaded, key))
    assert (on_disk.sha256, on_disk.nbytes, on_disk.spec) == (loaded.sha256, loaded.nbytes, loaded.spec)
    monkeypatch.setattr(disk_array, "BLOCK_BYTES", 1000)  # several chunks, the last one shorter
    del on_disk.__dict__["sha256"]
    assert on_disk.sha256 == loaded.sha256
    ours, theirs = check_dataset(on_disk), check_dataset(loaded)
    assert ours.findings == theirs.findings
    assert {**ours.facts, "mapped": False} == theirs.facts
    assert "large arrays stay on the disk" in ours.to_text()
    with pytest.raises(OSError, match="Bad file descriptor"):  # opened for reading
        on_disk.observations.frames[0:1] = on_disk.observations.frames[0:1]


def test_a_mapped_data_set_is_never_loaded_at_once(tmp_path, monkeypatch):
    rows = 4000
    columns = {**frame_columns(rows, 100, 2), "observations": np.zeros((rows, 64, 64, 3), np.uint8)}
    path = saved(tmp_path / "large.npz", **columns)  # 49 MB, and twice that if next observations were a copy
    del columns
    monkeypatch.setattr(disk_array, "MAPPED_BYTES", 2**25)
    monkeypatch.setattr(disk_array, "BLOCK_BYTES", 2**20)
    monkeypatch.setattr(batches, "AHEAD_BYTES", 2**20)
    tracemalloc.start()
    dataset = load_dataset(f"npz:{path}")
    assert check_dataset(dataset).worst != "error"
    host: Any = Data.of([dataset], images(), limit=1e7).feed(SEED, BATCH, images())
    for step in range(0, 20, host.steps):
        host.at(step)
    host.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert dataset.nbytes > 95e6
    assert peak < 25e6


def test_a_compressed_file_is_unpacked_once(tmp_path, map_all):
    path = saved(tmp_path / "frames.npz", compressed=True)
    own = [tmp_path / "frames.observations.npy", tmp_path / "frames.observations.npy.json"]
    for file in own:
        file.write_text("the user's")
    first = load_dataset(f"npz:{path}").sha256
    assert [file.read_text() for file in own] == ["the user's"] * 2
    copy = tmp_path / ".fidec-unpacked" / "frames.npz.observations.npy"
    record = Path(f"{copy}.json")
    before = copy.stat().st_mtime_ns
    assert json.loads(record.read_text())["archive"] == "frames.npz"
    assert load_dataset(f"npz:{path}").sha256 == first
    assert copy.stat().st_mtime_ns == before
    saved(path, True, **frame_columns(seed=1))  # another archive under the same name
    assert load_dataset(f"npz:{path}").sha256 != first
    second, content = load_dataset(f"npz:{path}").sha256, copy.read_bytes()
    copy.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert load_dataset(f"npz:{path}").sha256 == second  # a damaged copy is made again
    assert copy.read_bytes() == content
    for text in ("{", json.dumps({**json.loads(record.read_text()), "sha256": 5})):
        record.write_text(text)
        assert load_dataset(f"npz:{path}").sha256 == second


def test_a_read_only_directory_is_not_reported_as_a_damaged_file(tmp_path, map_all, monkeypatch):
    path = saved(tmp_path / "data" / "frames.npz", compressed=True)
    read_only, write_whole = [path.parent / cache.FOLDER], cache.write_whole
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))

    def write(to, content):
        if to.parent in read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        write_whole(to, content)

    monkeypatch.setattr(cache, "write_whole", write)
    observations: Any = load_dataset(f"npz:{path}").observations
    copy = tmp_path / "cache" / "fidec" / "unpacked" / "frames.npz.observations.npy"
    np.testing.assert_array_equal(observations.frames, np.load(copy))
    assert [each.name for each in path.parent.iterdir()] == ["frames.npz"]
    read_only.append(copy.parent)
    assert load_dataset(f"npz:{path}").mapped  # nothing has to be written again
    copy.unlink()
    with pytest.raises(
        DataError, match=r"cannot be written to .*fidec-unpacked \(Read-only.* or .*unpacked \(Read-only"
    ) as caught:
        load_dataset(f"npz:{path}")
    assert "damaged" not in str(caught.value)


def test_failed_unpacking_leaves_no_files(tmp_path, map_all, monkeypatch):
    path = saved(tmp_path / "frames.npz", compressed=True)
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: usage(10, 5, 5))
        with pytest.raises(DataError, match=r"GB unpacked.* \(0\.0 GB free\) or .*cache"):
            load_dataset(f"npz:{path}")
    damaged = bytearray(path.read_bytes())
    damaged[500] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="damaged"):
        load_dataset(f"npz:{path}")
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["frames.npz"]


def test_damage_in_a_mapped_member_is_found(tmp_path, map_all):
    path = saved(tmp_path / "frames.npz")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1  # a pixel
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"observations.*damaged"):
        read_npz(path)


def test_arrays_in_another_order_are_read(tmp_path, map_all):
    columns = frame_columns()
    path = saved(tmp_path / "frames.npz", **{**columns, "observations": np.asfortranarray(columns["observations"])})
    array = read_npz(path)["observations"]
    assert not disk_array.is_mapped(array)
    np.testing.assert_array_equal(array, columns["observations"])


def test_an_archive_written_in_parts_is_what_numpy_writes():
    columns = frame_columns()
    whole, parts = BytesIO(), BytesIO()
    np.savez(whole, **columns)
    members = {key: ((a.shape, a.dtype), np.array_split(a, 7)) for key, a in columns.items()}
    write_npz(parts, members)
    assert parts.getvalue() == whole.getvalue()


def test_the_host_draws_where_jax_has_no_cpu(monkeypatch, short_chunks):
    dataset = dataset_from_arrays(**random_columns())
    device, host = (Data.of([dataset], Sampling(), limit=limit).feed(SEED, BATCH, Sampling()) for limit in (1e9, 0))
    devices = jax.local_devices

    def local_devices(*, backend=None):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return devices(backend=backend)

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert_same(host.at(0)[0], device.at(0)[0])
    host.close()


def test_images_that_the_user_mapped_are_not_copied(tmp_path, map_all):
    columns = frame_columns()
    np.save(tmp_path / "frames.npy", columns["observations"])
    loaded = dataset_from_arrays(**columns)
    for mode in ("r", "r+"):  # what can still change is copied
        frames = np.load(tmp_path / "frames.npy", mmap_mode=mode)
        dataset = dataset_from_arrays(**{**columns, "observations": frames})
        assert dataset.mapped is (mode == "r")
        assert dataset.sha256 == loaded.sha256


def vector_columns(rows: int = 90) -> dict[str, Any]:
    """Observations in float64 and actions in units of their own, so that both are converted when they are read."""
    columns = {**random_columns(rows, episode=15), "action_low": -2.0, "action_high": 3.0}
    return {**columns, "observations": columns["observations"].astype(np.float64), "actions": 2 * columns["actions"]}


def shards_of(folder, columns, bounds, compressed: bool = False):
    folder.mkdir()
    for number, (first, stop) in enumerate(pairwise(bounds)):
        part = {key: value[first:stop] if np.ndim(value) else value for key, value in columns.items()}
        (np.savez_compressed if compressed else np.savez)(folder / f"part{number + 8}.npz", **part)  # 8, 9, 10
    return folder


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("window", [Window(), Window(2, 3, 0.9)])
def test_vectors_in_several_files_are_fed_as_if_in_memory(tmp_path, map_all, monkeypatch, compressed, window):
    """Bit for bit, with the same hash, statistics, returns and findings."""
    columns = vector_columns()
    folder = shards_of(tmp_path / "parts", columns, (0, 30, 45, 90), compressed)
    monkeypatch.setattr(disk_array, "BLOCK_BYTES", 500)
    on_disk, loaded = load_dataset(f"npz:{folder}"), dataset_from_arrays(**columns)
    assert on_disk.mapped
    assert not loaded.mapped
    for key in ("observations", "next_observations", "actions", "next_actions"):
        ours, theirs = getattr(on_disk, key), getattr(loaded, key)
        assert isinstance(ours, disk_array.MappedRows)
        assert (ours.dtype, ours.shape, ours.nbytes) == (theirs.dtype, theirs.shape, theirs.nbytes)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours[np.array([[40, 2], [2, 41]])], theirs[np.array([[40, 2], [2, 41]])])
    assert (on_disk.sha256, on_disk.spec) == (loaded.sha256, loaded.spec)
    assert on_disk.observation_statistics == loaded.observation_statistics
    assert data_statistics([on_disk]) == data_statistics([loaded])
    assert check_dataset(on_disk).findings == check_dataset(loaded).findings
    settings = Sampling(window=window)
    host, device = (
        Data.of([data], settings, discount=0.9, limit=limit).feed(SEED, BATCH, settings)
        for data, limit in ((on_disk, 0), (loaded, 1e9))
    )
    for step in (0, 300):
        assert_same(host.at(step)[0], device.at(step)[0])
    host.close()
    held = [hold_out(data, 0.5)[1] for data in (on_disk, loaded)]
    assert held[0].sha256 == held[1].sha256
    assert load_dataset(f"npz:{folder}/part*.npz").sha256 == loaded.sha256


def test_each_file_ends_an_episode(tmp_path):
    columns = {**random_columns(40), "terminals": np.zeros(40, bool), "episodes": np.arange(40) % 20 // 10}
    folder = shards_of(tmp_path / "parts", columns, (0, 20, 40))  # both have the ids 0 and 1
    dataset = load_dataset(f"npz:{folder}")
    assert dataset.episodes.tolist() == [[0, 9], [9, 18], [18, 27], [27, 36]]
    assert dataset.name == "parts"
    del columns["episodes"]
    folder = shards_of(tmp_path / "others", columns, (0, 20, 40))
    assert load_dataset(f"npz:{folder}").episodes.tolist() == [[0, 19], [19, 38]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"observations": np.zeros((20, 4), np.float32)}, r"part9.npz.*observations.*\(4,\).*part8.npz has \(3,\)"),
        ({"observations": np.zeros((20, 3))}, r"part9.npz.*type float64, but .*float32"),
        ({"rewards": None}, r"part9.npz: key 'rewards' is missing, but .*part8.npz has it"),
        ({"action_low": -1.0, "action_high": 2.0}, r"part8.npz: key 'action_low' is missing, but .*part9.npz has it"),
        ({"observations": np.full((20, 3), np.nan, np.float32)}, "row 20, column 0: the value is nan"),
        ({"actions": np.full((20, 2), 7, np.float32)}, r"row 20, dimension 0: 7.0 lies outside .*20 such rows"),
    ],
)
@pytest.mark.parametrize("limit", [0, 2**30])
def test_files_that_do_not_fit_together_are_named(tmp_path, monkeypatch, changes, words, limit):
    monkeypatch.setattr(disk_array, "VECTOR_BYTES", limit)
    folder = shards_of(tmp_path / "parts", random_columns(20), (0, 20))
    columns = {key: value for key, value in {**random_columns(20), **changes}.items() if value is not None}
    np.savez(folder / "part9.npz", **columns)
    with pytest.raises(DataError, match=words):
        load_dataset(f"npz:{folder}")


def test_a_file_that_is_cut_short_is_named(tmp_path, map_all):
    path = saved(tmp_path / "vectors.npz", **vector_columns())
    dataset = load_dataset(f"npz:{path}")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"vectors.npz was cut short while it was in use"):
        dataset.observations[np.array([80])]


def test_what_is_computed_for_each_row_may_stay_on_the_disk(tmp_path, map_all):
    dataset = dataset_from_arrays(**random_columns())
    rows, settings = np.arange(dataset.size), Sampling()
    compute = lambda batch, first: (batch.observations + first, batch.rewards)  # noqa: E731
    ours, theirs = (
        batches.map_batches(compute, host_source(dataset), rows, settings, size=64, folder=folder)
        for folder in (tmp_path, None)
    )
    assert isinstance(ours[0], disk_array.FileRows)
    assert isinstance(theirs[0], np.ndarray)
    assert_same(ours, theirs)
    np.testing.assert_array_equal(ours[0][np.array([70, 3])], theirs[0][np.array([70, 3])])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_training_on_a_large_file_takes_little_memory(tmp_path):
    """600 MB of observations, twice that in memory, in a process of its own: anonymous memory and the peak of all."""
    code = """
        import json, sys
        from pathlib import Path
        import numpy as np
        from fidec import fit
        from fidec.data import disk_array
        disk_array.VECTOR_BYTES = 2**26

        def status():
            lines = Path("/proc/self/status").read_text().splitlines()
            return {line.split(":")[0]: int(line.split()[1]) / 1e3 for line in lines if line.endswith("kB")}

        folder = Path(sys.argv[1])
        settings = {"algo": "bc", "steps": 300, "memory_limit": 0.01, "options": {"hidden": (32, 32)}, "quiet": True}
        peaks = []
        for name in ("small", "large"):
            fit(f"npz:{folder / name}", folder / f"run-{name}", **settings)
            peaks.append(status()["VmHWM"])
        print(json.dumps({"peaks": peaks, "anonymous": status()["RssAnon"]}))
    """
    generator = np.random.default_rng(0)
    for name, count in (("small", 1), ("large", 3)):
        (tmp_path / name).mkdir()
        rows = 1000 if name == "small" else 100_000
        for number in range(count):
            np.savez(
                tmp_path / name / f"{number}.npz",
                observations=generator.random((rows, 500), np.float32),
                actions=generator.random((rows, 40), np.float32),
                rewards=generator.random(rows, np.float32),
                truncations=np.arange(rows) % 100 == 99,
            )
    process = launch("-c", dedent(code), str(tmp_path), stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    found = json.loads(out.splitlines()[-1])
    small, large = found["peaks"]
    assert large - small < 250, found
    assert found["anonymous"] < small + 250, found
