"""Files at URLs: which URLs there are, errors in words, retries, downloads that continue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fidec.errors import CheckpointError, ConfigError, RunError
from fidec.store import remote
from fidec.store.remote import Limits, Store, StoreError, Unreachable, as_url, check_url, public
from helpers.stores import memory_store


@pytest.fixture
def faults(monkeypatch):
    with memory_store(monkeypatch) as faults:
        yield faults


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/runs/x", "s3://bucket/runs/x"),
        ("s3://bucket/runs/x///", "s3://bucket/runs/x"),
        ("S3://bucket/x", "s3://bucket/x"),
        (Path("s3://bucket/runs/x"), "s3://bucket/runs/x"),
        (Path("s3://bucket/runs") / "seed000", "s3://bucket/runs/seed000"),
        (Path("file:///data/x"), "file:///data/x"),
        ("file:///data/x", "file:///data/x"),
        ("runs/x", None),
        ("/runs/x", None),
        (Path("runs/x"), None),
        ("npz:s3://bucket/x.npz", None),
        ("npz:/data/x.npz", None),
        ("s3:/bucket/x", None),
    ],
)
def test_what_a_url_is(given, url):
    assert as_url(given) == url


def test_an_existing_path_with_a_colon_is_no_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd:/x").mkdir(parents=True)
    assert as_url(Path("odd:/x")) is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/x", ["URL scheme 's4'", "s3"]),
        ("s3://bucket", ["inside a bucket"]),
        ("s3://bucket/../x", ["inside a bucket"]),
        ("s3://KEY:hunter2@bucket/x", ["holds credentials", "AWS_ACCESS_KEY_ID"]),
        ("s3://bucket/x?X-Amz-Signature=hunter2", ["with a query"]),
    ],
)
def test_urls_that_cannot_be_used(url, words):
    with pytest.raises(ConfigError) as error:
        check_url(url)
    assert all(word in str(error.value) for word in words)
    assert "hunter2" not in str(error.value)


def test_messages_hold_no_credentials():
    text = public('failed: "https://u:SECRET@host/a?sig=SECRET&b=1" and s3://k:SECRET@b/x\nnext')
    assert text == 'failed: "https://host/a" and s3://b/x next'


def test_a_missing_package_is_named(monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"gs://b/x needs .* pip install gcsfs"):
        Store("gs://b/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"pip install 'fidec\[remote\]'"):
        Store("s3://b/x")


def test_temporary_errors_are_tried_again(faults):
    store = Store("memory://b/x", Limits(attempts=3))
    faults.fail = lambda name, number: ConnectionError("reset by peer") if number < 2 else None
    store.create("a", b"1")
    assert faults.calls == ["pipe_file"] * 3
    faults.fail = lambda name, number: ConnectionError("https://k:SECRET@host reset by peer")
    with pytest.raises(
        Unreachable, match="memory://b/x cannot be reached: could not list c after 3 attempts"
    ) as error:
        store.list("c")
    assert "reset by peer" in str(error.value)
    assert "SECRET" not in str(error.value)


class NoCredentialsError(Exception):
    """As botocore's."""


class ClientError(Exception):
    def __init__(self, code: str):
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError("Forbidden"), "no permission to list c"),
        (NoCredentialsError("Unable to locate credentials"), "there are no credentials"),
        (ClientError("SignatureDoesNotMatch"), "the credentials are wrong"),
        (NotImplementedError("no"), "the store cannot list c"),
    ],
)
def test_refusals_are_not_tried_again(faults, error, words):
    faults.fail = lambda name, number: error
    with pytest.raises(StoreError, match=words):
        Store("memory://b/x").list("c")
    assert len(faults.calls) == 1


def test_a_missing_bucket_is_named(faults):
    faults.fail = lambda name, number: FileNotFoundError("The specified bucket does not exist")
    for work in (lambda store: store.list("c"), lambda store: store.create("c", b"")):
        with pytest.raises(StoreError, match="the bucket 'b' does not exist"):
            work(Store("memory://b/x"))


def test_an_object_is_created_once(faults):
    store = Store("memory://b/x")
    store.create("a", b"1")
    with pytest.raises(FileExistsError):
        store.create("a", b"2")
    assert store.read("a", 9) == b"1"


def test_an_object_whose_answer_was_lost_is_our_own(faults):
    faults.after = lambda name, number: ConnectionError("reset") if (name, number) == ("pipe_file", 0) else None
    store = Store("memory://b/x")
    store.create("a", b"1")
    assert faults.calls == ["pipe_file", "pipe_file", "cat_file"]
    assert store.read("a", 9) == b"1"


def test_a_download_continues_where_it_was_cut(faults, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK", 10)
    store, content, got = Store("memory://b/x", Limits(attempts=1)), bytes(range(95)), []
    store.create("a", content)
    faults.calls.clear()
    faults.fail = lambda name, number: ConnectionError("cut") if number == 4 else None
    with pytest.raises(Unreachable):
        store.download("a", tmp_path / "part", 95, got.append)
    assert (tmp_path / "part").read_bytes() == content[:40]
    faults.fail = lambda name, number: None
    faults.calls.clear()
    store.download("a", tmp_path / "part", 95, got.append)
    assert (tmp_path / "part").read_bytes() == content
    assert len(faults.calls) == 6
    assert sum(got) == 40 + 95  # the bar of the second call begins with what is there


def test_a_download_is_bounded_by_its_size(faults, tmp_path):
    store = Store("memory://b/x")
    store.create("a", b"12345")
    store.download("a", tmp_path / "part", 3, lambda count: None)
    assert (tmp_path / "part").read_bytes() == b"123"
    with pytest.raises(CheckpointError, match="has not the 9 bytes"):
        store.download("a", tmp_path / "other", 9, lambda count: None)
    with pytest.raises(RunError, match="MB free"):
        store.download("a", tmp_path / "third", 10**18, lambda count: None)
