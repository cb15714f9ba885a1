"""The writer of a run's states at a URL (`fidec.store.snapshots`): one process, until another takes over."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from fidec.errors import CheckpointError, RunError
from fidec.store import files
from fidec.store.remote import Store, StoreError
from fidec.store.snapshots import (
    OBJECTS,
    SHA256,
    Message,
    Snapshot,
    manifest_key,
    names_in,
    numbers,
    read_snapshot,
    this_process,
)

KEPT = 2  # manifests, with their objects


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
        found = numbers(self.store)
        if not found or found[-1] <= self.newest:
            return
        writer = "another process"
        with contextlib.suppress(CheckpointError):
            snapshot = read_snapshot(self.store, found[-1])
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
        used = {entry["sha256"] for each in (before, now) if each for entry in each.files.values()}
        try:
            found = numbers(self.store)
            if found and found[-1] > now.number:
                return  # another process writes: what it uses is not known
        except StoreError:
            return
        self.store.remove([manifest_key(number) for number in found[:-KEPT]])
        self.store.remove([f"{OBJECTS}/{name}" for name in present if SHA256.fullmatch(name) and name not in used])
