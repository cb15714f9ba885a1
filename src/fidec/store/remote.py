"""Files at a URL (s3://, gs://, hf://, ...) through fsspec: read, listed, written, with retries and errors in words.

Credentials and endpoints come from where the store's own tools read them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
~/.aws, ...). A URL that holds credentials is refused, and none is ever printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from fidec.errors import CheckpointError, ConfigError, FidecError, RunError
from fidec.extras import require
from fidec.register import unknown
from fidec.store import files

# The schemes that can be used, and what to install for each besides fsspec.
SCHEMES = {
    "s3": "'fidec[s3]'",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "abfs": "adlfs",
    "file": "",
    "memory": "",  # of one process: for tests
}
# Of file systems. `Store._try` repeats requests: with botocore's own repetitions a dead host would take minutes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "file": {"auto_mkdir": True},
    "s3": {"config_kwargs": {"retries": {"total_max_attempts": 1}}},
}
CHUNK = 8 * 2**20  # bytes of one request of a download, which continues after the last whole chunk
_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+]+):/(/?)(.*)", re.DOTALL)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "DefaultCredentialsError")
_WRONG_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")

T = TypeVar("T")


class StoreError(RunError):
    """A store that refuses, or that has not what was asked for. Trying again does not help."""


class Unreachable(StoreError):
    """A store that does not answer, or fails for the moment."""


@dataclass(frozen=True)
class Limits:
    """When to give up. `attempts` are those of one request, after pauses that double."""

    attempts: int = 4
    backoff: float = 0.5
    longest_pause: float = 20.0


class Facts(NamedTuple):
    """An object of a store: its size, and a text that changes with its content (ETag, or time of the last change)."""

    bytes: int
    version: str


def as_url(path: str | os.PathLike[str]) -> str | None:
    """The URL that a text or a path holds, without slashes at its end; None for a path of this machine.

    A `Path` made of a URL has one slash where the URL has two.
    """
    matched = _URL.fullmatch(os.fspath(path))
    if not matched or (not matched[2] and (isinstance(path, str) or os.path.exists(path))):
        return None
    scheme, rest = matched[1].lower(), matched[3].strip("/")
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest}"


def public(text: str) -> str:
    """A text without the credentials and queries of the URLs in it, as one short line."""
    text = re.sub(r"([a-zA-Z][\w+]*://)[^/\s@]*:[^/\s@]*@", r"\1", text)
    text = re.sub(r"([a-zA-Z][\w+]*://[^\s?\"']*)\?[^\s\"']*", r"\1", text)
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:300]


def check_url(url: str) -> str:
    """The scheme of a URL that can be used; ConfigError says what is wrong with another."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise unknown("URL scheme", scheme, SCHEMES)
    if re.match(r"[^/]*:[^/]*@", rest):
        raise ConfigError(
            f"{public(url)}: the URL holds credentials, which would end up in logs. Give them as the store's own "
            "tools take them, for S3 with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in ~/.aws/credentials."
        )
    if "?" in rest:
        raise ConfigError(f"{public(url)}: a URL with a query (?...) is not used: it may hold a signature.")
    parts = PurePosixPath(rest.lstrip("/")).parts
    if len(parts) < (1 if scheme in ("file", "memory") else 2) or ".." in parts:
        raise ConfigError(f"{url}: expected a place inside a bucket, such as {scheme}://BUCKET/runs/mine")
    return scheme


