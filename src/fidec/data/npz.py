"""Read and write NumPy archives. The reader unpickles nothing and rejects sizes that the file cannot hold."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.lib import format as npy

from fidec.data.columns import MAX_RATIO, check_row_counts, existing_file, fail
from fidec.data.mapped import worth_mapping
from fidec.data.memory import unreadable
from fidec.data.unpack import map_member
from fidec.errors import DataError

Header = tuple[tuple[int, ...], np.dtype]


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
            try:
                stays = len(shape) > 2 and worth_mapping(shape, dtype) if mapped is None else key in mapped
                if stays and (array := map_member(file, archive, member)) is not None:
                    arrays[key] = cast(np.ndarray, array)
                    continue
                with archive.open(member) as stream:
                    arrays[key] = npy.read_array(stream, allow_pickle=False)
                    stream.read(1)  # the end of the member, where zipfile verifies its CRC
            except DataError:
                raise
            except Exception as error:  # any error of a parser on hostile bytes
                damaged = fail(str(file), key, f" cannot be read ({_short(error)}); the file is damaged.")
                raise unreadable(file, error, damaged) from error
    return arrays


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
    try:
        return zipfile.ZipFile(file)
    except Exception as error:
        damaged = DataError(
            f"{file}: not a readable .npz archive ({_short(error)}). If it is incomplete, make or download it again. "
            "Pickled files (.pkl, .npy with objects) are never opened."
        )
        raise unreadable(file, error, damaged) from error


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
    try:
        with archive.open(member) as stream:
            version = npy.read_magic(stream)
            if version == (1, 0):
                shape, _, dtype = npy.read_array_header_1_0(stream)
            else:
                shape, _, dtype = npy.read_array_header_2_0(stream)
            start = stream.tell()
    except Exception as error:
        damaged = fail(where, key, f" is not a NumPy array, or is damaged ({_short(error)}).")
        raise unreadable(file, error, damaged) from error
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


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
