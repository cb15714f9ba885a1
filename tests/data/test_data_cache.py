"""The cache directory and the record beside each file."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import platformdirs
import pytest

from fidec.data.cache import data_dir, read_sidecar, sidecar_path, verify, write_sidecar
from fidec.data.summary import list_cache
from fidec.errors import DataError
from fidec.store.files import sha256_file

NAME = "pointmaze-medium-navigate-v0"


def write(path, rows: int = 40):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        observations=np.zeros((rows, 2), np.float32),
        actions=np.zeros((rows, 2), np.float32),
        terminals=np.arange(rows) % 20 == 19,
        qpos=np.zeros((rows, 2)),
    )
    return path


def test_the_directory_is_argument_then_variable_then_user_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("FIDEC_DATA_DIR", raising=False)
    assert str(data_dir()).startswith(platformdirs.user_cache_dir("fidec"))
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "by_variable"))
    assert data_dir() == tmp_path / "by_variable"
    assert data_dir(tmp_path / "by_argument") == tmp_path / "by_argument"


def test_list_shows_rows_origin_and_problems(tmp_path):
    assert list_cache(tmp_path / "none") == []
    path = write(tmp_path / "a.npz")
    write_sidecar(path, origin="made", seed=3)
    (tmp_path / "b.npz").write_bytes(b"cut short")
    first, second = list_cache(tmp_path)
    assert (first.name, first.rows, first.origin, first.sha256) == ("a", 40, "made", sha256_file(path))
    assert first.bytes == path.stat().st_size
    assert second.rows is None
    assert "not a readable .npz" in str(second.problem)
    json.dumps([asdict(first), asdict(second)])


def test_a_changed_file_is_rejected(tmp_path):
    path = write(tmp_path / "a.npz")
    assert verify(path) == {}
    write_sidecar(path, origin="made")
    assert verify(path)["origin"] == "made"
    write(path, rows=60)
    with pytest.raises(DataError, match=r"a\.npz: SHA-256 is .* its record says"):
        verify(path)
    sidecar_path(path).write_text("{")
    with pytest.raises(DataError, match=r"a\.npz\.json"):
        read_sidecar(path)


def test_the_record_of_fidec_data_make_is_read(tmp_path):
    path = write(tmp_path / f"{NAME}.npz")
    validation = write(tmp_path / f"{NAME}-val.npz", rows=20)
    hashes = {"train": sha256_file(path), "val": sha256_file(validation)}
    record = {"made_by": "fidec data make", "settings": {"seed": 4}, "sha256": hashes}
    (tmp_path / f"{NAME}.json").write_text(json.dumps(record))
    assert verify(path) == {"origin": "made", "sha256": hashes["train"], "settings": {"seed": 4}}
    assert verify(validation)["sha256"] == hashes["val"]
    assert sorted(str(f.origin) for f in list_cache(tmp_path)) == ["made", "made"]
    write(path, rows=60)
    with pytest.raises(DataError, match="SHA-256"):
        verify(path)


@pytest.mark.parametrize("side", ["x.json", "x.npz.json"])
def test_a_record_whose_settings_are_not_an_object_is_rejected(tmp_path, side):
    (tmp_path / side).write_text(json.dumps({"made_by": "me", "sha256": {"train": "0"}, "settings": "fast"}))
    with pytest.raises(DataError, match=r"settings is .*, expected .*delete it"):
        read_sidecar(tmp_path / "x.npz")
