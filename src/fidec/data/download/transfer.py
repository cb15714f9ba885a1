"""One address, fetched with patience: parts are resumed, passing trouble is retried, the rest is refused.

`requests` does the talking: it honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
"""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from importlib import metadata

import requests

from fidec.console.progress import Progress
from fidec.data.download.part import Facts, Part
from fidec.errors import DataError

_TRY_AGAIN = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Patience:
    """When to give up on an address. Seconds, attempts and bytes."""

    connect: float = 15.0
    stall: float = 60.0  # without a single byte
    attempts: int = 5  # in a row, without `progress` bytes more
    unreachable: int = 2  # attempts as long as nothing came and there was not even a connection
    backoff: float = 1.0  # before the second attempt; doubles
    longest: float = 60.0  # wait at most this long between attempts
    progress: int = 2**20
    chunk: int = 2**16


class Refused(Exception):
    """There is no use in asking this address again."""


class Passing(Exception):
    """Trouble that may be over soon. `wait` is what the server asked for, in seconds."""

    def __init__(self, text: str, wait: float = 0.0):
        super().__init__(text)
        self.wait = wait


class Unreachable(Passing):
    """No connection at all."""


@dataclass(frozen=True)
class Fetched:
    """All bytes are in the part. `sha256` is what the server announced; `resumed`: more than one request."""

    sha256: str | None
    resumed: bool


def fetch(url: str, part: Part, progress: Progress, patience: Patience) -> Fetched:
    """Get the bytes of `url` into `part`, going on where it ends. Raises Refused."""
    failures, best, resumed = 0, part.size(), part.size() > 0
    while True:
        try:
            return Fetched(_attempt(url, part, progress, patience), resumed)
        except Passing as error:
            moved = part.size() >= best + patience.progress
            failures = 1 if moved else failures + 1
            best, resumed = max(best, part.size()), part.size() > 0
            never = isinstance(error, Unreachable) and not part.size()
            if failures >= (patience.unreachable if never else patience.attempts):
                raise Refused(f"{error} ({failures} attempts)") from error
            pause = min(max(patience.backoff * 2 ** (failures - 1), error.wait), patience.longest)
            progress.message(f"{part.name}: {error}; trying again in {pause:g} s")
            time.sleep(pause)


def _attempt(url: str, part: Part, progress: Progress, patience: Patience) -> str | None:
    """One request. Returns the announced SHA-256 once the part is whole."""
    known = part.facts()
    offset = part.size() if known.validator else 0
    if offset and offset == known.total:
        return known.sha256  # stopped after the last byte, before the check
    headers = {"User-Agent": f"fidec/{metadata.version('fidec')}", "Accept-Encoding": "identity"}
    if offset and known.validator:
        # If-Range: a file that has changed since then is sent whole, with status 200.
        headers |= {"Range": f"bytes={offset}-", "If-Range": known.validator}
    with _open(url, headers, patience) as response:
        facts, offset = _judge(url, response, part, offset)
        _require_room(part, facts, offset)
        if not offset:
            part.clear()  # before the note: old bytes must never stand under a new file's validator
        part.note(facts)
        progress.restart(offset, facts.total)
        try:
            size = part.write(offset, response.iter_content(patience.chunk), progress.advance)
        except requests.RequestException as error:
            slow = "timed out" in str(error)
            text = f"no byte came for {patience.stall:g} s" if slow else "the connection was lost"
            raise Passing(f"{text} after {part.size()} of {facts.total or '?'} bytes") from error
    if facts.total is not None and size != facts.total:
        if size > facts.total:
            part.clear()
        raise Passing(f"{size} bytes came instead of {facts.total}")
    return facts.sha256


def _open(url: str, headers: dict[str, str], patience: Patience) -> requests.Response:
    try:
        return requests.get(url, headers=headers, stream=True, timeout=(patience.connect, patience.stall))
    except requests.ReadTimeout as error:
        raise Passing(f"no answer within {patience.stall:g} s") from error
    except requests.ConnectionError as error:  # also proxies, certificates, names without an address
        raise Unreachable(f"no connection: {_short(error)}") from error
    except requests.RequestException as error:
        raise Refused(_short(error)) from error


def _judge(url: str, response: requests.Response, part: Part, offset: int) -> tuple[Facts, int]:
    """What the answer's headers say of the file, and where in it the answer's bytes begin."""
    status, headers = response.status_code, response.headers
    if url.startswith("https:") and not response.url.startswith("https:"):
        raise Refused("it sends us on to an address without encryption")
    if status == 416:  # our part is longer than their file: not the same file
        part.clear()
        raise Passing("HTTP 416: the file there has another length now")
    if status in _TRY_AGAIN:
        wait = headers.get("Retry-After", "")
        raise Passing(f"HTTP {status} ({response.reason})", float(wait) if wait.isdigit() else 0.0)
    if status not in (200, 206):
        raise Refused(f"HTTP {status} ({response.reason})")
    if headers.get("Content-Type", "").startswith("text/html"):
        raise Refused("it sends a web page (text/html) instead of data")
    length = headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else None
    if status == 206:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", headers.get("Content-Range", "").strip())
        first, last, whole = map(int, found.groups()) if found else (-1, -1, -1)
        if first != offset or last + 1 != whole or total not in (None, whole - offset):
            part.clear()
            raise Passing(f"it sends another range than bytes {offset} to the end")
        total = whole
    else:
        offset = 0
    etag, announced = headers.get("ETag", ""), None
    for answer in (*response.history, response):  # Hugging Face names the SHA-256 where it redirects
        linked = answer.headers.get("X-Linked-Etag", "").strip('"')
        announced = linked if re.fullmatch(r"[0-9a-f]{64}", linked) else announced
    if headers.get("Content-Encoding", "identity") != "identity":
        return Facts(None, None, announced), offset  # packed on the way: lengths and ranges mean other bytes
    # A weak ETag does not promise the same bytes.
    validator = etag if etag.startswith('"') else headers.get("Last-Modified")
    return Facts(validator, total, announced), offset


def _require_room(part: Part, facts: Facts, offset: int) -> None:
    free = shutil.disk_usage(part.path.parent).free
    needed = (facts.total or 0) - offset
    if needed > free:
        raise DataError(
            f"{part.path.parent} has {free / 1e6:.1f} MB free, but {part.name} needs {needed / 1e6:.1f} MB more. "
            "Make room, or choose another directory (--data-dir, FIDEC_DATA_DIR)."
        )


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    found = re.search(
        r"\[Errno[^\]]*\] [^'\")(]+|timed out|certificate verify failed|Tunnel connection failed[^'\")]*", text
    )
    return found[0].strip() if found else text[:200]
