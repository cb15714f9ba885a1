"""A run directory at a URL: numbered manifests, and the files under their SHA-256. One process at a time writes.

URL/objects/SHA256          the content of a file; never changed
URL/manifests/00000007.json name, size and SHA-256 of every file, and who wrote it; the highest number counts

A manifest is written after all its objects, and only if its number is still free. So a reader finds a complete state,
and of two writers one is refused. The manifest before it stays, with its objects, in case the newest is damaged.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypedDict

from fidec.errors import CheckpointError, RunError
from fidec.store import files
from fidec.store.remote import Store, StoreError

OBJECTS, MANIFESTS = "objects", "manifests"
KEPT = 2  # manifests, with their objects
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
    while (present := numbers(store)) != seen:
        seen = present
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
    paths = (Path(parent) / name for parent, _, names in os.walk(directory) for name in names)
    regular = (path.relative_to(directory).as_posix() for path in paths if path.is_file() and not path.is_symlink())
    return set(filter(is_mirrored, regular))


class TakenOver(StoreError):
    """Another process has continued the run."""


class Mirror:
    """Writes the states of a directory to a store, as long as no other process does."""

    def __init__(self, store: Store, directory: Path, base: Snapshot | None, newest: int):
        """`base` is the state that the directory continues, and `newest` the highest number in use."""
        self.store, self.directory = store, directory
        self.owner = this_process()
        self.base, self.newest = base, newest
        self._hashes: dict[str, tuple[tuple[int, int, int], files.Entry]] = {}
        self._limits, self._problem = store.limits, False
        self.lost = False  # to another process
        self.verify = files.nothing  # raises an error if the directory is no longer that of the run

    @property
    def url(self) -> str:
        return self.store.url

    def claim(self) -> Snapshot:
        """Make this process the owner of the mirror, with the files that it has. From now on others are refused."""
        return self._write(dict(self.base.files) if self.base else {})

    def push(self) -> Snapshot:
        """Mirror the directory as it is now: first the objects that are missing, then the manifest."""
        self._check_owner()
        try:
            entries = {name: self._entry(name) for name in sorted(names_in(self.directory))}
            present = self.store.list(OBJECTS)
            missing = {e["sha256"]: name for name, e in entries.items() if present.get(e["sha256"]) != e["bytes"]}
            for sha256, name in missing.items():
                self.store.upload(self.directory / name, f"{OBJECTS}/{sha256}")
        finally:
            self.verify()  # these may be the files of another run, or none
        before = self.base
        snapshot = self._write(entries)
        self._remove_old(present, before, snapshot)
        return snapshot

    def update(self, message: Message) -> None:
        """`push` after a checkpoint. A store that fails does not stop the run: that is said once."""
        try:
            self.push()
        except TakenOver:
            raise
        except StoreError as error:  # also credentials that have expired
            if not self._problem:
                message(f"{error}. The run goes on in {self.directory} and is mirrored later")
            self._problem, self.store.limits = True, replace(self._limits, attempts=1)
            return
        if self._problem:
            message(f"{self.url} can be written again: the run is mirrored")
        self._problem, self.store.limits = False, self._limits

    def finish(self) -> None:
        """`push` at the end of the run; an error says where the local copy is and what mirrors it."""
        if self.lost:
            return  # which was an error already
        self.store.limits = self._limits
        try:
            self.push()
        except TakenOver:
            raise
        except StoreError as error:
            raise RunError(
                f"{error}. The run is complete up to here in {self.directory}, but its last state is not at the URL. "
                f"Mirror it with: fidec train --resume {self.url}"
            ) from error

    def _write(self, entries: dict[str, files.Entry]) -> Snapshot:
        """Write the next manifest, unless another process has."""
        snapshot = Snapshot(self.newest + 1, self.owner, time.time(), entries)
        try:
            self.store.create(manifest_key(snapshot.number), snapshot.render())
        except FileExistsError:
            self._check_owner()
            if self.newest < snapshot.number:
                raise StoreError(f"{self.url}: the manifest {snapshot.number} exists, but is not listed") from None
            return self._write(entries)  # it was our own, of a request whose answer was lost
        self.base, self.newest = snapshot, snapshot.number
        return snapshot

    def _check_owner(self) -> None:
        """Raise if another process has written a manifest since this one.

        It may also be our own, if the answer to our last request was lost.
        """
        present = numbers(self.store)
        if not present or present[-1] <= self.newest:
            return
        writer = "another process"
        with contextlib.suppress(CheckpointError):
            snapshot = read_snapshot(self.store, present[-1])
            if snapshot.owner == self.owner:
                self.base, self.newest = snapshot, snapshot.number
                return
            writer = snapshot.writer
        self.lost = True
        raise TakenOver(
            f"{self.url} was continued by {writer}: this process stops, so that the run has one writer. What it "
            f"trained since its last state at the URL is in {self.directory}, and is trained there again."
        )

    def _entry(self, name: str) -> files.Entry:
        """Size and SHA-256 of a file, computed again only if the file has changed."""
        path = self.directory / name
        status = path.stat()
        key = (status.st_size, status.st_mtime_ns, status.st_ino)
        if name not in self._hashes or self._hashes[name][0] != key:
            self._hashes[name] = key, {"bytes": status.st_size, "sha256": files.sha256_file(path)}
        return self._hashes[name][1]

    def _remove_old(self, present: dict[str, int], before: Snapshot | None, now: Snapshot) -> None:
        """Remove manifests but the last two, and the objects that were there before this state and are in neither."""
        used = {entry["sha256"] for snapshot in (before, now) if snapshot for entry in snapshot.files.values()}
        try:
            manifests = numbers(self.store)
            if manifests and manifests[-1] > now.number:
                return  # another process writes: what it uses is not known
        except StoreError:
            return
        self.store.remove([manifest_key(number) for number in manifests[:-KEPT]])
        self.store.remove([f"{OBJECTS}/{name}" for name in present if SHA256.fullmatch(name) and name not in used])
