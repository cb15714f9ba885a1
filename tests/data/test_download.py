"""Downloads from a local server that stalls, ends early, sends wrong content and fails."""

from __future__ import annotations

import http.server
import io
import json
import resource
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import requests

from fidec.cli import main
from fidec.data import download as module
from fidec.data import load_dataset
from fidec.data.cache import read_sidecar
from fidec.data.download import OfficialFile, download, official_files
from fidec.data.http_download import Limits
from fidec.data.sources.d4rl import D4RL_FILES
from fidec.errors import ConfigError, DataError
from fidec.store.files import sha256_file

NAME = "pointmaze-medium-navigate-v0"
QUICK = Limits(connect=0.5, stall=0.15, attempts=3, unreachable=1, backoff=0.001, progress=2**30, block=512)


def archive(rows: int = 400, **arrays) -> bytes:
    rng = np.random.default_rng(rows)
    arrays = arrays or {
        "observations": rng.normal(size=(rows, 2)).astype(np.float32),
        "actions": np.zeros((rows, 2), np.float32),
        "terminals": np.arange(rows) % 20 == 19,
        "qpos": np.zeros((rows, 2)),
    }
    np.savez(buffer := io.BytesIO(), **arrays)
    return buffer.getvalue()


def d4rl_file(rows: int = 40, link: bool = False) -> bytes:
    with h5py.File(buffer := io.BytesIO(), "w") as file:
        file["observations"] = np.zeros((rows, 3), np.float32)
        file["actions"] = np.zeros((rows, 2), np.float32)
        file["rewards"] = np.zeros(rows, np.float32)
        file["terminals"] = np.arange(rows) == rows - 1
        file["timeouts"] = np.arange(rows) % 20 == 19
        file["infos/qpos"] = np.zeros((rows, 2))
        if link:
            file["extra"] = h5py.ExternalLink("elsewhere.hdf5", "/x")
    return buffer.getvalue()


DATA, VAL = archive(), archive(40)


