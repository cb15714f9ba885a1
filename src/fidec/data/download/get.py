"""`fidec data get`: from a list of addresses to a checked file under its name, or a message that helps."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from fidec.console.progress import Progress
from fidec.data.cache import (
    data_dir,
    make_command,
    maker_record_path,
    read_sidecar,
    sidecar_path,
    verify,
    write_sidecar,
)
from fidec.data.columns import require_keys
from fidec.data.download.mirrors import Wanted, wanted
from fidec.data.download.part import Part
from fidec.data.download.transfer import Patience, Refused, fetch
from fidec.data.hdf5 import open_hdf5, refuse_links
from fidec.data.npz import npz_headers
from fidec.errors import DataError
from fidec.store import lock
from fidec.store.files import fsync_directory, sha256_file


def download(
    some_id: str,
    cache_dir: str | Path | None = None,
    *,
    url: str | None = None,
    val: bool = True,
    patience: Patience | None = None,
) -> tuple[Path, ...]:
    """Fetch the official files of a task id or a data set's name, and return their paths, training data first.

    For OGBench that is `NAME.npz` and (with `val`) `NAME-val.npz`, for D4RL `ID.hdf5`. Where no checksum is
    known, the SHA-256 of the first download is recorded beside the file and checked from then on. A file that
    is there already is not fetched again, whoever put it there. `url` takes the place of the known hosts.
    """
    folder = data_dir(cache_dir)
    files = wanted(some_id, url=url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create the cache directory {folder}: {error}. Set FIDEC_DATA_DIR.") from error
    _refuse_mixture(folder, files, val)
    return tuple(_get(file, folder, patience or Patience()) for file in files[: None if val else 1])


def _refuse_mixture(folder: Path, files: tuple[Wanted, ...], val: bool) -> None:
    """Training data made here and official validation data (or the reverse) do not belong together."""
    there = [file.name for file in files if (folder / file.name).is_file()]
    missing = [file.name for file in files[: None if val else 1] if file.name not in there]
    made = [name for name in there if read_sidecar(folder / name).get("origin") == "made"]
    if missing and made:
        raise DataError(
            f"{folder / made[0]} was made on this machine, and {missing[0]} would be the official file: the two do "
            f"not belong together. Move {made[0]} away, choose another directory (--data-dir), or ask for the "
            "training data alone (--no-val)."
        )


def _get(file: Wanted, folder: Path, patience: Patience) -> Path:
    with Progress(None, name=file.name, unit="MB") as progress:
        return _get_with(progress, file, folder, patience)


def _get_with(progress: Progress, file: Wanted, folder: Path, patience: Patience) -> Path:
    target = folder / file.name
    if target.is_file():  # files get their name only when they are whole: no lock needed
        return _kept(target, file, progress)
    waiting = f"another process is fetching {file.name}; waiting for it"
    with lock.wait_for(folder / f".{file.name}.lock", lambda: progress.message(waiting)):
        if target.is_file():  # another process was quicker
            return _kept(target, file, progress)
        tried = []
        for url in file.urls:
            part = Part(folder, file.name, url)
            progress.message(f"fetching {url}" + (f", from byte {part.size()} on" if part.size() else ""))
            try:
                sha256 = _fetch_checked(url, part, file, progress, patience)
            except Refused as error:
                progress.message(f"{file.name}: {error}")
                tried.append(f"  {url}\n    {error}")
                if not part.size():
                    part.clear()
                continue
            except KeyboardInterrupt:
                kept = f"the {part.size()} bytes that came are kept"
                progress.message(f"stopped; {kept}: the same command goes on from there")
                raise
            _put(part, target, url, sha256)
            return target
    raise DataError(_failure(file, target, tried))


def _fetch_checked(url: str, part: Part, file: Wanted, progress: Progress, patience: Patience) -> str | None:
    """Fetch and check; a resumed part that fails the check may be to blame itself, so it gets one fresh start."""
    for last in (False, True):
        fetched = fetch(url, part, progress, patience)
        expected = file.sha256 or fetched.sha256
        try:
            _check(part.path, file.name, expected)
            return expected
        except DataError as error:
            part.clear()
            if last or not fetched.resumed:
                raise Refused(str(error).replace(str(part.path), "what came")) from error
            progress.message(f"{file.name}: the resumed file is not sound; starting anew")
    raise AssertionError  # the second round returns or raises


def _check(path: Path, name: str, sha256: str | None) -> None:
    """Refuse anything that is not the data file it should be."""
    if sha256 is not None and (found := sha256_file(path)) != sha256:
        raise DataError(f"{path}: its SHA-256 is {found[:16]}... instead of {sha256[:16]}...; removed.")
    if name.endswith(".hdf5"):
        with open_hdf5(path) as handle:
            refuse_links(handle, str(path))
            require_keys(str(path), set(handle), ("observations", "actions", "rewards", "terminals"))
        return
    require_keys(str(path), npz_headers(path), ("observations", "actions", "terminals"))
    if sha256 is None:  # then at least the archive's own checksums, since ours will stand for good
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
        except Exception as error:
            raise DataError(f"{path}: cannot be unpacked ({error}).") from error
        if damaged:
            raise DataError(f"{path}: {damaged} is damaged.")


def _put(part: Part, target: Path, url: str, sha256: str | None) -> None:
    """Give the file its name, after its record: it is never there without one."""
    write_sidecar(part.path, origin="downloaded", url=url, checksum="known" if sha256 else "first use")
    maker_record_path(target).unlink(missing_ok=True)  # of a file that is gone
    os.replace(part.facts_path, sidecar_path(target))
    os.replace(part.path, target)
    fsync_directory(target.parent)
    for leftover in target.parent.glob(f".{target.name}.*.part*"):  # of other addresses
        leftover.unlink(missing_ok=True)


def _kept(target: Path, file: Wanted, progress: Progress) -> Path:
    """A file that is there already: record it if nobody did, then hold it to its record."""
    record = read_sidecar(target)
    if not record:
        _check(target, file.name, None)
        official = file.sha256 is not None and sha256_file(target) == file.sha256
        record = write_sidecar(target, origin="downloaded" if official else "unknown")
    verify(target)
    progress.message(f"{target} is there already (origin: {record.get('origin', 'unknown')}); not fetched again")
    return target


def _failure(file: Wanted, target: Path, tried: list[str]) -> str:
    lines = [f"{file.name} could not be fetched. Tried:", *tried, "What you can do:"]
    lines.append(
        "  - try again later: what came is kept. Behind a proxy, set HTTPS_PROXY; a mirror of your own: --url."
    )
    if (make := make_command(target.stem.removesuffix("-val"))) is not None:
        lines.append(f"  - make such data on this machine: `{make}`")
    lines.append(f"  - fetch it by hand from an address above and save it as {target}")
    return "\n".join(lines)
