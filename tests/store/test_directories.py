"""Directories that are replaced: whole after a kill, unchanged after an error, and readable at every moment."""

from __future__ import annotations

import errno
import threading

import pytest

from fidec.errors import CheckpointError
from fidec.store import directories, files
from helpers.faults import failing_call, killed_at_every_write

REPLACE = """
    from fidec.store import directories, files

    if not EXCHANGE:
        directories._exchange = lambda first, second, parent: False

    def prepare(directory):
        work(directory, "old")

    def work(directory, content):
        with directories.replacing_directory(directory / "policy") as new:
            for name in "ab":
                files.atomic_write(new / name, content or "new")
"""


@pytest.fixture(params=[True, False], ids=["one step", "two renames"])
def exchange(request, monkeypatch):
    """With and without Linux' exchange of two names."""
    if not request.param:
        monkeypatch.setattr(directories, "_exchange", lambda first, second, parent: False)
    return request.param


def test_a_directory_that_is_replaced_is_whole_or_comes_back(tmp_path, exchange):
    """Killed at any time, and replaced again after that."""
    found = []
    for directory in killed_at_every_write(tmp_path, REPLACE.replace("EXCHANGE", str(exchange))):
        final = directory / "policy"
        found.append(final.exists())
        directories.restore_directory(final)
        assert {path.name for path in final.iterdir()} == {"a", "b"}
        assert {path.read_text() for path in final.iterdir()} in ({"old"}, {"new"})
        with directories.replacing_directory(final) as new:
            (new / "c").touch()
        assert [path.name for path in directory.iterdir()] == ["policy"]
        assert [path.name for path in final.iterdir()] == ["c"]
    assert found.count(False) == (0 if exchange else 1)  # between the two renames


def test_a_replacement_that_fails_changes_nothing(tmp_path, monkeypatch, exchange):
    final = tmp_path / "new" / "policy"
    with directories.replacing_directory(final) as new:
        (new / "a").touch()
    for n in range(1 if exchange else 2):
        failing = failing_call(monkeypatch, ("fsync" if exchange else "rename",), n, errno.EIO)
        with pytest.raises(OSError, match="Input/output"), failing, directories.replacing_directory(final):
            pass
    with pytest.raises(ZeroDivisionError), directories.replacing_directory(final):
        _ = 1 / 0
    assert [path.name for path in final.parent.rglob("*")] == ["policy", "a"]


def test_a_reader_never_sees_a_part_of_a_replacement(tmp_path, exchange):
    final, stop, failures = tmp_path / "policy", threading.Event(), []

    def save(number):
        with directories.replacing_directory(final) as new:
            for name in "ab":
                (new / name).write_text(str(number))
            files.write_manifest(new)

    def read():
        files.verify_manifest(final)
        return (final / "a").read_text(), (final / "b").read_text()

    def read_on():
        last = 0
        while not stop.is_set():
            try:
                first, second = directories.read_directory(final, read)
                assert first == second
                assert int(first) >= last
                last = int(first)
            except Exception as error:
                failures.append(error)

    save(0)
    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 60):
        save(number)
    stop.set()
    for reader in readers:
        reader.join()
    assert failures == []
    (final / "b").write_text("damaged")
    with pytest.raises(CheckpointError, match="b has "):
        directories.read_directory(final, read)
