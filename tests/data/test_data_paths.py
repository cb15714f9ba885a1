"""Paths that are wrong, too long or not readable give one line in words, from every command that takes a path."""

from __future__ import annotations

import os

import pytest

from fidec.cli import main
from fidec.data import columns
from fidec.errors import ConfigError
from fidec.make import find_recipe

LONG = "x" * 300


def said(capsys, *argv: str) -> str:
    """What the failing command prints."""
    assert main(["data", *argv]) in (1, 2)  # of a DataError, or of a ConfigError
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    return line


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("missing.npz", "missing.npz does not exist; expected a data file"),
        ("npz:folder", "folder has no .npz files; expected at least one"),
        ("folder", "'folder' is a directory; expected a data file (.npz, .hdf5, .h5)"),
        ("notes.txt", "'notes.txt' is a file of an unknown kind"),
        ("pipe.npz", "pipe.npz is not a regular file"),
        (f"{LONG}.npz", "cannot be read: File name too long"),
        (f"hdf5:{LONG}", "cannot be read: File name too long"),
        (f"minari:{LONG}", "not found"),
        ("~no-such-user/x.npz", "is not a usable path"),
    ],
)
def test_wrong_paths(tmp_path, monkeypatch, capsys, source, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.npz")
    assert words in said(capsys, "check", source)


@pytest.mark.parametrize("folder", [LONG, "~no-such-user", "file"])
def test_wrong_directories(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert folder in said(capsys, "list", "--data-dir", folder)
    assert folder in said(capsys, "get", "pen-human-v1", "--data-dir", folder)
    assert "pen-human-v1" in said(capsys, "check", "d4rl:pen-human-v1", "--data-dir", f"{tmp_path}/none")


def test_files_without_permission(tmp_path, monkeypatch, capsys):
    """The tests may run as root, who may read everything."""
    (tmp_path / "pen-human-v1.hdf5").write_text("secret")
    monkeypatch.setattr(columns.os, "access", lambda path, mode: False)
    for argv in (
        ["check", str(tmp_path / "pen-human-v1.hdf5")],
        ["check", "pen-human-v1", "--data-dir", str(tmp_path)],
    ):
        assert "pen-human-v1.hdf5' cannot be read: Permission denied" in said(capsys, *argv)
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    assert "Permission denied" in capsys.readouterr().out


def test_a_misspelt_data_set_to_make():
    with pytest.raises(ConfigError, match=r"'cube-singl-play-v0'; did you mean cube-single-play-v0\? fidec can make"):
        find_recipe("cube-singl-play-singletask-task2-v0")
