"""The states of a run directory at a URL: numbered manifests, and the files under their SHA-256.

URL/objects/SHA256          the content of a file; never changed
URL/manifests/00000007.json name, size and SHA-256 of every file, and who wrote it; the highest number counts

A manifest is written after all its objects, and only if its number is still free. So a reader finds a complete state,
and of two writers one is refused. The manifest before it stays, with its objects, in case the newest is damaged.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypedDict

from fidec.errors import CheckpointError
from fidec.store import files
from fidec.store.remote import Store

OBJECTS, MANIFESTS = "objects", "manifests"
LARGEST_MANIFEST = 16 * 2**20  # bytes
_NAME = re.compile(r"([0-9]{8,18})\.json")
SHA256 = re.compile(r"[0-9a-f]{64}")

Message = Callable[[str], object]


class Owner(TypedDict):
    """The process that wrote a manifest. Its `token` tells it from all others."""

    host: str
    pid: int
    token: str
    since: float


class Extra(TypedDict):
    number: int
    time: float
    owner: Owner


@dataclass(frozen=True)
class Snapshot:
    """A manifest: a complete state of the directory."""

    number: int
    owner: Owner
    time: float
    files: dict[str, files.Entry]

    def render(self) -> bytes:
        extra = {"number": self.number, "time": self.time, "owner": self.owner}
        body = {"format": files.MANIFEST_FORMAT, "files": self.files, "extra": extra}
        return files.render_manifest(body).encode()

    @property
    def writer(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.time))
        return f"process {self.owner['pid']} on host {self.owner['host']!r} at {when} UTC"


def this_process() -> Owner:
    return {"host": socket.gethostname(), "pid": os.getpid(), "token": secrets.token_hex(8), "since": time.time()}


def is_mirrored(name: str) -> bool:
    """Whether a file of the directory belongs to its mirror: neither its lock nor anything hidden or temporary."""
    return name != "lock" and not any(part.startswith(".") for part in PurePosixPath(name).parts)


def numbers(store: Store) -> list[int]:
    """The numbers of the manifests, readable or not, in rising order."""
    matches = (_NAME.fullmatch(name) for name in store.list(MANIFESTS))
    return sorted(int(matched[1]) for matched in matches if matched)


def read_snapshot(store: Store, number: int) -> Snapshot:
    """A manifest; `CheckpointError` if it is damaged or names what no mirror has."""
    key = manifest_key(number)
    where = f"{store.url}/{key}"
    try:
        raw = store.read(key, LARGEST_MANIFEST + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{where} is missing") from None
    if len(raw) > LARGEST_MANIFEST:
        raise CheckpointError(f"{where} is larger than {LARGEST_MANIFEST} bytes; not a manifest")
    body = files.parse_manifest(raw, where)
    files.check_schema(Path(key), body["extra"], Extra)
    for name, entry in body["files"].items():
        files.check_inside(name, where)
        usual = name and "\\" not in name and "\0" not in name and str(PurePosixPath(name)) == name
        if not (usual and is_mirrored(name) and entry["bytes"] >= 0 and SHA256.fullmatch(entry["sha256"])):
            raise CheckpointError(f"{where} was not written by fidec: it names {name!r}")
    extra = body["extra"]
    if extra["number"] != number or not 0 <= extra["time"] < 1e11:
        raise CheckpointError(f"{where} says that it is manifest {extra['number']} of time {extra['time']}")
    return Snapshot(number, extra["owner"], extra["time"], body["files"])


def snapshots(store: Store, warn: Message) -> Iterator[Snapshot]:
    """The readable manifests, the newest first. `warn` is told about damaged ones."""
    for number in reversed(numbers(store)):
        try:
            yield read_snapshot(store, number)
        except CheckpointError as error:
            warn(f"{error}. The manifest before it is tried")


def pull(
    store: Store,
    directory: Path,
    warn: Message,
    wanted: Callable[[str], bool] = lambda name: True,
    place: Callable[[Snapshot], Path] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> tuple[Snapshot, Path] | None:
    """Bring the newest complete state into a directory (of the choice of `place`); None if there is no manifest.

    Each file has its final name only after its SHA-256 was checked. If the newest state is damaged, the one before it
    is taken. While a writer replaces the states that are read, the newest is looked up again.
    """
    seen: list[int] = []
    while (found := numbers(store)) != seen:
        seen = found
        for snapshot in snapshots(store, warn):
            target = directory if place is None else place(snapshot)
            try:
                _fetch(store, snapshot, target, wanted, advance)
                if place is None:
                    _remove_others(snapshot, target)
                return snapshot, target
            except CheckpointError as error:
                warn(f"manifest {snapshot.number} of {store.url} cannot be used: {error}")
    if not seen:
        return None
    raise CheckpointError(
        f"no state of {store.url} is complete: {len(seen)} manifests were tried. Restore the objects from a copy, or "
        "start again with --overwrite."
    )


def _fetch(
    store: Store,
    snapshot: Snapshot,
    directory: Path,
    wanted: Callable[[str], bool],
    advance: Callable[[int], object],
) -> None:
    """Bring the files of a snapshot into a directory. What is there already is not fetched again."""
    chosen = {name: entry for name, entry in snapshot.files.items() if wanted(name)}
    with files.writing(directory, "the local copy"):
        directory.mkdir(parents=True, exist_ok=True)
        parts = directory / ".parts"
        parts.mkdir(exist_ok=True)
    for name, entry in chosen.items():
        path = directory / name
        try:
            files.verify_file(path, entry, "manifest")
            continue
        except CheckpointError:
            pass
        part = parts / entry["sha256"]
        try:
            store.download(f"{OBJECTS}/{entry['sha256']}", part, entry["bytes"], advance)
        except FileNotFoundError:
            raise CheckpointError(f"the object of {name} is missing") from None
        try:
            files.verify_file(part, entry, "manifest")
        except CheckpointError as error:
            files.remove(part)
            raise CheckpointError(f"the object of {name} is damaged: {error}") from error
        with files.writing(path, "the local copy"):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.remove(path)  # a directory or a link in its place
            os.replace(part, path)


def _remove_others(snapshot: Snapshot, directory: Path) -> None:
    """Remove what is not of a snapshot, so that the directory is as its writer had it.

    Also what a crash left there under hidden names: it would be given back to the run.
    """
    for leftover in sorted(directory.rglob(".*"), reverse=True):
        files.remove(leftover)
    for name in names_in(directory) - snapshot.files.keys():
        files.remove(directory / name)
    for empty in sorted((path for path in directory.rglob("*") if path.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()


def manifest_key(number: int) -> str:
    return f"{MANIFESTS}/{number:08d}.json"


def names_in(directory: Path) -> set[str]:
    """The files of a directory that are mirrored. Links are not followed."""
    found = (path.relative_to(directory).as_posix() for path in _regular_files(directory))
    return {name for name in found if is_mirrored(name)}


def _regular_files(directory: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(directory):
        for name in names:
            path = Path(parent) / name
            if path.is_file() and not path.is_symlink():
                yield path
