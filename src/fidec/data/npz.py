"""Read and write NumPy archives. The reader unpickles nothing and rejects sizes that the file cannot hold.

Large arrays stay on the disk: inside the archive if they are stored, in a kept copy (`cache.kept_copy`) if they are
compressed.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from fidec.console import Progress
from fidec.data.cache import kept_copy
from fidec.data.columns import MAX_RATIO, check_row_counts, existing_file, fail
from fidec.data.disk_array import FileRows, worth_mapping
from fidec.data.memory import parsing
from fidec.errors import DataError

Header = tuple[tuple[int, ...], np.dtype]
_BLOCK = 2**22  # bytes that are unpacked at a time


def npz_headers(path: str | Path) -> dict[str, Header]:
    """Shape and dtype of every array, without reading the arrays. Raises DataError for a broken file."""
    file = existing_file(path)
    with _open_zip(file) as archive:
        return {_key(member): _header(file, archive, member) for member in _members(file, archive)}


def read_npz(
    path: str | Path,
    keys: tuple[str, ...] | Callable[[str], bool] | None = None,
    mapped: Collection[str] | None = None,
) -> dict[str, np.ndarray]:
    """The arrays of an archive, all or those of these keys. Nothing is unpickled.

    The arrays `mapped` stay on the disk; by default those are large arrays of images.
    """
    chosen = keys if callable(keys) else lambda key: keys is None or key in keys
    file = existing_file(path)
    arrays = {}
    with _open_zip(file) as archive:
        members = {_key(m): m for m in _members(file, archive) if chosen(_key(m))}
        headers = {key: _header(file, archive, member) for key, member in members.items()}
        check_row_counts(str(file), {key: shape for key, (shape, _) in headers.items()})
        for key, member in members.items():
            shape, dtype = headers[key]
            with _parsing(file, key, " cannot be read ({}); the file is damaged."):
                stays = len(shape) > 2 and worth_mapping(shape, dtype) if mapped is None else key in mapped
                if stays and (array := map_member(file, archive, member)) is not None:
                    arrays[key] = cast(np.ndarray, array)
                    continue
                with archive.open(member) as stream:
                    arrays[key] = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # the end of the member, where zipfile verifies its CRC
    return arrays


def _parsing(file: Path, key: str, words: str) -> AbstractContextManager[None]:
    return parsing(file, lambda text: fail(str(file), key, words.format(text)))


def write_npz(file: IO[bytes], members: Mapping[str, tuple[Header, Iterable[np.ndarray]]]) -> None:
    """Write what `np.savez` writes, byte for byte, from arrays in parts: {key: ((shape, dtype), parts)}.

    It is not compressed, so that a reader can map the arrays. Python objects, which would be pickled, are an error.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, ((shape, dtype), parts) in members.items():
            if dtype.hasobject:
                raise TypeError(f"{key} holds Python objects (dtype {dtype})")
            with archive.open(f"{key}.npy", "w", force_zip64=True) as stream:
                header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(stream, header)
                for part in parts:
                    stream.write(np.ascontiguousarray(part).data)


def _open_zip(file: Path) -> zipfile.ZipFile:
    def damaged(text: str) -> DataError:
        return DataError(
            f"{file}: not a readable .npz archive ({text}). If it is incomplete, make or download it again. "
            "Pickled files (.pkl, .npy with objects) are never opened."
        )

    with parsing(file, damaged):
        return zipfile.ZipFile(file)


def _members(file: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = [m for m in archive.infolist() if not m.is_dir()]
    if not members:
        raise DataError(f"{file}: the archive is empty.")
    if len({m.filename for m in members}) != len(members):
        raise DataError(f"{file}: two arrays have the same name; the archive is damaged.")
    packed = sum(m.compress_size for m in members)
    if packed > file.stat().st_size:
        raise DataError(f"{file}: the archive claims {packed} packed bytes, more than the file has; not read.")
    return members


def _key(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _header(file: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    """Read one array's header and check that its size is what the archive can hold."""
    where, key = str(file), _key(member)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise fail(where, key, " is packed by a method that NumPy does not write; save it with np.savez again.")
    with _parsing(file, key, " is not a NumPy array, or is damaged ({})."), archive.open(member) as stream:
        shape, _, dtype = _npy_header(stream)
        start = stream.tell()
    if dtype.hasobject:
        raise fail(
            where,
            key,
            " holds Python objects, which would have to be unpickled and are not read. Save arrays of numbers.",
        )
    needed = math.prod(shape) * dtype.itemsize
    if needed + start != member.file_size:
        raise fail(
            where,
            key,
            f" claims shape {shape} of {dtype} ({needed} bytes) but the archive holds {member.file_size - start}; "
            "the file is damaged.",
        )
    if member.file_size > MAX_RATIO * member.compress_size + 1024:
        raise fail(
            where,
            key,
            f" claims {member.file_size} bytes out of {member.compress_size} packed ones, which is impossible.",
        )
    return shape, dtype


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


def _copy(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str, *, write: Callable[[bytes], Any] | None = None
) -> None:
    """Read a member to its end, where zipfile compares its CRC-32; `write` gets the bytes."""
    bar = Progress(member.file_size, name=what, unit="MB", enabled=member.file_size > 2**30)
    with archive.open(member) as stream, bar:
        while block := stream.read(_BLOCK):
            if write is not None:
                write(block)
            bar.advance(len(block))
