"""Data at URLs: fetched once, again when it has changed, refused when its copy is damaged."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from fidec import load_dataset
from fidec.data.source import absolute_source
from fidec.errors import ConfigError, DataError
from fidec.store import remote
from fidec.store.remote import Unreachable
from helpers.runs import random_columns
from helpers.stores import memory_store

URL = "memory://bucket/sets/x.npz"


@pytest.fixture
def faults(monkeypatch, tmp_path):
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "data"))
    with memory_store(monkeypatch) as faults:
        yield faults


def put(url: str, content: bytes) -> None:
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file(url, content)


def npz_bytes(seed: int = 0) -> bytes:
    file = io.BytesIO()
    np.savez(file, **random_columns(seed=seed))
    return file.getvalue()


def fetched(faults) -> int:
    count = faults.calls.count("cat_file")
    faults.calls.clear()
    return count


def copy_of(tmp_path, name="x.npz"):
    (found,) = (tmp_path / "data" / "remote").rglob(name)
    return found


def test_data_at_a_url_is_the_data(faults, tmp_path):
    put(URL, npz_bytes())
    (tmp_path / "x.npz").write_bytes(npz_bytes())
    local, there = load_dataset(f"npz:{tmp_path / 'x.npz'}"), load_dataset(f"npz:{URL}")
    assert there.sha256 == local.sha256
    assert there.source == f"npz:{URL}"
    assert absolute_source(URL) == f"npz:{URL}"  # by its ending, and without a directory of this machine
    record = json.loads((copy_of(tmp_path).parent / "x.npz.json").read_text())
    assert record["url"] == URL
    assert record["bytes"] == len(npz_bytes())
    assert len(record["sha256"]) == 64


def test_data_is_fetched_once_and_again_when_it_has_changed(faults, tmp_path, capsys):
    put(URL, npz_bytes())
    first = load_dataset(f"npz:{URL}")
    assert fetched(faults) == 1
    assert load_dataset(f"npz:{URL}").sha256 == first.sha256
    assert fetched(faults) == 0
    put(URL, npz_bytes(seed=1))
    assert load_dataset(f"npz:{URL}").sha256 != first.sha256
    assert "has changed since it was fetched" in capsys.readouterr().err
    assert [path.name for path in copy_of(tmp_path).parent.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_copy_is_refused(faults, tmp_path):
    put(URL, npz_bytes())
    load_dataset(f"npz:{URL}")
    copy = copy_of(tmp_path)
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    copy.write_bytes(content)
    with pytest.raises(DataError, match=r"was changed or damaged.*Delete it"):
        load_dataset(f"npz:{URL}")
    copy.unlink()
    load_dataset(f"npz:{URL}")


def test_a_copy_is_used_while_the_store_cannot_be_reached(faults, capsys):
    put(URL, npz_bytes())
    first = load_dataset(f"npz:{URL}")
    faults.fail = lambda name, number: ConnectionError("no route")
    assert load_dataset(f"npz:{URL}").sha256 == first.sha256
    assert "The copy that was fetched before is used" in capsys.readouterr().err
    with pytest.raises(Unreachable):
        load_dataset("npz:memory://bucket/sets/other.npz")


def test_a_cut_download_continues(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK", 1000)
    content = npz_bytes()
    put(URL, content)
    faults.fail = lambda name, number: ConnectionError("cut") if number > 4 else None
    with pytest.raises(Unreachable):
        load_dataset(f"npz:{URL}")
    done = copy_of(tmp_path, ".x.npz.*.part").stat().st_size
    assert 0 < done < len(content)
    faults.fail = lambda name, number: None
    fetched(faults)
    load_dataset(f"npz:{URL}")
    assert fetched(faults) == -(-(len(content) - done) // 1000)
    assert copy_of(tmp_path).read_bytes() == content


def test_an_object_that_changes_meanwhile_is_refused(faults):
    put(URL, npz_bytes())
    faults.after = lambda name, number: put(URL, npz_bytes(seed=1)) if name == "cat_file" else None
    with pytest.raises(DataError, match="was changed while it was fetched"):
        load_dataset(f"npz:{URL}")


def test_a_lerobot_directory_is_fetched_without_its_videos(faults, tmp_path):
    pytest.importorskip("pyarrow")
    from data.test_tables import write_lerobot

    root = write_lerobot(tmp_path / "set", "v3.0")
    for path in root.rglob("*"):
        if path.is_file():
            put(f"memory://bucket/set/{path.relative_to(root)}", path.read_bytes())
    put("memory://bucket/set/videos/a.mp4", b"not read")
    bounds: dict[str, Any] = {"action_low": -2, "action_high": 2}
    there = load_dataset("lerobot:memory://bucket/set/", **bounds)
    assert there.sha256 == load_dataset(f"lerobot:{root}", **bounds).sha256
    assert there.sha256 == load_dataset("lerobot:memory://bucket/set?holes=allow", **bounds).sha256
    assert not list((tmp_path / "data").rglob("*.mp4"))
    with pytest.raises(DataError, match="has no objects in meta or data/"):
        load_dataset("lerobot:memory://bucket/none", **bounds)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("npz:memory://bucket/none.npz", "there is no file at memory://bucket/none.npz"),
        ("npz:s4://bucket/none.npz", "URL scheme 's4'"),
        ("memory://bucket/data", "which kind of data is it"),
        ("table:memory://bucket/columns.toml", "'table:' data is not read from a URL"),
        ("npz:s3://key:hunter2@bucket/x.npz", "holds credentials"),
    ],
)
def test_urls_that_cannot_be_read(faults, source, words):
    with pytest.raises((DataError, ConfigError), match=words) as error:
        load_dataset(source)
    assert "hunter2" not in str(error.value)
