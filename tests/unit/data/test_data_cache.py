"""The cache directory, the record beside each file, and downloads from a local server."""

from __future__ import annotations

import functools
import http.server
import json
import threading

import numpy as np
import platformdirs
import pytest

from fidec.data import data_dir, list_cache
from fidec.data.cache import read_sidecar, sidecar_path, verify, write_sidecar
from fidec.data.download import download
from fidec.disk import sha256_file
from fidec.errors import ConfigError, DataError

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
    json.dumps([first.to_json(), second.to_json()])


def test_a_changed_file_is_noticed(tmp_path):
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


def test_the_record_of_fidec_data_make_is_understood(tmp_path):
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


@pytest.fixture
def server(tmp_path):
    root = tmp_path / "server"
    root.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *args):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", root, asked
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_download_records_the_hash_and_asks_once(tmp_path, server, capsys):
    url, root, asked = server
    write(root / f"{NAME}.npz")
    path = download("pointmaze-medium-navigate-singletask-task2-v0", tmp_path / "cache", base_url=url)
    assert path == tmp_path / "cache" / f"{NAME}.npz"
    record = read_sidecar(path)
    assert record["sha256"] == sha256_file(root / f"{NAME}.npz")
    assert record["origin"] == "downloaded"
    assert sorted(p.name for p in path.parent.iterdir()) == [f"{NAME}.npz", f"{NAME}.npz.json"]
    assert download(NAME, tmp_path / "cache", base_url=url) == path
    assert asked == [f"/{NAME}.npz"]
    assert capsys.readouterr().out == ""
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match="SHA-256"):
        download(NAME, tmp_path / "cache", base_url=url)


def test_a_file_that_was_there_is_recorded_on_first_use(tmp_path, server):
    url, _, asked = server
    path = write(tmp_path / "cache" / f"{NAME}.npz")
    assert download(NAME, tmp_path / "cache", base_url=url) == path
    assert read_sidecar(path)["origin"] == "unknown"
    assert asked == []


def test_failed_downloads_leave_nothing_behind(tmp_path, server):
    url, root, _ = server
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match="404"):
        download(NAME, cache, base_url=url)
    (root / f"{NAME}.npz").write_text("<html>please log in</html>")
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        download(NAME, cache, base_url=url)
    np.savez(root / f"{NAME}.npz", other=np.zeros(3))
    with pytest.raises(DataError, match="'observations' is missing"):
        download(NAME, cache, base_url=url)
    with pytest.raises(DataError, match="failed"):
        download(NAME, cache, base_url="http://127.0.0.1:9")
    assert list(cache.iterdir()) == []
    with pytest.raises(ConfigError, match="no task"):
        download("cube-sextuple-play-v0", cache, base_url=url)
