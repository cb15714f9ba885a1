"""Data sources: `load_dataset("SCHEME:WHAT")` finds the source by its scheme, and the source loads the data.

A built-in source is one module of `fidec.data.sources` with an object `SOURCE`. Another package adds a source with an
entry point in the group `fidec.sources` that names its `DataSource`; the name of the entry point is the scheme.

Data at a URL is copied to the cache, DATA_DIR/remote/HASH/NAME, each file with its record beside it: the URL, the
object's version (its ETag, for example) and size, and the SHA-256 of the copy. An object that has changed since is
fetched again. A copy that does not fit its record is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from fidec.console import Progress
from fidec.data.cache import CacheDir as CacheDir
from fidec.data.cache import Record, data_dir, sidecar_path, write_sidecar
from fidec.data.columns import user_path
from fidec.data.dataset import OfflineDataset
from fidec.data.memory import naming_memory
from fidec.errors import ConfigError, DataError
from fidec.register import Register
from fidec.store import files, lock
from fidec.store.remote import Facts, Store, Unreachable, as_url, check_url


class Load(Protocol):
    """Load and check the data that `what` names. Nothing is downloaded.

    `cache_dir` is the directory for data files (None means the default, `fidec.data.data_dir()`). `action_low` and
    `action_high` are the user's action bounds; a source whose data has its own bounds calls `reject_bounds`.
    """

    def __call__(
        self, what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None
    ) -> OfflineDataset: ...


def absolute_if_exists(what: str) -> str:
    """The absolute path if `what` is the path of a file or a directory; other texts do not change."""
    path = os.path.expanduser(what)
    return os.path.abspath(path) if os.path.exists(path) else what


def unchanged(what: str) -> str:
    """For `DataSource.absolute` of a source that finds its data by an id, also beside a file of the same name."""
    return what


@dataclass(frozen=True)
class DataSource:
    """One scheme. Only `load` does work; the other functions have defaults that suit most sources."""

    summary: str  # what the source reads, in a few words
    example: str  # a complete source text, such as npz:runs/mine.npz
    load: Load
    claims: Callable[[str], bool] = lambda text: False  # whether a text without a scheme belongs to this source
    absolute: Callable[[str], str] = absolute_if_exists  # `what` in a form that does not depend on the directory
    # Raises a DataError that says how to get the data if it is missing. None: only loading can tell.
    check_present: Callable[[str, CacheDir], object] | None = None
    # What a URL in the place of a path names: "file", or folders of a directory. None: the source has no URLs.
    at_url: Literal["file"] | tuple[str, ...] | None = None


# Formats that cannot be read, and what to do.
REFUSED = dict.fromkeys(
    ("rlds", "tfds"),
    "its records need TensorFlow, which fidec does not use. Where TensorFlow is installed, read the episodes with "
    "tensorflow_datasets and save their steps with np.savez (observations, actions, rewards, terminals, episodes) as "
    "npz:FILE, or convert them to a LeRobotDataset and use lerobot:DIR.",
) | {
    "mcap": "a recording needs a mapping file. `fidec data map FILE.mcap` proposes one; then use table:columns.toml."
}

SOURCES = Register("data source", "fidec.data.sources", "SOURCE", DataSource, "fidec.sources")


def find_source(text: str) -> tuple[str, DataSource, str]:
    """Scheme, source and rest of `SCHEME:WHAT`. Text without a scheme belongs to the first source that claims it."""
    scheme, colon, what = text.partition(":")
    if colon and as_url(text) is None:
        if scheme in REFUSED:
            raise ConfigError(f"{text}: {scheme} data is not read: {REFUSED[scheme]}")
        source = SOURCES.get(scheme)
        if not what:
            raise ConfigError(f"{text!r} names no data set; expected {source.summary}, such as {source.example}")
        return scheme, source, what
    sources = list(SOURCES.entries())
    for scheme, source in sources:
        if source.claims(text):
            return scheme, source, text
    if (url := as_url(text)) is not None:
        check_url(url)
        raise ConfigError(f"{url}: which kind of data is it? Name that first, such as npz:{url} or lerobot:{url}.")
    known = "; ".join(f"{source.example} ({source.summary})" for _, source in sources)
    if os.path.exists(text):
        kind = "directory" if os.path.isdir(text) else "file of an unknown kind"
        raise ConfigError(
            f"{text!r} is a {kind}; expected a data file (.npz, .hdf5, .h5) or SCHEME:WHAT, such as {known}"
        )
    raise ConfigError(f"{text!r} is not a data source. Expected SCHEME:WHAT, such as {known}")


def load_dataset(
    source: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None
) -> OfflineDataset:
    """Load and check a data set. `source` is `SCHEME:WHAT`, a task id of OGBench or D4RL, or the path of a data file.

    `cache_dir` is the directory with the files of OGBench and D4RL. `action_low` and `action_high` are for data whose
    actions are not in [-1, 1] and that does not store its bounds. Nothing is downloaded, except for data that
    the source names by its URL, such as npz:s3://bucket/mine.npz.
    """
    scheme, entry, what = find_source(source)
    path = _local(scheme, entry, what, cache_dir)
    with naming_memory(source):
        dataset = entry.load(path, cache_dir=cache_dir, action_low=action_low, action_high=action_high)
    if not isinstance(dataset, OfflineDataset):
        raise ConfigError(
            f"the data source '{scheme}:' returned {type(dataset).__name__} instead of an OfflineDataset. "
            "Repair or uninstall the package that adds it."
        )
    return dataset if path == what else replace(dataset, source=f"{scheme}:{what}")


def _local(scheme: str, entry: DataSource, what: str, cache_dir: CacheDir) -> str:
    """`what` or, if it is a URL, the path of its copy in the cache. A part after #, or options after ?, stay."""
    place, mark, part = what.partition("?" if isinstance(entry.at_url, tuple) else "#")
    url = as_url(place)
    if url is None:
        return what
    if entry.at_url is None:
        raise ConfigError(f"'{scheme}:' data is not read from a URL: copy {url} to this machine and name its path.")
    copy = fetch_file(url, cache_dir) if entry.at_url == "file" else fetch_folders(url, entry.at_url, cache_dir)
    return f"{copy}{mark}{part}"


