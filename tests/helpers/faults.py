"""Faults that storage has to survive: damaged bytes, failing system calls, kills at every write, a full disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest


def damaged(paths: Sequence[Path], kind: str, count: int) -> Iterator[Path]:
    """Each path in turn, with a flipped bit or a cut end at a random place. It is restored afterwards."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = paths[number % len(paths)]
        good = path.read_bytes()
        bad = bytearray(good)
        at = int(random.integers(len(good)))
        if kind == "flip":
            bad[at] ^= 1 << int(random.integers(8))
        else:
            del bad[at:]
        path.write_bytes(bad)
        yield path
        path.write_bytes(good)


@contextmanager
def failing_call(monkeypatch, names: Sequence[str], n: int, number: int) -> Iterator[list[str]]:
    """The n-th call of the functions `os.NAME` fails with error `number`; yields the list of the calls so far."""
    calls: list[str] = []

    def failing(name, function):
        def call(*arguments, **options):
            calls.append(name)
            if len(calls) - 1 == n:
                raise OSError(number, os.strerror(number))
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(os, name, failing(name, getattr(os, name)))
        yield calls


KILLER = """
import os, shutil, signal, sys
from pathlib import Path

armed, struck = globals().get("armed", True), False
strike = globals().get("strike", lambda directory: os.kill(os.getpid(), signal.SIGKILL))

def strike_at(n, directory):
    seen = 0
    def event(name, arguments):
        global struck
        nonlocal seen
        if name == "open":
            relevant = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        else:
            relevant = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "fsync")
        if relevant and armed:
            seen += 1
            if seen == n + 1:
                struck = True
                strike(directory)
    os.fsync = lambda descriptor: event("fsync", ())
    sys.addaudithook(event)

root = Path(sys.argv[1])
before = prepare(root / "original")
for n in range(200):
    directory = root / f"killed-{n:03d}"
    shutil.copytree(root / "original", directory)
    child = os.fork()
    if child == 0:
        strike_at(n, directory)
        work(directory, before)
        os._exit(3 if struck else 0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        print(n)
        sys.exit(0)
    assert os.WTERMSIG(status) == signal.SIGKILL or os.waitstatus_to_exitcode(status) == 3, status
sys.exit("never finished")
"""


def killed_at_every_write(tmp_path: Path, program: str) -> list[Path]:
    """Kill a process before its n-th change to the disk, for every n; returns what each left behind.

    `program` defines `prepare(directory) -> before` and `work(directory, before)`. Only `work` is killed. The program
    may define something else to be done at that change, `strike(directory)`. Before it sets `armed`, none is counted.
    """
    command = [sys.executable, "-c", textwrap.dedent(program) + KILLER, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return [tmp_path / f"killed-{n:03d}" for n in range(int(run.stdout))]


def run_on_small_disk(tmp_path: Path, kilobytes: int, program: str) -> None:
    """Run a program on a file system of its own. Its argument is the directory; it must print "survived"."""
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={kilobytes}k none "$0" && exec "$@"']
    mount += [str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("no private tmpfs here")
    command = [*mount, sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "survived\n", run.stderr


# Values of every kind of JSON, and some that no file of fidec has: too large, not finite, too deep.
STRANGE = [None, True, -1, 10**30, 2**62, 0.5, float("inf"), float("nan"), "", "x\x00", [], {}, [[1]], {"a": 1}]
STRANGE.append(json.loads("[" * 200 + "]" * 200))


def mutated(text: str, count: int) -> Iterator[str]:
    """JSON with one entry anywhere replaced by a strange value, or removed, and a few texts that are not JSON."""
    random = np.random.default_rng(0)
    yield from ("", "null", "[]", "{", text[: len(text) // 2], "[" * 100_000, '{"a": ' * 100_000)
    for _ in range(count):
        value = json.loads(text)
        parent, keys = value, list(value)
        while True:
            key = keys[random.integers(len(keys))]
            child = parent[key]
            keys = (
                list(child) if isinstance(child, dict) else list(range(len(child))) if isinstance(child, list) else []
            )
            if not keys or random.random() < 0.4:
                break
            parent = child
        if random.random() < 0.2:
            del parent[key]
        else:
            parent[key] = STRANGE[random.integers(len(STRANGE))]
        yield json.dumps(value)


# What may happen to the directory of a run while it trains.
MOVES = ("renamed", "gone", "deleted", "emptied", "replaced", "refilled", "linked", "above")


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file and directory, with its content."""
    paths = sorted(directory.rglob("*"))
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in paths}


def move_run(how: str, run: Path, other: Path) -> Path | None:
    """Move or delete the directory of a run, and put a copy of the run `other` at its path, or nothing.

    The result is where the run is now, if it is anywhere. For "linked" the path is a symbolic link.
    """
    place = run.with_name("moved")
    if how == "linked":
        place = run.resolve()
        run.unlink()
        run.symlink_to(shutil.copytree(other, run.with_name("linked")))
    elif how == "above":
        place = run.parent.with_name("moved") / run.name
        os.rename(run.parent, place.parent)
        shutil.copytree(other, run)
    elif how == "refilled":  # the directory stays, with other files
        for path in run.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(other, run, dirs_exist_ok=True)
    elif how in ("renamed", "gone"):
        os.rename(run, place)
    else:
        shutil.rmtree(run)
    if how == "emptied":
        run.mkdir()
    elif how in ("renamed", "replaced"):
        shutil.copytree(other, run)
    return place if how in ("renamed", "gone", "linked", "above") else None
