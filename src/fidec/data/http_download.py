"""Fetch one address into a file: continue a partial file, retry temporary errors, report permanent ones.

huggingface_hub for the mirrors and a plain GET for the official hosts would be shorter, and do less: it is optional,
while `fidec data get` needs no further package, and a file of gigabytes from a slow host must be continued after an
interruption. pooch starts every attempt with an empty file. `requests` honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import requests

from fidec.console import Progress
from fidec.data.cache import sidecar_path
from fidec.errors import DataError
from fidec.store.files import find_json, write_json

_DIGITS = "[0-9]{1,18}"  # of a number in a header: Python's int also takes other digits, and not too many
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Limits:
    """When to give up on an address. Seconds, attempts and bytes."""

    connect: float = 15.0
    stall: float = 60.0  # without a single byte
    attempts: int = 5  # in a row, without `progress` more bytes
    unreachable: int = 2  # attempts without a connection, while there are no bytes yet
    backoff: float = 1.0  # pause before the second attempt; doubles
    longest_pause: float = 60.0
    progress: int = 2**20
    block: int = 2**16


class AddressError(Exception):
    """The address cannot give the file: try another one."""


class TemporaryError(Exception):
    """An error that may be over soon. `wait` is the pause that the server asks for, in seconds."""

    def __init__(self, text: str, wait: float = 0.0, *, connected: bool = True):
        super().__init__(text)
        self.wait, self.connected = wait, connected


@dataclass(frozen=True)
class Version:
    """The file at an address: `validator` (ETag or Last-Modified) identifies its version."""

    validator: str | None = None
    total: int | None = None
    sha256: str | None = None


class PartialFile:
    """A partial file `.NAME.HASH.part`, one per address, so that bytes of two hosts are never mixed."""

    def __init__(self, folder: Path, name: str, url: str):
        self.name = name
        self.path = folder / f".{name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
        self.record_path = sidecar_path(self.path)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def version(self) -> Version:
        """The recorded version; an empty one, which means a new start, if the record is missing or damaged."""
        try:
            return Version(**(find_json(self.record_path) or {}))
        except TypeError:
            return Version()

    def record(self, version: Version) -> None:
        write_json(self.record_path, asdict(version))

    def write(self, offset: int, blocks: Iterable[bytes], count: Callable[[int], None]) -> int:
        """Cut the file at `offset`, append `blocks`, and return the new size."""
        source = iter(blocks)
        with open(self.path, "r+b" if self.path.exists() else "wb", buffering=0) as file:
            file.seek(offset)
            file.truncate()
            while (block := next(source, None)) is not None:
                try:
                    left = memoryview(block)
                    while left:
                        left = left[file.write(left) :]
                except OSError as error:  # a full disk: another server would not help
                    raise DataError(f"cannot write {self.path}: {error.strerror}. Make room on the disk.") from error
                count(len(block))
            os.fsync(file.fileno())
            return file.tell()

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.record_path.unlink(missing_ok=True)


def fetch(url: str, partial: PartialFile, progress: Progress, limits: Limits) -> tuple[str | None, bool]:
    """Complete `partial` from `url`; raises AddressError.

    Returns the SHA-256 that the server announced, if any, and whether the bytes came in more than one request.
    """
    failures, best, resumed = 0, partial.size(), partial.size() > 0
    while True:
        try:
            return _attempt(url, partial, progress, limits), resumed
        except TemporaryError as error:
            failures = 1 if partial.size() >= best + limits.progress else failures + 1
            best, resumed = max(best, partial.size()), partial.size() > 0
            if failures >= (limits.attempts if error.connected or resumed else limits.unreachable):
                raise AddressError(f"{error} ({failures} attempts)") from error
            pause = min(max(limits.backoff * 2 ** (failures - 1), error.wait), limits.longest_pause)
            progress.message(f"{partial.name}: {error}; next attempt in {pause:g} s")
            time.sleep(pause)


def _attempt(url: str, partial: PartialFile, progress: Progress, limits: Limits) -> str | None:
    """One request. Returns the announced SHA-256 once the partial is complete."""
    known = partial.version()
    offset = partial.size() if known.validator else 0
    if offset and offset == known.total:
        return known.sha256  # interrupted after the last byte, before the check
    headers = {"User-Agent": f"fidec/{metadata.version('fidec')}", "Accept-Encoding": "identity"}
    if offset and known.validator:
        # If-Range: a file that has changed meanwhile is sent from its beginning, with status 200.
        headers |= {"Range": f"bytes={offset}-", "If-Range": known.validator}
    with _open(url, headers, limits) as response:
        _check_status(url, response, partial)
        version, offset = _read_headers(response, partial, offset)
        _check_space(partial, version, offset)
        if not offset:
            partial.clear()  # before the record: old bytes must never get the validator of a new version
        partial.record(version)
        progress.restart(offset, version.total)
        try:
            size = partial.write(offset, response.iter_content(limits.block), progress.advance)
        except requests.RequestException as error:
            stalled = "timed out" in str(error)
            text = f"no byte came for {limits.stall:g} s" if stalled else "the connection was lost"
            raise TemporaryError(f"{text} after {partial.size()} of {version.total or '?'} bytes") from error
    if version.total is not None and size != version.total:
        if size > version.total:
            partial.clear()
        raise TemporaryError(f"{size} bytes came instead of {version.total}")
    return version.sha256


def _open(url: str, headers: dict[str, str], limits: Limits) -> requests.Response:
    try:
        return requests.get(url, headers=headers, stream=True, timeout=(limits.connect, limits.stall))
    except requests.ReadTimeout as error:
        raise TemporaryError(f"no answer within {limits.stall:g} s") from error
    except requests.ConnectionError as error:  # also of proxies, certificates and name lookups
        raise TemporaryError(f"no connection: {_short(error)}", connected=False) from error
    except (requests.RequestException, ValueError) as error:  # ValueError: a redirect to what is no address
        raise AddressError(_short(error)) from error


def _check_status(url: str, response: requests.Response, partial: PartialFile) -> None:
    status, headers = response.status_code, response.headers
    if url.startswith("https:") and not response.url.startswith("https:"):
        raise AddressError("it redirects to an address without encryption")
    if status == 416:  # the partial is longer than the file: they are different files
        partial.clear()
        raise TemporaryError("HTTP 416: the length of the file has changed")
    if status in _RETRY_STATUS:
        raise TemporaryError(f"HTTP {status} ({_printable(response.reason)})", _count(headers, "Retry-After") or 0)
    if status not in (200, 206):
        raise AddressError(f"HTTP {status} ({_printable(response.reason)})")
    if headers.get("Content-Type", "").startswith("text/html"):
        raise AddressError("it sends a web page (text/html) instead of data")


def _read_headers(response: requests.Response, partial: PartialFile, offset: int) -> tuple[Version, int]:
    """The version of the file, and where in the file the bytes of this answer begin."""
    headers = response.headers
    total = _count(headers, "Content-Length")
    if response.status_code == 206:
        matches = re.fullmatch(
            rf"bytes ({_DIGITS})-({_DIGITS})/({_DIGITS})", headers.get("Content-Range", "").strip()
        )
        first, last, whole = map(int, matches.groups()) if matches else (-1, -1, -1)
        if first != offset or last + 1 != whole or total not in (None, whole - offset):
            partial.clear()
            raise TemporaryError(f"it sends another range than bytes {offset} to the end")
        total = whole
    else:
        offset = 0
    announced = None
    for answer in (*response.history, response):  # Hugging Face sends the SHA-256 with its redirect
        linked = answer.headers.get("X-Linked-Etag", "").strip('"')
        announced = linked if re.fullmatch(r"[0-9a-f]{64}", linked) else announced
    if headers.get("Content-Encoding", "identity") != "identity":
        return Version(None, None, announced), offset  # lengths and ranges count compressed bytes
    etag = headers.get("ETag", "")  # a weak one does not promise equal bytes
    return Version(etag if etag.startswith('"') else headers.get("Last-Modified"), total, announced), offset


def _count(headers: Mapping[str, str], name: str) -> int | None:
    """The number in a header; None if there is none."""
    value = headers.get(name, "").strip()
    return int(value) if re.fullmatch(_DIGITS, value) else None


def _printable(text: str | None) -> str:
    """What a server says, as one short line without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join((text or "").split()))[:200]


def _check_space(partial: PartialFile, version: Version, offset: int) -> None:
    free = shutil.disk_usage(partial.path.parent).free
    needed = (version.total or 0) - offset
    if needed > free:
        raise DataError(
            f"{partial.path.parent} has {free / 1e6:.1f} MB free, but {partial.name} needs {needed / 1e6:.1f} MB "
            "more. Make room, or choose another directory (--data-dir, FIDEC_DATA_DIR)."
        )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    core = re.search(
        r"\[Errno[^\]]*\] [^'\")(]+|timed out|certificate verify failed|Tunnel connection failed[^'\")]*", text
    )
    return _printable(core[0] if core else text)