class Store:
    """A directory of objects at a URL. A key is the name of an object below it; the empty one is the URL itself."""

    def __init__(self, url: str, limits: Limits | None = None):
        self.url, self.limits = url, limits or Limits()
        self._fs = _filesystem(url, check_url(url))
        self._root = self._fs._strip_protocol(url)

    def parent(self) -> Store:
        return Store(self.url.rpartition("/")[0], self.limits)

    def list(self, folder: str) -> dict[str, int]:
        """The objects directly in a folder, by their names, with their sizes. A folder that is missing has none."""
        try:
            entries = self._try(f"list {folder}", self._fs.ls, self._path(folder), detail=True, refresh=True)
        except FileNotFoundError as error:
            if "bucket does not exist" in str(error).lower():
                raise self._no_bucket() from error
            return {}
        named = ((entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries)
        return {name: int(entry.get("size") or 0) for name, entry in named if entry["type"] == "file"}

    def find(self, folder: str) -> dict[str, int]:
        """The objects in a folder and below it, by their keys, with their sizes."""
        path = self._path(folder)
        entries = self._try(f"list {folder}", self._fs.find, path, detail=True)
        return {f"{folder}{name[len(path) :]}": int(entry.get("size") or 0) for name, entry in entries.items()}

    def facts(self, key: str) -> Facts:
        """FileNotFoundError if there is no such object."""
        info = self._try(f"find {key}".rstrip(), self._fs.info, self._path(key), refresh=True)
        if info["type"] != "file":
            raise FileNotFoundError(key)
        names = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "mtime", "created")
        version = next((str(info[name]) for name in names if info.get(name) is not None), "")
        return Facts(int(info["size"]), version)

    def read(self, key: str, limit: int) -> bytes:
        """The first `limit` bytes of an object. FileNotFoundError if there is none."""
        return self._try(f"read {key}", self._fs.cat_file, self._path(key), start=0, end=limit)

    def upload(self, source: Path, key: str) -> None:
        """Write a file as an object. On an object store a reader sees the whole object or none."""
        self._writing(f"write {key}", self._fs.put_file, str(source), self._path(key))

    def create(self, key: str, content: bytes) -> None:
        """Write a new object; FileExistsError if another process was faster.

        On S3 and Google this is one conditional request. A store without one is asked before the write. If the
        answer of a request was lost, the object may be our own.
        """
        try:
            self._writing(f"write {key}", self._fs.pipe_file, self._path(key), content, mode="create")
        except FileExistsError:
            if self.read(key, len(content) + 1) != content:
                raise

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects. What cannot be removed stays: it costs only space."""
        paths = [self._path(key) for key in keys]
        with contextlib.suppress(Exception):
            if paths:
                self._fs.rm(paths)

    def download(self, key: str, target: Path, size: int, advance: Callable[[int], object]) -> None:
        """Fetch an object of this size into the file `target`, after what an interrupted call has left there.

        FileNotFoundError if there is no such object, CheckpointError if it is shorter. The caller checks the content.
        """
        have = target.stat().st_size if target.is_file() else 0
        if size - have > (free := shutil.disk_usage(target.parent).free):
            raise RunError(
                f"{target.parent} has {free / 1e6:.1f} MB free, but {self.url} needs {(size - have) / 1e6:.1f} MB "
                "more. Make room, or choose another directory with FIDEC_STAGE_DIR or FIDEC_DATA_DIR."
            )
        advance(min(have, size))
        with files.writing(target, "a part of a download"), open(target, "ab") as file:
            if have > size:
                file.truncate(0)
        have = target.stat().st_size
        while have < size:
            end = min(have + CHUNK, size)
            chunk = self._try(f"read {key}", self._fs.cat_file, self._path(key), start=have, end=end)
            if not 0 < len(chunk) <= end - have:
                raise CheckpointError(f"{self.url}: {key} has not the {size} bytes that it should have")
            with files.writing(target, "a part of a download"), open(target, "ab") as file:
                file.write(chunk)
            have += len(chunk)
            advance(len(chunk))

    def _path(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}" if key else self._root

    def _writing(self, what: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """`_try`, where a missing directory is a missing bucket."""
        try:
            self._try(what, function, *arguments, **options)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def _try(self, what: str, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Call a function of fsspec, again after errors that may be over soon."""
        limits, last = self.limits, Exception()
        for attempt in range(limits.attempts):
            if attempt:
                time.sleep(min(limits.backoff * 2 ** (attempt - 1), limits.longest_pause))
            try:
                return function(*arguments, **options)
            except (FileNotFoundError, FileExistsError, FidecError):
                raise
            except Exception as error:
                last = error
                if _code(error) in ("PreconditionFailed", "412"):
                    raise FileExistsError(what) from error
                if refusal := self._refusal(what, error):
                    raise refusal from error
        times = f" after {limits.attempts} attempts" if limits.attempts > 1 else ""
        raise Unreachable(f"{self.url} cannot be reached: could not {what}{times}: {_short(last)}") from last

    def _refusal(self, what: str, error: Exception) -> StoreError | None:
        """The error for what will not be different at the next attempt."""
        name, code = type(error).__name__, _code(error)
        if name in _NO_CREDENTIALS:
            return StoreError(
                f"{self.url}: there are no credentials. Give them as the store's own tools take them, for S3 with "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or in ~/.aws/credentials."
            )
        if code in _WRONG_CREDENTIALS:
            return StoreError(f"{self.url}: the credentials are wrong or have expired ({code}). Check them.")
        if isinstance(error, PermissionError):
            return StoreError(
                f"{self.url}: no permission to {what} ({_short(error)}). Check the credentials and the rights of the "
                "bucket: fidec lists, reads, writes and deletes objects below the URL."
            )
        if isinstance(error, NotImplementedError) or code in ("InvalidBucketName", "NotImplemented"):
            return StoreError(f"{self.url}: the store cannot {what}: {_short(error)}")
        return None

    def _no_bucket(self) -> StoreError:
        bucket = self.url.partition("://")[2].partition("/")[0]
        return StoreError(f"{self.url}: the bucket {bucket!r} does not exist. Create it first, or check its name.")


def _filesystem(url: str, scheme: str) -> Any:
    """fsspec's file system for a scheme. It keeps no listings, because other machines write too."""
    fsspec = require("fsspec", "remote", url)
    try:
        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(f"{url} needs a package that is not installed: pip install {SCHEMES[scheme]}") from error
    try:
        system = kind(use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except Exception as error:
        raise StoreError(f"{url} cannot be opened: {_short(error)}") from error
    if scheme == "s3":
        system.retries = 1
    return system


def _code(error: BaseException | None) -> str:
    """The code of a store's answer, such as NoSuchBucket; empty if there is none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        error = error.__cause__
    return ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {public(str(error))}" if str(error) else type(error).__name__
