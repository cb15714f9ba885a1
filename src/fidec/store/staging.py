"""Where a run at a URL lies on this machine: the directory that it is trained in, and copies that are only read.

STAGE/HASH/NAME             a run that is trained here and mirrored; `HASH` is of its URL
STAGE/HASH/origin.json      its URL, and the tokens of the processes that trained it here
STAGE/copies/HASH/NAME      a copy for reading; `HASH` is of its manifest. It has no checkpoints, replay/ and tb/

STAGE is the environment variable FIDEC_STAGE_DIR, else `runs` in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import platformdirs

from fidec.errors import RunError
from fidec.store import files, lock
from fidec.store.remote import Store, Unreachable, as_url
from fidec.store.remote_run import Mirror, Snapshot, numbers, pull, snapshots
from fidec.store.rundir import is_run

ORIGIN = "origin.json"
TOKENS = 4  # of the last processes
LEFT_OUT = ("checkpoints", "replay", "tb")


class Origin(TypedDict):
    url: str
    tokens: list[str]


def stage_dir() -> Path:
    """The directory of all copies (not created here)."""
    chosen = os.environ.get("FIDEC_STAGE_DIR")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("fidec")) / "runs"


def local_run(path: str | os.PathLike[str], whole: bool = False) -> Path:
    """The local path of a run or a policy: the path itself or, of a URL, a copy whose hashes were checked.

    A copy is for reading. It has checkpoints only if it is `whole`. What is added to it stays on this machine.
    """
    url = as_url(path)
    if url is None:
        return Path(path)
    store = Store(url)
    if (found := _copy(store, whole)) is not None:
        return found
    name = url.rpartition("/")[2]
    if url.count("/") > 3 and (run := _copy(store.parent(), whole)) is not None and (run / name).is_dir():
        return run / name  # the policy of a run, URL/policy
    raise RunError(_nothing_at(store))


def stage_new(url: str, overwrite: bool, stack: ExitStack) -> Mirror:
    """The mirror of a new run, and its directory here. `stack` releases the latter's lock.

    The store is asked before training, so that a wrong name or missing rights are found at once.
    """
    store = Store(url)
    directory = _locked(url, stack)
    published = numbers(store)
    base = next(snapshots(store, _to_stderr), None) if published else None
    # A run that has not trained is replaced without --overwrite.
    trained = base is None or any(name.startswith(("checkpoints/", "policy/", "flow/")) for name in base.files)
    if published and trained and not overwrite:
        raise RunError(
            f"{url} holds a run already. Continue it with --resume {url}, replace it with --overwrite, or choose "
            "another --out."
        )
    if not overwrite and files.has_entries(directory / "checkpoints"):
        raise RunError(
            f"{directory}, the local copy of {url}, holds a run that is not at the URL. Mirror and continue it with "
            f"--resume {url}, or replace it with --overwrite."
        )
    return _claimed(Mirror(store, directory, base, published[-1] if published else 0))


def stage_existing(url: str, stack: ExitStack) -> Mirror:
    """The mirror of a run that is continued here, and its directory, which has its newest state.

    That is the local one if the last writer was on this machine, else the one at the URL.
    """
    store = Store(url)
    directory = _locked(url, stack)
    here = is_run(directory)
    try:
        published = numbers(store)
        newest = next(snapshots(store, _to_stderr), None)
        if newest is None and not here:
            raise RunError(_nothing_at(store))
        if newest is not None and not (here and newest.owner["token"] in _tokens(directory)):
            replaced = ", in place of another state" if here else ""
            _to_stderr(
                f"staging {url} in {directory}{replaced}. It was last written by {newest.writer}: if that process "
                "still trains, it stops at its next checkpoint"
            )
            newest, _ = pull(store, directory, _to_stderr, advance=_counter(url)) or (newest, directory)
        highest = max([*published[-1:], newest.number if newest else 0])  # it may have risen since
        return _claimed(Mirror(store, directory, newest, highest))
    except Unreachable as error:
        place = f" Its local copy is {directory}." if here else ""
        raise Unreachable(f"{error}. The run is not continued.{place}") from error


def _copy(store: Store, whole: bool) -> Path | None:
    """A copy of the newest state to read; None if there is no run at the URL."""
    root = stage_dir() / "copies"

    def place(snapshot: Snapshot) -> Path:
        return root / hashlib.sha256(snapshot.render()).hexdigest()[:16] / store.url.rpartition("/")[2]

    def wanted(name: str) -> bool:
        return whole or name.partition("/")[0] not in LEFT_OUT

    waiting = f"another process copies {store.url}; waiting for it"
    key = hashlib.sha256(store.url.encode()).hexdigest()[:16]
    with lock.wait_for(root / f".{key}.lock", lambda: _to_stderr(waiting)):
        pulled = pull(store, root, _to_stderr, wanted, place, _counter(store.url))
    return None if pulled is None else pulled[1]


def _locked(url: str, stack: ExitStack) -> Path:
    """The directory of a run that is trained here. No other process of this machine uses it."""
    folder = stage_dir() / hashlib.sha256(url.encode()).hexdigest()[:16]
    held = lock.acquire(folder / "lock")
    stack.callback(held.release)
    return folder / url.rpartition("/")[2]


def _claimed(mirror: Mirror) -> Mirror:
    """Record the process before it becomes the owner: a crash in between loses nothing that is here."""
    folder = mirror.directory.parent
    tokens = [*_tokens(mirror.directory), mirror.owner["token"]][-TOKENS:]
    with files.writing(folder, "the local copy"):
        files.write_json(folder / ORIGIN, {"url": mirror.url, "tokens": tokens})
    mirror.claim()
    _to_stderr(f"trains in {mirror.directory}, mirrored to {mirror.url}")
    return mirror


def _tokens(directory: Path) -> list[str]:
    return (files.find_json(directory.parent / ORIGIN, Origin) or {"tokens": []})["tokens"]


def _nothing_at(store: Store) -> str:
    return (
        f"there is no run at {store.url}: it has no manifest (manifests/*.json) written by fidec. "
        "`fidec train --out URL` writes one."
    )


def _counter(url: str, every: float = 10.0) -> Callable[[int], None]:
    """A function that counts bytes, and prints a line now and then."""
    total, printed = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal total, printed
        total += count
        if time.monotonic() - printed >= every:
            printed = time.monotonic()
            _to_stderr(f"{url}: {total / 1e6:.1f} MB so far")

    return advance


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
