"""`hdf5:PATH`: a file in D4RL's layout (observations, actions, rewards, terminals, timeouts, next_observations).

D4RL's `terminals` are task ends (mask 0), its `timeouts` are cuts. Without stored `next_observations` the transition
at a timeout is dropped, as D4RL's own `qlearning_dataset` does, because its next row belongs to another episode.

All sources read HDF5 with `open_hdf5` and `read_array`. A file may be damaged or hostile. It may refer to other files
of this machine (external links, external storage, virtual data sets) and may declare any size. Both are errors before
anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5g, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue] - compiled modules without stubs

from fidec.data.arrays import FILE_KEYS, dataset_from_file
from fidec.data.columns import KEYS as OBSERVATIONS
from fidec.data.columns import MAX_RATIO, check_row_counts, existing_file, fail, flag_vector, require_keys
from fidec.data.dataset import OfflineDataset
from fidec.data.memory import parsing
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.errors import DataError

# deflate, shuffle, fletcher32, lzf: built into h5py. Any other filter would load a plug-in library.
_FILTERS = {1, 2, 3, 32000}
# Never-written data reads as zeros and takes no storage; allow as much as a long column of flags.
UNWRITTEN = 64 * 2**20
_MAX_DEPTH = 16  # groups in groups


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """Open for reading, with a check of all links; what HDF5 raises on a broken file becomes a DataError."""
    file = existing_file(path)

    def damaged(text: str) -> DataError:
        return DataError(f"{file}: not a readable HDF5 file ({text}); it is damaged or of another kind.")

    with parsing(file, damaged), h5py.File(file, "r") as handle:
        _check_tree(handle["/"].id, str(file))
        yield handle


def place(item: h5py.Group | h5py.Dataset) -> str:
    """The path inside the file, without the leading slash."""
    return str(item.name).strip("/")


def _check_tree(group: Any, where: str, path: str = "", seen: set[int] | None = None) -> None:
    """Reject a file with links, with an object that has two names, or with very deep groups, even if it is not read.

    A soft or external link may lead out of the file. With hard links a small file can have cycles, or groups that
    stand for as many members as memory can hold. Here `group` is h5py's low-level object: the others follow links.
    """
    seen = {h5o.get_info(group).addr} if seen is None else seen
    if path.count("/") > _MAX_DEPTH:
        raise fail(where, path, f" lies more than {_MAX_DEPTH} groups deep; not read.")
    for raw in group:
        name = f"{path}{raw.decode(errors='replace')}"
        kind = group.links.get_info(raw).type
        if kind != h5l.TYPE_HARD:
            kinds = {h5l.TYPE_EXTERNAL: "an external link (to another file)", h5l.TYPE_SOFT: "a soft link"}
            words = kinds.get(kind, "a link of an unknown kind")
            raise fail(where, name, f" is {words}, which is not read. Copy the data into the file itself.")
        info = h5o.get_info(group, raw)
        if info.addr in seen:
            raise fail(
                where, name, " is another name (a hard link) of an object of the file; not read. Store a copy."
            )
        seen.add(info.addr)
        if info.type == h5o.TYPE_GROUP:
            _check_tree(h5g.open(group, raw), where, f"{name}/", seen)


def read_array(group: h5py.Group, key: str, where: str) -> np.ndarray:
    """One array, after checks that its bytes are in this file and that there are as many as it declares."""
    item: Any = group[key]
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
    if declared > MAX_RATIO * stored + UNWRITTEN:
        raise fail(
            where, full, f" declares shape {item.shape} ({declared} bytes) but {stored} bytes are stored; not read."
        )
    with parsing(where, lambda text: fail(where, full, f" cannot be read ({text}); the file is damaged.")):
        return item[()]


def read_columns(file: Path, keys: tuple[str, ...], *, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of a flat file among `keys`; those in `needed` must exist."""
    where = str(file)
    with open_hdf5(file) as handle:
        require_keys(where, set(handle), needed)
        present = [key for key in keys if key in handle and key not in OBSERVATIONS]
        for key in OBSERVATIONS:
            if key in keys and key in handle:  # a group has the parts of an observation
                item: Any = handle[key]
                parts = [f"{key}/{name}" for name in item] if isinstance(item, h5py.Group) else []
                present += parts or [key]
        check_row_counts(where, {key: getattr(handle[key], "shape", None) or () for key in present})
        return {key: read_array(handle, key, where) for key in present}


def load(what: str, *, cache_dir: CacheDir = None, **bounds: object) -> OfflineDataset:
    file = existing_file(what)
    columns: dict[str, Any] = {**read_columns(file, FILE_KEYS, needed=("observations", "actions"))}
    if "terminals" in columns:
        # Rows that are both terminal and timed out are task ends in D4RL.
        rows = columns["actions"].shape[:1]
        columns["masks"] = ~flag_vector(str(file), "terminals", columns["terminals"], rows[0] if rows else 0)
    return dataset_from_file(columns, file, f"hdf5:{what}", **bounds)


SOURCE = DataSource(
    summary="an HDF5 file in D4RL's layout",
    example="hdf5:hopper_medium-v2.hdf5",
    load=load,
    claims=lambda text: text.endswith((".hdf5", ".h5")),
    absolute=absolute_path,
    check_present=lambda what, cache_dir: existing_file(what),
    at_url="file",
)