def absolute_source(source: str) -> str:
    """A source text that means the same in every directory, so that a run can be resumed from another one."""
    scheme, entry, what = find_source(source)
    return f"{scheme}:{what if as_url(what) is not None else entry.absolute(what)}"


def source_from(directory: Path, source: str) -> str:
    """`absolute_source` of a source in a file of this directory, where its relative paths start."""
    with contextlib.chdir(directory):
        return absolute_source(source)


def absolute_path(path: str) -> str:
    """For `DataSource.absolute` of a source whose data is always a file, which may not exist yet."""
    return str(user_path(path).absolute())


def reject_bounds(scheme: str, action_low: Any, action_high: Any) -> None:
    """For `DataSource.load` of a source whose data has its own action bounds."""
    if action_low is not None or action_high is not None:
        raise ConfigError(f"'{scheme}:' data has its own action bounds: leave out action_low and action_high.")


def fetch_file(url: str, cache_dir: CacheDir = None) -> Path:
    """The copy of one object, fetched if there is none of its present version."""
    target = _remote_folder(url, cache_dir) / url.rpartition("/")[2]
    store = Store(url)
    with _locked(target):
        return _fetch(store, "", target)


def fetch_folders(url: str, folders: tuple[str, ...], cache_dir: CacheDir = None) -> Path:
    """The copy of these folders of a directory, file by file."""
    store, root = Store(url), _remote_folder(url, cache_dir) / url.rpartition("/")[2]
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


def _remote_folder(url: str, cache_dir: CacheDir) -> Path:
    return data_dir(cache_dir) / "remote" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _locked(target: Path) -> AbstractContextManager[None]:
    waiting = f"another process fetches {target.name}; waiting for it"
    return lock.wait_for(target.parent / f".{target.name}.lock", lambda: _tell(waiting))


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
        _tell(f"{error}. The copy that was fetched before is used: {target}")
        return _verified(target, record, url)
    if record and (record.get("bytes"), record.get("version")) == tuple(facts):
        return _verified(target, record, url)
    if record:
        _tell(f"{url} has changed since it was fetched: it is fetched again")
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


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
