"""Broken and hostile files give a DataError that names the place. They run no code and allocate no memory."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.lib import format as npy

from fidec.data import load_dataset
from fidec.data.npz import npz_headers, read_npz
from fidec.errors import DataError


def good(rows: int = 20) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 10 == 9
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": ends & (np.arange(rows) < 10),
        "timeouts": ends & (np.arange(rows) >= 10),
    }


def write_npz(path: Path, arrays: dict) -> Path:
    np.savez(path, **arrays)
    return path


def write_hdf5(path: Path, arrays: dict) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return path


class Bomb:
    """Touches a marker when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def npy_bytes(shape: tuple, body: bytes, descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + body


def zipped(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def assert_rejected(source: str, *words: str) -> str:
    with pytest.raises(DataError) as caught:
        load_dataset(source)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


def test_controls_load(tmp_path):
    by_npz = load_dataset(f"npz:{write_npz(tmp_path / 'a.npz', good())}")
    by_hdf5 = load_dataset(f"hdf5:{write_hdf5(tmp_path / 'a.hdf5', good())}")
    assert by_npz.sha256 == by_hdf5.sha256
    assert by_npz.size == 19  # the transition at the timeout has no next state


# --- npz ---------------------------------------------------------------------------------------------------


def test_objects_in_an_npz_are_not_unpickled(tmp_path):
    marker = tmp_path / "ran"
    arrays = good() | {"rewards": np.array([Bomb(marker)] * 20, object)}
    path = tmp_path / "a.npz"
    np.savez(path, allow_pickle=True, **arrays)
    assert_rejected(f"npz:{path}", "rewards", "unpickled")
    assert not marker.exists()


def test_a_pickle_named_npz_is_not_unpickled(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "a.npz"
    path.write_bytes(pickle.dumps(Bomb(marker)))
    assert_rejected(f"npz:{path}", "a.npz", "not a readable .npz")
    zipped(path, {"observations.npy": pickle.dumps(Bomb(marker))})
    assert_rejected(f"npz:{path}", "observations", "not a NumPy array")
    assert not marker.exists()


def test_a_lying_npz_header_allocates_nothing(tmp_path):
    lie = npy_bytes((10**9, 10**3), b"1234")
    assert_rejected(f"npz:{zipped(tmp_path / 'a.npz', {'observations.npy': lie})}", "observations", "claims shape")


def test_a_zip_directory_that_lies_about_sizes_is_rejected(tmp_path):
    """The header and the zip directory agree on 4 GB, out of a few packed bytes."""
    body = npy_bytes((10**9,), bytes(4000))
    path = zipped(tmp_path / "a.npz", {"observations.npy": body})
    data = bytearray(path.read_bytes())
    size = data.rfind(b"PK\x01\x02") + 24
    assert data[size : size + 4] == len(body).to_bytes(4, "little")
    data[size : size + 4] = (len(body) - 4000 + 4 * 10**9).to_bytes(4, "little")
    path.write_bytes(data)
    assert_rejected(f"npz:{path}", "observations", "impossible")


def test_truncated_npz(tmp_path):
    path = write_npz(tmp_path / "a.npz", good())
    data = path.read_bytes()
    for keep in (0, 10, len(data) // 2, len(data) - 5):
        path.write_bytes(data[:keep])
        assert_rejected(f"npz:{path}", "a.npz")


def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path):
    path = write_npz(tmp_path / "a.npz", good())
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # inside the first array
    path.write_bytes(data)
    assert_rejected(f"npz:{path}", "damaged")


def test_an_ogbench_file_as_npz_says_what_to_do(tmp_path):
    arrays = good() | {"qpos": np.zeros((20, 4))}
    del arrays["rewards"]
    assert_rejected(f"npz:{write_npz(tmp_path / 'a.npz', arrays)}", "'rewards' is missing", "ogbench:")


def test_headers_are_read_without_the_arrays(tmp_path):
    path = write_npz(tmp_path / "a.npz", good())
    assert npz_headers(path)["observations"] == ((20, 3), np.dtype(np.float32))
    assert set(read_npz(path, ("rewards",))) == {"rewards"}


# --- HDF5 --------------------------------------------------------------------------------------------------


def without(key: str) -> dict[str, np.ndarray]:
    return {k: v for k, v in good().items() if k != key}


@pytest.mark.parametrize("key", ["rewards", "unrelated"])
def test_external_and_soft_links_are_rejected(tmp_path, key):
    write_hdf5(tmp_path / "secret.hdf5", {"rewards": good()["rewards"]})
    for name, link in (
        ("external", h5py.ExternalLink("secret.hdf5", "/rewards")),
        ("soft", h5py.SoftLink("/observations")),
        ("dangling", h5py.ExternalLink("nowhere.hdf5", "/rewards")),
    ):
        path = write_hdf5(tmp_path / f"{name}.hdf5", without(key))
        with h5py.File(path, "a") as file:
            file[key] = link
        assert_rejected(f"hdf5:{path}", key, "link", "not read")


def test_external_storage_is_rejected(tmp_path):
    (tmp_path / "secret.bin").write_bytes(good()["rewards"].tobytes())
    path = write_hdf5(tmp_path / "a.hdf5", without("rewards"))
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", (20,), "f4", external=[(str(tmp_path / "secret.bin"), 0, 80)])
    assert_rejected(f"hdf5:{path}", "rewards", "external storage")


def test_virtual_data_sets_are_rejected(tmp_path):
    write_hdf5(tmp_path / "secret.hdf5", {"rewards": good()["rewards"]})
    path = write_hdf5(tmp_path / "a.hdf5", without("rewards"))
    layout = h5py.VirtualLayout((20,), "f4")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.hdf5", "rewards", (20,))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("rewards", layout)
    assert_rejected(f"hdf5:{path}", "rewards", "virtual")


def test_four_declared_terabytes_are_not_allocated(tmp_path):
    path = write_hdf5(tmp_path / "a.hdf5", without("observations"))
    for options in ({}, {"chunks": (20, 1024)}, {"chunks": (20, 1024), "compression": "gzip"}):
        with h5py.File(path, "a") as file:
            file.pop("observations", None)
            file.create_dataset("observations", (20, 5 * 10**10), "f4", **options)
        assert path.stat().st_size < 10**5
        assert_rejected(f"hdf5:{path}", "observations", "4000000000000 bytes")


def test_hdf5_of_other_kinds(tmp_path):
    path = tmp_path / "a.hdf5"
    path.write_bytes(b"not hdf5")
    assert_rejected(f"hdf5:{path}", "a.hdf5", "not a readable HDF5")
    assert_rejected(f"hdf5:{tmp_path / 'none.hdf5'}", "none.hdf5", "does not exist")
    assert_rejected(f"hdf5:{tmp_path}", "is a directory")
    write_hdf5(path, without("rewards") | {"rewards": np.array([b"x"] * 20)})
    assert_rejected(f"hdf5:{path}", "rewards", "expected numbers")
    write_hdf5(path, without("actions"))
    assert_rejected(f"hdf5:{path}", "'actions' is missing; the file holds observations")
    with h5py.File(path, "w") as file:
        file.create_group("observations")
        file["actions"], file["rewards"] = good()["actions"], good()["rewards"]
    assert_rejected(f"hdf5:{path}", "observations", "is a group")


def test_compressed_hdf5_is_read(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        for key, value in good().items():
            file.create_dataset(key, data=value, compression="gzip", shuffle=True, fletcher32=True)
    assert load_dataset(f"hdf5:{path}").size == 19


# --- Minari ------------------------------------------------------------------------------------------------


@pytest.fixture
def minari_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    folder = tmp_path / "minari" / "mine" / "test-v0" / "data"
    folder.mkdir(parents=True)

    def write(metadata: dict, episodes: list[dict] | None = None) -> Path:
        (folder / "metadata.json").write_text(json.dumps({"data_format": "hdf5"} | metadata))
        with h5py.File(folder / "main_data.hdf5", "w") as file:
            for i, episode in enumerate(minari_episodes() if episodes is None else episodes):
                for key, value in episode.items():
                    file[f"episode_{i}/{key}"] = value
        return folder

    return write


def minari_episodes(count: int = 3, steps: int = 4) -> list[dict]:
    rng = np.random.default_rng(0)
    return [
        {
            "observations": rng.normal(size=(steps + 1, 2)),
            "actions": rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
            "rewards": rng.normal(size=steps),
            "terminations": np.arange(steps) == (steps - 1 if i == 0 else -1),
            "truncations": np.arange(steps) == (steps - 1 if i == 1 else -1),
        }
        for i in range(count)
    ]


def env_spec(entry_point: str, **kwargs: object) -> dict:
    spec = {"id": "Evil-v0", "entry_point": entry_point, "kwargs": kwargs, "additional_wrappers": []}
    spec |= {"nondeterministic": False, "disable_env_checker": True}
    spec |= dict.fromkeys(("reward_threshold", "max_episode_steps", "vector_entry_point"))
    return {"env_spec": json.dumps(spec)}


def test_minari_metadata_never_runs_code(minari_set, tmp_path):
    marker = tmp_path / "ran"
    minari_set(env_spec("subprocess:Popen", args=["touch", str(marker)]))
    dataset = load_dataset("minari:mine/test-v0")
    assert dataset.size == 12
    assert dataset.masks.tolist() == [1, 1, 1, 0] + [1] * 8
    assert np.flatnonzero(dataset.terminals).tolist() == [3, 7, 11]
    assert not marker.exists()


def test_the_marker_of_the_test_above_would_appear_with_minari(minari_set, tmp_path):
    """Control: the same kind of file does run its command in minari.load_dataset."""
    minari = pytest.importorskip("minari")
    marker = tmp_path / "ran"
    minari_set(env_spec("os:mkdir", path=str(marker)))
    with pytest.raises(Exception):  # noqa: B017, PT011 - any error of gymnasium about an os.mkdir environment
        minari.load_dataset("mine/test-v0", download=False)
    if not marker.exists():
        pytest.skip("this Minari no longer builds environments from metadata")
    marker.rmdir()
    assert load_dataset("minari:mine/test-v0").size == 12
    assert not marker.exists()


def test_minari_dicts_are_flattened_in_sorted_order(minari_set):
    episodes = minari_episodes(1)
    values = episodes[0].pop("observations")
    episodes[0] |= {
        "observations/z": values,
        "observations/a/b": values[:, 0] * 2,
        "observations/a/c": values * 3,
    }
    minari_set({}, episodes)
    dataset = load_dataset("minari:mine/test-v0")
    assert dataset.info["observation_keys"] == ["a/b", "a/c", "z"]
    row = np.concatenate([values[0, :1] * 2, values[0] * 3, values[0]])
    np.testing.assert_allclose(dataset.observations[0], row, rtol=1e-6)


def test_broken_minari_sets(minari_set, tmp_path):
    source = "minari:mine/test-v0"
    assert_rejected("minari:none-v0", "none-v0", "minari download")
    folder = minari_set({}, [])
    assert_rejected(source, "no episodes")
    minari_set({"data_format": "arrow"})
    assert_rejected(source, "arrow")
    minari_set({"action_space": json.dumps({"type": "Discrete", "n": 2, "start": 0})})
    assert_rejected(source, "action_space", "Discrete")
    minari_set({"action_space": "{"})
    assert_rejected(source, "action_space")
    minari_set({"action_space": json.dumps({"type": "Box", "low": [-0.1], "high": [0.1]})})
    assert_rejected(source, "episode_0", "actions", "outside the given bounds")
    for key, value, words in (
        ("observations", np.zeros((4, 2)), "one observation more"),
        ("observations", np.full((5, 2), np.nan), "nan"),
        ("actions", np.zeros((0, 1), np.float32), "empty episode"),
        ("actions", np.zeros(4, int), "discrete"),
        ("terminations", np.full(4, 3), "expected 0 or 1"),
        ("rewards", np.zeros(3), "rewards"),
    ):
        episodes = minari_episodes()
        episodes[1][key] = value
        minari_set({}, episodes)
        assert_rejected(source, "episode_1", words)
    episodes = minari_episodes()
    del episodes[2]["truncations"]
    minari_set({}, episodes)
    assert_rejected(source, "episode_2/truncations", "missing")
    write_hdf5(tmp_path / "secret.hdf5", minari_episodes()[0])
    minari_set({}, minari_episodes(1))
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        file["episode_1"] = h5py.ExternalLink(str(tmp_path / "secret.hdf5"), "/")
    assert_rejected(source, "episode_1", "external link")
    (folder / "metadata.json").write_text("[1]")
    assert_rejected(source, "metadata.json")
    (folder / "metadata.json").unlink()
    assert_rejected(source, "metadata.json")


# --- many broken files -------------------------------------------------------------------------------------


def broken_columns(rng: np.random.Generator) -> dict[str, object]:
    """A good set of columns with one thing wrong in it."""
    arrays: dict[str, object] = dict(good())
    key = str(rng.choice(["observations", "actions", "rewards", "terminals", "timeouts"]))
    array = np.asarray(arrays[key])
    row = int(rng.integers(20))
    bad = array.astype(np.float64)
    changes = [
        lambda: bad[: row % 19 + 1] if row % 19 + 1 != 20 else bad[:5],
        lambda: np.concatenate([bad, bad]),
        lambda: np.array([f"x{i}" for i in range(20)]).astype("S"),
        lambda: bad.astype(complex),
        lambda: bad[None],
        lambda: np.zeros((0, *array.shape[1:])),
        lambda: np.float64(1.0),
        lambda: np.zeros(20, [("a", "f4"), ("b", "i4")]),
        lambda: _set(bad, row, np.nan),
        lambda: _set(bad, row, -np.inf),
        lambda: _set(bad, row, 1e300),
    ]
    if key != "observations":
        changes.append(lambda: np.zeros((20, 2, 2)))
    if key == "actions":
        changes += [lambda: _set(bad, row, 1.5), lambda: np.zeros((20, 0)), lambda: np.ones((20, 2), int)]
    if key in ("terminals", "timeouts"):
        changes += [lambda: _set(bad, row, 0.5), lambda: _set(bad, row, -1)]
    if key in ("observations", "actions") and rng.random() < 0.1:
        del arrays[key]
    else:
        arrays[key] = changes[int(rng.integers(len(changes)))]()
    return arrays


def _set(array: np.ndarray, row: int, value: float) -> np.ndarray:
    array[row] = value
    return array


@pytest.mark.parametrize("scheme", ["npz", "hdf5"])
def test_fuzzed_columns_give_a_data_error_that_names_the_file(tmp_path, scheme):
    rng = np.random.default_rng(1)
    for case in range(80):
        path = tmp_path / f"case{case}.{scheme}"
        (write_npz if scheme == "npz" else write_hdf5)(path, broken_columns(rng))
        with pytest.raises(DataError) as caught:
            load_dataset(f"{scheme}:{path}")
        assert path.name in str(caught.value)
        path.unlink()


@pytest.mark.parametrize("scheme", ["npz", "hdf5"])
def test_fuzzed_bytes_load_or_give_a_data_error(tmp_path, scheme):
    path = tmp_path / f"a.{scheme}"
    (write_npz if scheme == "npz" else write_hdf5)(path, good())
    data = path.read_bytes()
    rng = np.random.default_rng(2)
    rejections = 0
    for _ in range(80):
        broken = bytearray(data)
        for position in rng.integers(len(data), size=int(rng.integers(1, 20))):
            broken[position] = int(rng.integers(256))
        path.write_bytes(broken[: int(rng.integers(len(data)))] if rng.random() < 0.3 else broken)
        try:
            load_dataset(f"{scheme}:{path}")
        except DataError:
            rejections += 1
    assert rejections > 25
