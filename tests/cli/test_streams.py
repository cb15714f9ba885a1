"""The terminal: broken pipes, closed and full streams, encodings, no working directory, no home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import check_error

FIDEC = (sys.executable, "-m", "fidec")
PRINT = "from fidec.cli import lossy_streams\nwith lossy_streams():\n    print('…', '\\udce9')"


def shell(redirect: str, *command: str, **environ: str) -> tuple[int, str, str]:
    """Run a command with redirections of the shell; FIDEC commands that do not import JAX take 0.2 seconds."""
    script = f'exec "$@" {redirect}'
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ}
    found = subprocess.run(["sh", "-c", script, "sh", *command], env=variables, capture_output=True, text=True)
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("stream", "argv", "code"),
    [("stdout", ("--help",), 0), ("stdout", ("tasks", "--help"), 0), ("stderr", ("wrong",), 2)],
)
def test_a_broken_pipe_is_no_error(stream, argv, code):
    read, write = os.pipe()
    os.close(read)  # nobody reads: the first write fails, at the latest when Python ends
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
    found = subprocess.run([*FIDEC, *argv], **streams, text=True)
    os.close(write)
    assert (found.returncode, found.stdout or "", found.stderr or "") == (code, "", "")


@pytest.mark.parametrize(
    ("redirect", "argv", "code", "words"),
    [
        (">&-", ("--help",), 0, ""),
        (">&-", ("data", "list", "--json"), 0, ""),
        ("2>&-", ("wrong",), 2, ""),
        (">&- 2>&- <&-", ("wrong",), 2, ""),
        (">/dev/full", ("--help",), 1, "fidec: standard output is incomplete: No space left on device\n"),
        (">/dev/full 2>&1", ("--help",), 1, ""),
        ("2>/dev/full", ("wrong",), 2, ""),
    ],
)
def test_closed_and_full_streams(redirect, argv, code, words):
    assert shell(redirect, *FIDEC, *argv) == (code, "", words)


def test_characters_that_the_encoding_lacks():
    assert shell("", sys.executable, "-c", PRINT, PYTHONIOENCODING="ascii") == (0, "\\u2026 \\udce9\n", "")
    assert shell("", sys.executable, "-c", PRINT, PYTHONIOENCODING="utf-8") == (0, "… \\udce9\n", "")


def test_a_working_directory_that_is_gone(cli, monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    check_error(cli("eval", "run"), 1, "fidec eval: the working directory does not exist")


def test_other_errors_of_the_operating_system_are_words(cli, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "/a/file")

    monkeypatch.setattr("fidec.data.summary.list_cache", refuse)
    check_error(cli("data", "list"), 1, "fidec data: Permission denied: /a/file. --debug shows where.")
    with pytest.raises(PermissionError):
        cli("data", "list", "--debug")


def test_no_home_directory(cli, monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", str)  # what it does without HOME for a user without an account
    for source in ("d4rl:pen-human-v1", "minari:D4RL/pen/human-v2", "ogbench:cube-single-play-singletask-v0"):
        check_error(cli("data", "show", source), 1, "~/.")
    monkeypatch.delenv("FIDEC_DATA_DIR")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: Path("~/.cache") / name)
    check_error(cli("data", "list"), 1, "~/.cache/fidec/data", "home directory", "Set HOME")
