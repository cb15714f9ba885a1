"""Copies of data files at URLs, in the cache: DATA_DIR/remote/HASH/NAME, each with its record beside it.

The record has the URL, the object's version (its ETag, for example) and size, and the SHA-256 of the copy. An object
that has changed since is fetched again. A copy that does not fit its record is refused.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Any

from fidec.console import Progress
from fidec.data.cache import CacheDir, Record, data_dir, sidecar_path, write_sidecar
from fidec.errors import DataError
from fidec.store import files, lock
from fidec.store.remote import Facts, Store, Unreachable


def fetch_file(url: str, cache_dir: CacheDir = None) -> Path:
    """The copy of one object, fetched if there is none of its present version."""
    target = _folder(url, cache_dir) / url.rpartition("/")[2]
    store = Store(url)
    with _locked(target):
        return _fetch(store, "", target)


def fetch_folders(url: str, folders: tuple[str, ...], cache_dir: CacheDir = None) -> Path:
    """The copy of these folders of a directory, file by file."""
    store, root = Store(url), _folder(url, cache_dir) / url.rpartition("/")[2]
    keys = [key for folder in folders for key in sorted(store.find(folder))]
    if not keys:
        raise DataError(f"{url} has no objects in {' or '.join(folders)}/. Check the URL.")
    with _locked(root), Progress(len(keys), name=f"fetching {url}", unit="file") as progress:
        for number, key in enumerate(keys, 1):
            if ".." in PurePosixPath(key).parts:
                raise DataError(f"{url} has the object {key!r}, which lies outside the directory.")
            _fetch(store, key, root / key)
            progress.update(number)
    return root


def _folder(url: str, cache_dir: CacheDir) -> Path:
    return data_dir(cache_dir) / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _locked(target: Path) -> AbstractContextManager[None]:
    waiting = f"another process fetches {target.name}; waiting for it"
    return lock.wait_for(target.parent / f".{target.name}.lock", lambda: _say(waiting))


def _fetch(store: Store, key: str, target: Path) -> Path:
    """The file `target`, equal to the object if that can be told."""
    url = f"{store.url}/{key}".rstrip("/")
    record = (files.find_json(sidecar_path(target), Record) if target.is_file() else None) or {}
    try:
        facts = store.facts(key)
    except FileNotFoundError:
        raise DataError(f"there is no file at {url}. Check the URL.") from None
    except Unreachable as error:
        if not record:
            raise
        _say(f"{error}. The copy that was fetched before is used: {target}")
        return _verified(target, record, url)
    if record and (record.get("bytes"), record.get("version")) == tuple(facts):
        return _verified(target, record, url)
    if record:
        _say(f"{url} has changed since it was fetched: it is fetched again")
    with files.writing(target, "the copy of a data file"):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _download(store, key, target, facts, url)
    except FileNotFoundError:
        raise DataError(f"{url} was removed while it was fetched. Check the URL.") from None
    return target


def _verified(target: Path, record: dict[str, Any], url: str) -> Path:
    if (found := files.sha256_file(target)) != record.get("sha256"):
        raise DataError(
            f"{target}: the copy of {url} was changed or damaged: its SHA-256 is {found[:16]}..., its record says "
            f"{str(record.get('sha256'))[:16]}.... Delete it, and it is fetched again."
        )
    return target


def _download(store: Store, key: str, target: Path, facts: Facts, url: str) -> None:
    """Fetch into a part whose name has the version, so that parts of two versions are never mixed."""
    stamp = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    part = target.with_name(f".{target.name}.{stamp}.part")
    with Progress(facts.bytes, name=f"fetching {url}", unit="MB") as progress:
        store.download(key, part, facts.bytes, progress.advance)
    if store.facts(key) != facts:
        part.unlink(missing_ok=True)
        raise DataError(f"{url} was changed while it was fetched. Try again.")
    write_sidecar(part, origin="downloaded", url=url, version=facts.version, checksum="first use")
    target.unlink(missing_ok=True)  # before its record is replaced: a file never has the record of another
    os.replace(sidecar_path(part), sidecar_path(target))
    os.replace(part, target)
    for leftover in target.parent.glob(f".{target.name}.*.part"):  # of other versions
        leftover.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
