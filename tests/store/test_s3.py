"""A real S3 server (moto's), also behind a proxy that cuts connections.

s3fs and moto need python-dateutil < 3, unlike the versions in constraints/. So these tests run in an environment of
their own: pip install 'fidec[s3]' 'moto[server]' pytest
"""

from __future__ import annotations

import importlib
import io
import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from fidec.errors import RunError
from fidec.store import files, staging
from fidec.store.remote import Limits, Store, StoreError
from fidec.store.remote_run import Mirror, TakenOver, numbers, pull
from helpers.runs import fingerprint, random_columns
from helpers.stores import Proxy

pytestmark = pytest.mark.slow
LIMITS = Limits(attempts=5, backoff=0.05)
STEPS = 1000
WORDS = ("--algo", "tiny", "--batch-size", 8, "--log-interval", 20, "--checkpoint-interval", 100, "--steps", STEPS)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'fidec[s3]'")
    moto = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    started = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    yield started.get_host_and_port()[1]
    started.stop()


@pytest.fixture
def proxy(server, monkeypatch, tmp_path):
    """A proxy before the server, which has the bucket `bucket` and nothing else."""
    made, s3fs = Proxy(server), importlib.import_module("s3fs")
    requests.post(f"http://127.0.0.1:{server}/moto-api/reset", timeout=30)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test-only")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.port}")
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "machine-1"))
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield made
    s3fs.S3FileSystem.clear_instance_cache()
    made.stop()


def make_files(directory: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, size in {
        "state.safetensors": 3_000_000,
        "policy/model.safetensors": 200_000,
        "train.jsonl": 500,
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(rng.bytes(size))
    (directory / "config.json").write_text("{}")


def contents(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): files.sha256_file(p) for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("after", [300, 1500, 50_000, 1_000_000, 2_900_000, 3_200_000])
def test_cut_connections_end_with_the_right_hashes(proxy, tmp_path, after):
    store = Store("s3://bucket/runs/x", LIMITS)
    make_files(tmp_path / "run", seed=0)
    writer = Mirror(store, tmp_path / "run", None, 0)
    proxy.cut_after(after)
    writer.push()
    assert proxy.cuts == 1
    proxy.cut_after(after)
    assert pull(store, tmp_path / "copy", pytest.fail) is not None
    assert proxy.cuts == 2
    files.remove(tmp_path / "copy" / ".parts")
    assert contents(tmp_path / "copy") == contents(tmp_path / "run")


def test_a_store_that_is_gone_and_back(proxy, tmp_path):
    store, said = Store("s3://bucket/runs/x", Limits(attempts=2, backoff=0.05)), []
    make_files(tmp_path / "run", seed=0)
    writer = Mirror(store, tmp_path / "run", None, 0)
    writer.push()
    make_files(tmp_path / "run", seed=1)
    proxy.refusing = True
    proxy.drop()
    writer.update(said.append)
    writer.update(said.append)
    proxy.refusing = False
    writer.update(said.append)
    assert [("mirrored later" in text, "written again" in text) for text in said] == [(True, False), (False, True)]
    pull(store, tmp_path / "copy", pytest.fail)
    files.remove(tmp_path / "copy" / ".parts")
    assert contents(tmp_path / "copy") == contents(tmp_path / "run")


def test_the_server_itself_refuses_a_second_writer(proxy, tmp_path):
    store = Store("s3://bucket/runs/x", LIMITS)
    make_files(tmp_path / "run", seed=0)
    base = Mirror(store, tmp_path / "run", None, 0).push()
    first, second = (Mirror(store, tmp_path / "run", base, 1) for _ in range(2))
    second._check_owner()
    first.push()
    with pytest.raises(FileExistsError):  # If-None-Match, after the check that comes before
        second.store.create("manifests/00000002.json", b"{}")
    with pytest.raises(TakenOver):
        second.push()
    assert numbers(store) == [1, 2]


def test_missing_buckets_runs_and_rights_are_said_in_words(proxy, server, monkeypatch):
    with pytest.raises(StoreError, match="the bucket 'missing' does not exist"):
        staging.local_run("s3://missing/runs/x")
    with pytest.raises(StoreError, match="the bucket 'missing' does not exist"):
        Store("s3://missing/x").create("a", b"")
    with pytest.raises(RunError, match="there is no run at s3://bucket/runs/none"):
        staging.local_run("s3://bucket/runs/none/")
    requests.post(f"http://127.0.0.1:{server}/moto-api/reset-auth", data=b"0", timeout=30)  # check keys from now on
    try:
        with pytest.raises(StoreError, match=r"credentials are wrong|no permission") as error:
            Store("s3://bucket/runs/x").list("manifests")
        assert "test-only" not in str(error.value)
    finally:
        requests.post(f"http://127.0.0.1:{server}/moto-api/reset-auth", data=b"1e9", timeout=30)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    importlib.import_module("s3fs").S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="there are no credentials"):
        Store("s3://bucket/runs/x").list("manifests")


def put_data() -> str:
    file = io.BytesIO()
    np.savez(file, **random_columns())
    importlib.import_module("s3fs").S3FileSystem().pipe_file("bucket/sets/x.npz", file.getvalue())
    return "npz:s3://bucket/sets/x.npz"


def wait_for(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_continued_on_another_machine_has_the_same_bits(proxy, processes, tmp_path, monkeypatch, number):
    data, url = put_data(), "s3://bucket/runs/x"
    local = processes.run("train", "--data", data, *WORDS, "--out", tmp_path / "local")
    assert local.returncode == 0, local.stderr
    first = processes.start("train", "--data", data, *WORDS, "--out", url)

    def has_checkpoint() -> bool:
        snapshot = next(staging.snapshots(Store(url), lambda text: None), None)
        return snapshot is not None and any(name.startswith("checkpoints/") for name in snapshot.files)

    wait_for(lambda: first.poll() is not None or has_checkpoint())
    first.send_signal(number)
    _, err = first.communicate(timeout=120)
    assert first.returncode == (75 if number == signal.SIGTERM else -signal.SIGKILL), err
    if number == signal.SIGTERM:
        assert f"fidec train --resume {url}" in err
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "machine-2"))
    second = processes.run("train", "--resume", url)
    assert second.returncode == 0, second.stderr
    assert f"mirrored to {url}" in second.stdout
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "machine-3"))
    copy = staging.local_run(url, whole=True)
    assert fingerprint(copy, STEPS) == fingerprint(tmp_path / "local", STEPS)
    assert json.loads((copy / "status.json").read_text())["state"] == "done"


def test_a_run_whose_store_is_gone_ends_with_words_and_is_mirrored_later(proxy, processes, tmp_path, monkeypatch):
    data, url = put_data(), "s3://bucket/runs/x"
    first = processes.start("train", "--data", data, *WORDS, "--out", url)
    wait_for(lambda: first.poll() is not None or numbers(Store(url)))
    proxy.refusing = True
    proxy.drop()
    _, err = first.communicate(timeout=200)
    assert first.returncode == 1, err
    assert err.count("is mirrored later") == 1
    assert "machine-1" in err
    assert f"Mirror it with: fidec train --resume {url}" in err
    proxy.refusing = False
    second = processes.run("train", "--resume", url)
    assert second.returncode == 0, second.stderr
    (there,) = (tmp_path / "machine-1").glob("*/x")
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "machine-2"))
    assert fingerprint(staging.local_run(url, whole=True), STEPS) == fingerprint(there, STEPS)
