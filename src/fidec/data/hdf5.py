"""Read HDF5 files that may be damaged or hostile.

An HDF5 file may refer to other files of this machine (external links, external storage, virtual data sets) and may
declare any size. Both are errors before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fidec.data.columns import MAX_RATIO, existing_file, fail, require_keys
from fidec.errors import DataError

# deflate, shuffle, fletcher32, lzf: built into h5py. Any other filter would load a plug-in library.
_FILTERS = {1, 2, 3, 32000}
# Never-written data reads as zeros and takes no storage; allow as much as a long column of flags.
_UNWRITTEN = 64 * 2**20


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """Open for reading; every error that HDF5 raises on a broken file becomes a DataError."""
    file = existing_file(path)
    try:
        with h5py.File(file, "r") as handle:
            yield handle
    except (DataError, GeneratorExit):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        raise DataError(f"{file}: not a readable HDF5 file ({text}); it is damaged or of another kind.") from error


def place(item: h5py.Group | h5py.Dataset) -> str:
    """The path inside the file, without the leading slash."""
    return str(item.name).strip("/")


def child(group: h5py.Group, key: str, where: str) -> Any:
    """A direct member of a group, which must be stored in this file."""
    link = group.get(key, getlink=True)
    full = f"{place(group)}/{key}".lstrip("/")
    if not isinstance(link, h5py.HardLink):
        kind = {h5py.ExternalLink: "an external link (to another file)", h5py.SoftLink: "a soft link"}
        raise fail(
            where,
            full,
            f" is {kind.get(type(link), 'not stored here')}, which is not read. Copy the data into the file itself.",
        )
    return group[key]


def check_links(group: h5py.Group, where: str) -> None:
    """Reject a group with a member that is a link, even if it is not read."""
    for key in map(str, group):
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            child(group, key, where)


def read_array(group: h5py.Group, key: str, where: str) -> np.ndarray:
    """One array, after checks that its bytes are in this file and that there are as many as it declares."""
    item = child(group, key, where)
    full = place(item)
    if not isinstance(item, h5py.Dataset):
        raise fail(where, full, " is a group; expected an array.")
    if item.external is not None:
        raise fail(where, full, " keeps its bytes in another file (external storage), which is not read.")
    if item.is_virtual:
        raise fail(where, full, " is a virtual data set, which may show other files and is not read.")
    if item.shape is None:
        raise fail(where, full, " is empty; expected an array of numbers.")
    if item.dtype.kind not in "biuf":
        raise fail(where, full, f" has dtype {item.dtype}; expected numbers.")
    plist = item.id.get_create_plist()
    filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    if not filters <= _FILTERS:
        raise fail(where, full, f" is packed with unknown HDF5 filters {sorted(filters - _FILTERS)}; use gzip.")
    declared = int(np.prod([int(n) for n in item.shape], dtype=object)) * item.dtype.itemsize
    stored = min(item.id.get_storage_size(), Path(where).stat().st_size)
    if declared > MAX_RATIO * stored + _UNWRITTEN:
        raise fail(
            where,
            full,
            f" declares shape {item.shape} ({declared} bytes) but {stored} bytes are stored; not read.",
        )
    try:
        return item[()]
    except Exception as error:
        text = " ".join(str(error).split())[:160]
        raise fail(where, full, f" cannot be read ({text}); the file is damaged.") from error


def read_columns(file: Path, keys: tuple[str, ...], *, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of a flat file among `keys`; those in `needed` must exist."""
    where = str(file)
    with open_hdf5(file) as handle:
        check_links(handle, where)
        require_keys(where, set(handle), needed)
        return {key: read_array(handle, key, where) for key in keys if key in handle}
