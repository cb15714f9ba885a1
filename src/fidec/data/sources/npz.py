"""`npz:PATH`: a NumPy archive whose keys are the arguments of `dataset_from_arrays`.

A part of an observation has the key `observations/NAME`.
"""

from __future__ import annotations

from fidec.data.arrays import FILE_KEYS, dataset_from_file
from fidec.data.columns import existing_file, require_keys
from fidec.data.dataset import OfflineDataset
from fidec.data.npz import npz_headers, read_npz
from fidec.data.observations import is_column
from fidec.data.source import CacheDir, DataSource, absolute_path

KEYS = (*FILE_KEYS, "masks", "truncations")


def load(what: str, *, cache_dir: CacheDir = None, **bounds: object) -> OfflineDataset:
    """`timeouts` is another name for `truncations`."""
    file = existing_file(what)
    headers = npz_headers(file)
    # A file of OGBench has no rewards of its own: the error says how to load it.
    parts = any(is_column(key, ("observations",)) for key in headers)
    needed = (*([] if parts else ["observations"]), "actions", *(["rewards"] if "qpos" in headers else []))
    require_keys(str(file), headers, needed)
    columns = read_npz(file, lambda key: is_column(key, KEYS))
    return dataset_from_file(dict(columns), file, f"npz:{what}", **bounds)


SOURCE = DataSource(
    summary="a NumPy archive",
    example="npz:runs/mine.npz",
    load=load,
    claims=lambda text: text.endswith(".npz"),
    absolute=absolute_path,
    check_present=lambda what, cache_dir: existing_file(what),
)