@dataclass
class Server:
    """Serves `files`. Each request takes the next word of `script` (then "ok" for good) as its behaviour."""

    files: dict[str, bytes]
    script: list[str] = field(default_factory=list)
    ranges: bool = True
    validators: bool = True
    seen: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range
    sent: int = 0
    url: str = ""
    extra: dict[str, str] = field(default_factory=dict)
    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path, wants = request.path, request.headers.get("Range")
        word = self.script.pop(0) if self.script else "ok"
        self.seen.append((path, wants))
        body = self.files.get(path.rpartition("/")[2])
        status = int(word) if word.isdigit() else 200
        if word == "html":
            return self.reply(request, 200, b"<html>log in</html>" * 99, {"Content-Type": "text/html; charset=x"})
        if word.startswith("redirect "):
            return self.reply(request, 302, b"", {"Location": word.split()[1], **self.extra})
        if body is None or status != 200:
            return self.reply(request, 404 if body is None else status, b"no", {"Retry-After": "0"})
        tag = f'"{sha256(body).hexdigest()[:8]}"'
        headers = {"ETag": tag} if self.validators else {}
        start, whole = 0, body
        if wants and self.ranges and request.headers.get("If-Range") == tag:
            start = int(wants.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self.reply(request, 416, b"", {})
            first = start + 1 if word == "wrong range" else start
            headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        length = len(body)
        if word == "promises less":
            length -= 700
        if word in ("cut", "stall"):
            body = body[: len(whole) // 2]
        if word == "sliver":
            body = body[:2048]
        if word == "garbled":
            body = body[:20_000] + bytes(1000) + body[21_000:]
        headers["Content-Length"] = str(length)
        self.reply(request, 206 if "Content-Range" in headers else 200, body, headers)
        if word == "stall":
            self.release.wait(2)
        return None

    def reply(self, request, status: int, body: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.end_headers()
        self.sent += len(body)
        request.wfile.write(body)
        request.wfile.flush()


@pytest.fixture
def serve():
    """serve(**files) starts a server; all are stopped at the end."""
    running = []

    def start(files: dict[str, bytes] | None = None, **options) -> Server:
        server = Server({f"{NAME}.npz": DATA, f"{NAME}-val.npz": VAL} if files is None else files, **options)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        httpd.daemon_threads = True
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        server.url = f"http://127.0.0.1:{httpd.server_port}"
        running.append((server, httpd, thread))
        return server

    yield start
    for server, httpd, thread in running:
        server.release.set()
        httpd.shutdown()
        httpd.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy_of_the_machine(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def fetch(server: Server, folder, name: str = NAME, **options):
    return download(name, folder, url=server.url, **{"val": False, "limits": QUICK, **options})


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_both_files_are_fetched_recorded_and_asked_for_once(tmp_path, serve, capsys):
    server = serve()
    folder = tmp_path / "cache"
    train, val = fetch(server, folder, "pointmaze-medium-navigate-singletask-task2-v0", val=True)
    assert (train.read_bytes(), val.read_bytes()) == (DATA, VAL)
    assert names(folder) == sorted(f"{NAME}{tail}" for tail in (".npz", ".npz.json", "-val.npz", "-val.npz.json"))
    assert read_sidecar(train) == {
        "origin": "downloaded",
        "url": f"{server.url}/{NAME}.npz",
        "sha256": sha256(DATA).hexdigest(),
        "bytes": len(DATA),
        "checksum": "first use",
    }
    assert fetch(server, folder, f"ogbench:{NAME}", val=True) == (train, val)
    assert [path for path, _ in server.seen] == [f"/{NAME}.npz", f"/{NAME}-val.npz"]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "exists already (origin: downloaded)" in captured.err
    train.write_bytes(DATA + b"x")
    with pytest.raises(DataError, match="SHA-256"):
        fetch(server, folder)


def test_the_command_prints_the_paths(tmp_path, serve, capsys):
    server = serve()
    assert main(["data", "get", NAME, "--data-dir", str(tmp_path), "--url", f"{server.url}/{NAME}.npz"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / f"{NAME}.npz"), str(tmp_path / f"{NAME}-val.npz")]
    assert main(["data", "get", "pen-human-v1", "--data-dir", str(tmp_path), "--url", "ftp://x", "--no-val"]) == 2


@pytest.mark.parametrize("word", ["cut", "stall"])
def test_an_interrupted_transfer_is_continued(tmp_path, serve, word):
    server = serve(script=[word])
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    (_, first), (_, second) = server.seen
    assert first is None
    kept = int(str(second).removeprefix("bytes=").removesuffix("-"))
    assert 0 < kept <= len(DATA) // 2
    assert kept > len(DATA) // 2 - 2 * QUICK.block  # at most what was on its way is lost
    assert server.sent == len(DATA) // 2 + len(DATA) - kept
    assert names(tmp_path) == [path.name, f"{path.name}.json"]


def test_ctrl_c_leaves_a_part_that_the_next_call_continues(tmp_path, serve, monkeypatch, capsys):
    server = serve()
    advance = module.Progress.advance

    def stop_in_the_middle(meter, count):
        advance(meter, count)
        if meter.step > len(DATA) // 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.Progress, "advance", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            fetch(server, tmp_path)
    (part,) = tmp_path.glob("*.part")
    size = part.stat().st_size
    assert part.read_bytes() == DATA[:size]
    assert "the same command continues" in capsys.readouterr().err
    assert not (tmp_path / f"{NAME}.npz").exists()
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert server.seen[1] == (f"/{NAME}.npz", f"bytes={size}-")
    assert names(tmp_path) == [path.name, f"{path.name}.json"]


def test_a_killed_process_leaves_a_part_and_no_lock(tmp_path, serve):
    server = serve(script=["stall"])
    call = f"download({NAME!r}, {str(tmp_path)!r}, url={server.url!r}, val=False, limits=Limits(block=512))"
    code = f"from fidec.data.download import download; from fidec.data.http_download import Limits; {call}"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not any(part.stat().st_size for part in tmp_path.glob("*.part")) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert [wants is None for _, wants in server.seen] == [True, False]
    assert names(tmp_path) == [path.name, f"{path.name}.json"]


def test_an_answer_that_ends_early_is_noticed_and_continued(tmp_path, serve, monkeypatch):
    server = serve()
    whole, calls = requests.Response.iter_content, []

    def ends_early(response, size):
        calls.append(size)
        chunks = whole(response, size)
        return islice(chunks, 5) if len(calls) == 1 else chunks

    monkeypatch.setattr(requests.Response, "iter_content", ends_early)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert server.seen[1][1] == f"bytes={5 * QUICK.block}-"


def test_a_part_that_was_complete_is_only_checked(tmp_path, serve, monkeypatch):
    server = serve()
    with monkeypatch.context() as patch:
        patch.setattr(module, "_check", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch(server, tmp_path)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert len(server.seen) == 1


def test_a_file_that_changed_on_the_server_is_fetched_from_its_beginning(tmp_path, serve):
    server = serve(script=["cut", "500", "500"])
    with pytest.raises(DataError, match="HTTP 500"):
        fetch(server, tmp_path)
    assert len(list(tmp_path.glob("*.part"))) == 1
    server.files[f"{NAME}.npz"] = archive(500)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == archive(500)
    assert server.seen[-1][1] is not None  # it asked for the rest, and got the whole of another file


@pytest.mark.parametrize("options", [{"ranges": False}, {"validators": False}])
def test_a_server_that_cannot_resume_sends_all_again(tmp_path, serve, options):
    server = serve(script=["cut", "cut"], **options)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert len(server.seen) == 3
    assert server.sent == 2 * (len(DATA) // 2) + len(DATA)


def test_a_wrong_range_is_not_appended(tmp_path, serve):
    server = serve(script=["cut", "wrong range"])
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert server.seen[-1][1] is None


def test_a_damaged_part_is_fetched_once_more_from_its_beginning(tmp_path, serve):
    server = serve(script=["cut", "500", "500"])
    with pytest.raises(DataError, match="HTTP 500"):
        fetch(server, tmp_path)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(bytes(part.stat().st_size))
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA


def test_temporary_errors_are_retried_and_permanent_ones_are_not(tmp_path, serve):
    server = serve(script=["503", "429"])
    assert fetch(server, tmp_path / "a")[0].read_bytes() == DATA
    assert len(server.seen) == 3
    server = serve(script=["500"] * 9)
    with pytest.raises(DataError, match=r"HTTP 500 .*3 attempts"):
        fetch(server, tmp_path / "b")
    assert len(server.seen) == QUICK.attempts
    server = serve(script=["403"])
    with pytest.raises(DataError, match="HTTP 403"):
        fetch(server, tmp_path / "c")
    assert len(server.seen) == 1


def test_only_progress_renews_the_attempts(tmp_path, serve):
    limits = Limits(stall=0.2, attempts=3, backoff=0.001, progress=1000, block=512)
    flaky = ["sliver", "500"] * 3
    with pytest.raises(DataError, match=r"connection was lost .*3 attempts"):
        fetch(serve(script=list(flaky), ranges=False), tmp_path / "a", limits=limits)
    server = serve(script=list(flaky))
    assert fetch(server, tmp_path / "b", limits=limits)[0].read_bytes() == DATA
    assert len(server.seen) == 2 * 3 + 1


@pytest.mark.parametrize(
    ("word", "body", "said"),
    [
        ("promises less", DATA, "not a readable .npz"),
        ("html", DATA, "web page"),
        ("garbled", archive(4000), "observations.npy is damaged"),
        ("ok", b"<html>please log in</html>", "not a readable .npz"),
        ("ok", b"", "not a readable .npz"),
        ("ok", archive(other=np.zeros(3)), "'observations' is missing"),
    ],
)
def test_wrong_content_is_never_stored_as_the_data_file(tmp_path, serve, word, body, said):
    server = serve({f"{NAME}.npz": body}, script=[word])
    with pytest.raises(DataError, match=said):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_the_next_mirror_is_used_if_one_fails(tmp_path, serve, monkeypatch):
    gone, page, slow, good = serve({}), serve(script=["html"]), serve(script=["stall"] * 9, validators=False), serve()
    urls = tuple(f"{server.url}/{NAME}.npz" for server in (gone, page, slow, good))
    monkeypatch.setattr(module, "official_files", lambda *_, **__: (OfficialFile(f"{NAME}.npz", urls),))
    (path,) = download(NAME, tmp_path, limits=QUICK)
    assert path.read_bytes() == DATA
    assert read_sidecar(path)["url"] == urls[-1]
    assert [len(server.seen) for server in (gone, page, slow, good)] == [1, 1, QUICK.attempts, 1]
    assert good.seen[0][1] is None  # bytes of the slow server are not mixed with these
    assert names(tmp_path) == [path.name, f"{path.name}.json"]


def test_known_checksums_are_enforced(tmp_path, serve, monkeypatch):
    other = serve({f"{NAME}.npz": archive(60)})
    good = serve()
    urls = tuple(f"{server.url}/{NAME}.npz" for server in (other, good))
    file = OfficialFile(f"{NAME}.npz", urls, sha256(DATA).hexdigest())
    monkeypatch.setattr(module, "official_files", lambda *_, **__: (file,))
    (path,) = download(NAME, tmp_path / "a", limits=QUICK)
    assert (path.read_bytes(), read_sidecar(path)["checksum"]) == (DATA, "known")
    good.files = {}
    with pytest.raises(DataError, match=r"SHA-256 is .* instead of"):
        download(NAME, tmp_path / "b", limits=QUICK)
    assert names(tmp_path / "b") == []
    # A file put there by hand is known by its checksum, too.
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"{NAME}.npz").write_bytes(DATA)
    assert read_sidecar(download(NAME, tmp_path / "c")[0])["origin"] == "downloaded"


@pytest.mark.parametrize("right", [True, False])
def test_a_checksum_announced_with_a_redirect_is_enforced(tmp_path, serve, right):
    """As Hugging Face does: the first answer names the SHA-256 and sends us to a store."""
    store = serve()
    announced = sha256(DATA if right else VAL).hexdigest()
    hub = serve(script=[f"redirect {store.url}/{NAME}.npz"] * 2, extra={"X-Linked-Etag": f'"{announced}"'})
    store.script = ["cut"]
    if right:
        (path,) = fetch(hub, tmp_path)
        assert (path.read_bytes(), read_sidecar(path)["checksum"]) == (DATA, "known")
        assert [r is not None for _, r in store.seen] == [False, True]  # resumed through the redirect
    else:
        store.script = []
        with pytest.raises(DataError, match="SHA-256"):
            fetch(hub, tmp_path)


def test_an_existing_file_is_recorded_on_first_use(tmp_path, serve):
    server = serve()
    (tmp_path / f"{NAME}.npz").write_bytes(DATA)
    (path,) = fetch(server, tmp_path)
    assert read_sidecar(path)["origin"] == "unknown"
    assert server.seen == []


def test_made_and_official_files_are_not_mixed(tmp_path, serve):
    server = serve()
    made = tmp_path / f"{NAME}.npz"
    made.write_bytes(DATA)
    hashes = {"train": sha256(DATA).hexdigest(), "val": "0" * 64}
    (tmp_path / f"{NAME}.json").write_text(json.dumps({"made_by": "fidec data make", "sha256": hashes}))
    with pytest.raises(DataError, match="do not belong together"):
        fetch(server, tmp_path, val=True)
    assert server.seen == []
    assert fetch(server, tmp_path) == (made,)  # --no-val: there already
    made.unlink()
    fetch(server, tmp_path, val=True)  # the record of a file that is gone does not matter
    assert read_sidecar(made)["origin"] == "downloaded"


def test_d4rl_files_are_checked_and_read(tmp_path, serve):
    theirs = D4RL_FILES["antmaze-large-play-v2"].rpartition("/")[2]
    server = serve({theirs: d4rl_file(), "door-human-v1.hdf5": d4rl_file(link=True), "pen-human-v1.hdf5": DATA})
    (path,) = fetch(server, tmp_path, "d4rl:antmaze-large-play-v2", val=True)
    assert path == tmp_path / "antmaze-large-play-v2.hdf5"
    assert read_sidecar(path)["sha256"] == sha256_file(path)
    assert load_dataset(f"hdf5:{path}").observations.shape[1] == 3
    for name, said in (("door-human-v1", "external link"), ("pen-human-v1", "not a readable HDF5")):
        with pytest.raises(DataError, match=said):
            fetch(server, tmp_path, name)
    server.files[theirs] = d4rl_file()[:-100]
    with pytest.raises(DataError, match="not a readable HDF5"):
        fetch(server, tmp_path / "cut", "antmaze-large-play-v2")
    assert names(tmp_path / "cut") == []


def test_a_failure_says_what_was_tried_and_what_to_do(tmp_path, serve, monkeypatch):
    gone, down = serve({}), serve(script=["502"] * 9)
    urls = (f"{gone.url}/{NAME}.npz", f"{down.url}/{NAME}.npz", f"http://127.0.0.1:9/{NAME}.npz")
    monkeypatch.setattr(module, "official_files", lambda *_, **__: (OfficialFile(f"{NAME}.npz", urls),))
    with pytest.raises(DataError) as caught:
        download(NAME, tmp_path, limits=QUICK)
    text = str(caught.value)
    for part in (*urls, "HTTP 404", "HTTP 502", "3 attempts", "Connection refused", "HTTPS_PROXY", "--url"):
        assert part in text
    assert f"`fidec data make {NAME} --rows 100000`" in text
    assert f"save it as {tmp_path / NAME}.npz" in text
    assert names(tmp_path) == []


def test_a_full_disk_is_noticed_before_and_while_writing(tmp_path, serve, monkeypatch):
    server = serve()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=len(DATA) - 1))
        with pytest.raises(DataError, match=r"0\.0 MB free.*Make room"):
            fetch(server, tmp_path)
    assert names(tmp_path) == []
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # as if the disk were full after 5000 bytes
    try:
        with pytest.raises(DataError, match=r"cannot write .*Make room"):
            fetch(server, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (path,) = fetch(server, tmp_path)
    assert path.read_bytes() == DATA
    assert server.seen[-1][1] == "bytes=5000-"


def test_concurrent_calls_fetch_a_file_once(tmp_path, serve):
    server = serve(script=["stall"])
    paths, threads = [], []
    for _ in range(3):
        threads.append(threading.Thread(target=lambda: paths.extend(fetch(server, tmp_path))))
        threads[-1].start()
    for thread in threads:
        thread.join(10)
    assert paths == [tmp_path / f"{NAME}.npz"] * 3
    assert len(server.seen) == 2  # the stalled request and its continuation, by one of the three
    assert names(tmp_path) == [f"{NAME}.npz", f"{NAME}.npz.json"]


def test_a_proxy_is_used_where_the_environment_says_so(tmp_path, serve, monkeypatch):
    proxy = serve()
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("http_proxy", proxy.url)
    address = f"http://data.example/{NAME}.npz"
    (path,) = download(NAME, tmp_path / "a", url=address, val=False, limits=QUICK)
    assert path.read_bytes() == DATA
    assert proxy.seen == [(address, None)]  # a proxy is asked with the whole address
    direct = serve()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetch(direct, tmp_path / "b")
    assert (len(direct.seen), len(proxy.seen)) == (1, 1)


def test_ids_and_addresses(monkeypatch):
    train, val = official_files("cube-single-play-singletask-task3-v0")
    assert (train.name, val.name) == ("cube-single-play-v0.npz", "cube-single-play-v0-val.npz")
    assert train.urls[0] == "https://rail.eecs.berkeley.edu/datasets/ogbench/cube-single-play-v0.npz"
    assert len(train.urls) >= 3
    assert all(url.startswith("https://") and url.endswith(f"/{val.name}") for url in val.urls)
    assert train.sha256 != val.sha256
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example/")
    assert any(url.startswith("https://hub.example/datasets/") for url in official_files("scene-play-v0")[0].urls)
    assert len(D4RL_FILES) == 18
    (door,) = official_files("door-cloned-v1")
    assert door.name == "door-cloned-v1.hdf5"
    assert door.urls[0] == "https://rail.eecs.berkeley.edu/datasets/offline_rl/hand_dapg_v1/door-cloned-v1.hdf5"
    (umaze,) = official_files("d4rl:antmaze-umaze-v2")
    assert umaze.urls[0].endswith("/Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse_fixed.hdf5")
    assert all(len(value) == 64 and name.endswith(".npz") for name, value in module.KNOWN_SHA256.items())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("foo", "there is no data set 'foo'. `fidec tasks` lists"),
        ("cube-singel-play-v0", "there is no data set 'cube-singel-play-v0'; did you mean cube-single-play-v0"),
        ("pen-human-v0", "did you mean pen-human-v1"),
        ("pen-humn-v1", "no D4RL data set 'pen-humn-v1'; did you mean pen-human-v1"),
        (f"cube-single-{'x' * 300}-v0", "not the name"),
        ("d4rl:halfcheetah-medium-v2", "antmaze-umaze-v2"),
        ("cube-single-../../x-v0", "not the name"),
    ],
)
def test_unknown_ids_are_rejected(tmp_path, name, said):
    with pytest.raises(ConfigError, match=said):
        download(name, tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path, serve):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot create"):
        fetch(serve(), tmp_path / "file" / "cache")
