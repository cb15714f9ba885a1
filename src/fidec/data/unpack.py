"""Map large arrays of a NumPy archive: inside the archive if they are stored, from a copy if they are compressed.

A compressed array is unpacked once, into a `.npy` file in the directory `.fidec-unpacked` beside the archive, or in
the user's cache if that disk is read-only or full. Only fidec writes there, so no file of the user is overwritten. A
JSON file records its SHA-256 and the checksum of its member of the archive.
"""

from __future__ import annotations

import errno
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import platformdirs
from numpy.lib import format as npy

from fidec.console import Progress
from fidec.data.cache import read_sidecar, write_sidecar
from fidec.data.mapped import FileRows
from fidec.errors import DataError, RunError
from fidec.store import lock
from fidec.store.files import sha256_file, write_whole

FOLDER = ".fidec-unpacked"
_STALE_SECONDS = 3600  # a file that is being written changes more often than this
_BLOCK = 2**22


def map_member(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> FileRows | None:
    """A checked member of an archive as an array that stays on the disk; None if its layout does not allow it."""
    with archive.open(member) as stream:
        shape, fortran, dtype = _npy_header(stream)
        header = stream.tell()
    if fortran:
        return None
    if member.compress_type == zipfile.ZIP_STORED:
        _copy(archive, member, f"checking {file.name}")
        path, offset = file, _data_offset(file, member) + header
    else:
        path, offset = _unpacked(file, archive, member), header
    return FileRows(open(path, "rb", buffering=0), dtype, offset, shape)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(stream)
    return npy.read_array_header_1_0(stream) if version == (1, 0) else npy.read_array_header_2_0(stream)


def _data_offset(file: Path, member: zipfile.ZipInfo) -> int:
    """Where a stored member's bytes begin: its local header may be longer than the archive's directory says."""
    with open(file, "rb") as stream:
        stream.seek(member.header_offset)
        name, extra = struct.unpack("<26xHH", stream.read(30))
    return member.header_offset + 30 + name + extra


def _unpacked(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Path:
    """The copy of a compressed member."""
    origin = {"origin": "unpacked", "archive": file.name, "crc32": member.CRC, "unpacked_bytes": member.file_size}
    name, what = f"{file.name}.{member.filename}", f"unpacking {file.name}"

    def write(out: IO[bytes]) -> None:
        _copy(archive, member, what, write=out.write)

    return kept_copy(file, file.parent, name, origin, member.file_size, write)


def kept_copy(
    file: Path, folder: Path, name: str, origin: dict[str, Any], size: int, write: Callable[[IO[bytes]], object]
) -> Path:
    """An unpacked array of `file`: an existing copy, else a new one in the first directory that can hold it.

    `origin` tells whether an existing copy was made from the same content. `write` writes `size` bytes. Processes
    that want the same copy make it once.
    """
    name = name.replace("/", ".").replace("\\", ".")  # it may be hostile
    cache = Path(platformdirs.user_cache_dir("fidec")) / "unpacked"
    paths = [parent / name for parent in (folder / FOLDER, cache)]
    for path in paths:
        if _is_intact(path, origin):
            return path
    problems = []
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with lock.wait_for(path.with_name(f".{name}.lock"), lambda: _tell_waiting(file)):
                if not _is_intact(path, origin):  # another process may have made it meanwhile
                    _make_room(path, size)
                    write_whole(path, write)
                    write_sidecar(path, **origin)
        except (OSError, RunError) as error:
            problems.append(f"{path.parent} ({getattr(error, 'strerror', None) or error})")
            with suppress(OSError):
                path.parent.rmdir()  # if it is empty
        else:
            return path
    raise DataError(
        f"{file}: {name} takes {size / 1e9:.1f} GB unpacked, and it cannot be written to "
        f"{' or '.join(problems)}. It is unpacked once, so that it need not fit into memory. Make one of these "
        "directories writable, with enough free space."
    )


def _tell_waiting(file: Path) -> None:
    with Progress(None) as progress:
        progress.message(f"another process unpacks {file.name}; waiting for it")


def _is_intact(path: Path, origin: dict[str, Any]) -> bool:
    """Whether there is an undamaged copy of the same member."""
    try:
        record = read_sidecar(path)
        same = path.is_file() and all(record.get(key) == value for key, value in origin.items())
        return same and record.get("sha256") == sha256_file(path)
    except (OSError, DataError):  # unpack it again
        return False


def _make_room(path: Path, size: int) -> None:
    """Remove the files of an older copy, and check that a new one fits."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                leftover.unlink()
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB free")
    with suppress(FileNotFoundError):
        Path(f"{path}.json").unlink()  # no record of the old file beside the new one


def _copy(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    what: str,
    *,
    write: Callable[[bytes], Any] | None = None,
) -> None:
    """Read a member to its end, where zipfile compares its CRC-32; `write` gets the bytes."""
    bar = Progress(member.file_size, name=what, unit="MB", enabled=member.file_size > 2**30)
    with archive.open(member) as stream, bar:
        while block := stream.read(_BLOCK):
            if write is not None:
                write(block)
            bar.advance(len(block))
