"""Leases: at most one writer of a run directory, also where locks of the kernel do not reach other machines.

    RUN/lease/00000007   who writes there: a random id, the process, and a counter that rises while it lives

The number in the name is the fencing number. A process takes a run by creating the file of the next number, which a
file system lets only one process do. The process with the highest number may write. It raises its counter every few
seconds. Another process may take the run when it has seen the same counter for `seconds` on its own clock, so clocks
are never compared. A process that was taken for dead and goes on finds a higher number before its next write, stops,
and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fidec.errors import BusyError
from fidec.store import files
from fidec.store.schema import parse_json

DIRECTORY = "lease"
SECONDS = 60.0  # of silence after which a process is taken for dead; FIDEC_LEASE_SECONDS replaces it
RENEWALS = 6  # in this time
BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same for all processes of a running machine


class TakenError(BusyError):
    """Another process has taken the run directory meanwhile."""


class Found(NamedTuple):
    """The newest lease of a run, as it was read."""

    number: int
    content: bytes

    @property
    def values(self) -> dict[str, Any]:
        """What it says; empty if it is just being written."""
        with contextlib.suppress(ValueError):
            if isinstance(values := parse_json(self.content), dict):
                return values
        return {}

    @property
    def released(self) -> bool:
        return self.number == 0 or self.values.get("released") is True

    @property
    def here(self) -> bool:
        """Whether its process is, or was, on this machine since it was last started."""
        return self.values.get("boot") == _boot()

    @property
    def owner(self) -> str:
        values = self.values
        return f"process {values['pid']} on host {values['host']}" if {"pid", "host"} <= set(values) else "a process"

    @property
    def seconds(self) -> float:
        """How long it may be silent: what it promised, and no less than what this process would."""
        promised = self.values.get("seconds")
        return max(_seconds(), promised) if isinstance(promised, int | float) else _seconds()


class Lease:
    """A lease that this process holds. A thread renews it until `release`.

    `directory` is the open descriptor of the run, so that no other run that is later at its path gets this lease.
    """

    def __init__(self, run: Path, directory: int, number: int, taken_over: bool):
        self.run, self.number, self.taken_over = run, number, taken_over
        self._path = run / DIRECTORY / _name(number)
        self._open = partial(os.open, Path(DIRECTORY, _name(number)), dir_fd=directory)
        self._seconds, self._count = _seconds(), 0
        self._ended = threading.Event()
        self._who = {"owner": secrets.token_hex(8), "pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()}
        with files.writing(self._path, "the lease"):
            descriptor = self._open(os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.close(descriptor)
        self._write()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def start(self) -> Lease:
        self._thread.start()
        return self

    def verify(self) -> None:
        """Raise `TakenError` unless this process may still write. Call it right before each write."""
        try:
            os.close(os.open(self._path, os.O_RDONLY))  # asks the server, where a listing may be an old one
        except FileNotFoundError:
            held = False
        else:
            found, own = newest(self.run), self._who["owner"]
            held = found.number == self.number and found.values.get("owner", own) == own
        if not held:
            raise TakenError(
                f"{self.run} was taken by {newest(self.run).owner}, because this process had shown no sign of life "
                f"for {self._seconds:g} s. This process stops and changes nothing more there."
            )

    def release(self) -> None:
        """Let other processes take the run at once. The file stays, so that numbers rise."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        with contextlib.suppress(OSError):
            self._write(released=True)

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS):
            try:
                self._write()
            except FileNotFoundError:
                return  # taken: the next `verify` says so
            except OSError:
                continue  # perhaps the next one succeeds

    def _write(self, released: bool = False) -> None:
        """Write into the own file only, never creating it: that of another number cannot be changed by mistake."""
        self._count += 1
        values = {**self._who, "seconds": self._seconds, "count": self._count, "released": released}
        text = json.dumps(values).encode()
        descriptor = self._open(os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)


def acquire(run: Path, directory: int, dead_if_here: bool) -> Lease:
    """Take the lease of a run directory, which is open; `BusyError` names the process that holds it.

    With `dead_if_here` a holder on this machine is known to have ended, because this process has its lock.
    """
    with files.writing(run / DIRECTORY, "the lease"):
        (run / DIRECTORY).mkdir(exist_ok=True)
    before = newest(run)
    silent = not (before.released or (dead_if_here and before.here))
    if silent:
        _watch(run, before)
    try:
        lease = Lease(run, directory, before.number + 1, taken_over=silent)
    except files.WriteError as error:
        if isinstance(error.__cause__, FileExistsError):
            raise _busy(run, newest(run)) from None
        raise
    if (found := newest(run)).number != lease.number:  # a slow process, whose number was used and removed before
        with contextlib.suppress(OSError):
            (run / DIRECTORY / _name(lease.number)).unlink()
        raise _busy(run, found)
    for name in os.listdir(run / DIRECTORY):
        if name < _name(lease.number):
            (run / DIRECTORY / name).unlink(missing_ok=True)
    return lease.start()


def _watch(run: Path, before: Found) -> None:
    """Return when the holder has been silent for long enough, or has released its lease; `BusyError` if it lives."""
    start = time.monotonic()
    print(
        f"{run} was last used by {before.owner}. Waiting up to {before.seconds:g} s for a sign of its life.",
        file=sys.stderr,
    )
    while time.monotonic() - start < before.seconds:
        time.sleep(before.seconds / (4 * RENEWALS))
        now = newest(run)
        if now.number == before.number and now.released:
            return
        if now != before:
            raise _busy(run, now)


_seen: dict[Path, tuple[Found, float]] = {}  # what `is_held` last read, and when that changed


def is_held(run: Path) -> bool:
    """Whether a process elsewhere seems to hold the lease: until it has been silent for long enough."""
    found, now = newest(run), time.monotonic()
    if found.released:
        return False
    before, since = _seen.get(run, (None, now))
    if before != found:
        since = now
    _seen[run] = (found, since)
    return now - since < found.seconds


def newest(run: Path) -> Found:
    """The lease with the highest number; 0 if there is none."""
    for _ in range(100):
        try:
            numbers = [name for name in os.listdir(run / DIRECTORY) if name.isdigit()]
            if not numbers:
                break
            name = max(numbers)
            return Found(int(name), (run / DIRECTORY / name).read_bytes())
        except FileNotFoundError:  # there is no directory, or a newer one has just replaced it
            if not (run / DIRECTORY).exists():
                break
    return Found(0, b"")


def _busy(run: Path, found: Found) -> BusyError:
    return BusyError(f"{run} is in use by {found.owner}. Wait for it, or stop it first.")


def _name(number: int) -> str:
    return f"{number:08d}"


def _seconds() -> float:
    return float(os.environ.get("FIDEC_LEASE_SECONDS", SECONDS))


def _boot() -> str:
    """A name of this machine since it was last started."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
