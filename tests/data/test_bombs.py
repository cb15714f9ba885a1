"""Small files that would take for ever or more memory than there is: they are rejected before anything is read."""

from __future__ import annotations

import errno
import os
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fidec.data import load_dataset
from fidec.data.sources.hdf5 import open_hdf5
from fidec.data.summary import list_cache
from fidec.errors import DataError

pytestmark = pytest.mark.timeout(60)  # without the checks some of these never end


def columns(rows: int = 20) -> dict[str, Any]:
    return {
        "observations": np.zeros((rows, 3), np.float32),
        "actions": np.zeros((rows, 2), np.float32),
        "rewards": np.zeros(rows, np.float32),
        "terminals": np.arange(rows) % 10 == 9,
    }


def hdf5(path: Path, arrays: dict) -> Path:
    with h5py.File(path, "w") as file:
        file.update(arrays)
    return path


def test_a_list_of_files_follows_no_link(tmp_path):
    """A named pipe, opened through an external link, would wait for its other end."""
    os.mkfifo(tmp_path / "pipe")
    for name, link in (
        ("external", h5py.ExternalLink(str(tmp_path / "pipe"), "/observations")),
        ("soft", h5py.SoftLink("/actions")),
    ):
        with h5py.File(hdf5(tmp_path / f"{name}.hdf5", {"actions": columns()["actions"]}), "a") as file:
            file["observations"] = link
    found = {file.name: str(file.problem) for file in list_cache(tmp_path)}
    assert "key 'observations' is an external link (to another file), which is not read" in found["external"]
    assert "key 'observations' is a soft link" in found["soft"]


def test_links_inside_an_episode_are_not_followed(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = tmp_path / "mine-v0" / "data"
    folder.mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (folder / "metadata.json").write_text("{}")
    with h5py.File(folder / "main_data.hdf5", "w") as file:
        file.create_group("episode_0")["rewards"] = h5py.ExternalLink(str(tmp_path / "pipe"), "/rewards")
    with pytest.raises(DataError, match="'episode_0/rewards' is an external link"):
        load_dataset("minari:mine-v0")


def cycle(file: h5py.File) -> None:
    file["a/b"] = file["/"]


def fan_out(file: h5py.File) -> None:
    """Each group has the next one a hundred times: 100^8 paths in less than 100 kB."""
    groups = [file.create_group(f"g{i}") for i in range(8)]
    for here, following in pairwise(groups):
        for i in range(100):
            here[str(i)] = following


def depth(file: h5py.File) -> None:
    file["/".join("x" * 2000)] = 1.0


@pytest.mark.parametrize(
    ("build", "words"), [(cycle, "another name"), (fan_out, "another name"), (depth, "more than 16 groups deep")]
)
def test_groups_without_end_are_rejected(tmp_path, build, words):
    path = hdf5(tmp_path / "a.hdf5", {})
    with h5py.File(path, "a") as file:
        build(file)
    with pytest.raises(DataError, match=f"a.hdf5: key .*{words}"), open_hdf5(path):
        pass


def test_many_groups_are_read(tmp_path):
    path = hdf5(tmp_path / "a.hdf5", {f"g{i}/h{j}/x": float(i + j) for i in range(5) for j in range(5)})
    with open_hdf5(path) as file:
        assert len(file) == 5


@pytest.mark.parametrize("key", ["rewards", "terminals", "next_observations", "episodes"])
@pytest.mark.parametrize("scheme", ["npz", "hdf5"])
def test_unequal_columns_are_rejected_by_their_headers(tmp_path, scheme, key, monkeypatch):
    arrays: dict[str, Any] = columns() | {key: np.zeros((200_000, 4), np.float32)}
    path = tmp_path / f"a.{scheme}"
    if scheme == "npz":
        np.savez_compressed(path, **arrays)
        monkeypatch.setattr(np.lib.format, "read_array", lambda *args, **options: pytest.fail("was unpacked"))
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, compression="gzip")
        monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, at: pytest.fail("was unpacked"))
    assert path.stat().st_size < 50_000
    with pytest.raises(DataError, match=f"'{key}' has 200000 rows but 'observations' has 20"):
        load_dataset(str(path))


@pytest.mark.parametrize("place", ["open", "header", "array"])
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 3.00 TiB for an array"), "Unable to allocate 3.00 TiB"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), r"reading .*a\..*: Cannot allocate memory"),
    ],
)
@pytest.mark.parametrize("scheme", ["npz", "hdf5"])
def test_too_little_memory_is_not_called_damage(tmp_path, scheme, error, words, place, monkeypatch):
    path = tmp_path / f"a.{scheme}"
    if scheme == "npz":
        np.savez(path, **columns())
    else:
        hdf5(path, columns())

    def allocate(*args, **options):
        raise error

    npz = {"open": (zipfile, "ZipFile"), "header": (np.lib.format, "read_magic")}
    hdf = {"open": (h5py, "File"), "header": (h5py.Group, "__getitem__")}
    monkeypatch.setattr(*npz.get(place, (np.lib.format, "read_array")), allocate)
    monkeypatch.setattr(*hdf.get(place, (h5py.Dataset, "__getitem__")), allocate)
    with pytest.raises(DataError, match=rf"does not fit into memory: {words}.*GB are free") as caught:
        load_dataset(str(path))
    assert "damaged" not in str(caught.value)
