"""`table:columns.toml`: CSV, Parquet or MCAP files, with a mapping file that says which columns are what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fidec.data.columns import existing_file
from fidec.data.dataset import OfflineDataset
from fidec.data.mapping import files_of, load_mapped, read_mapping
from fidec.data.recordings import SUFFIX
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.data.tables import SUFFIXES
from fidec.errors import DataError

KINDS = (*SUFFIXES, SUFFIX)


def mapping_file(what: str) -> Path:
    """The path of a mapping file; an error says how to get one for a table."""
    file = existing_file(what)
    if file.suffix.lower() in KINDS:
        raise DataError(
            f"{file}: a table or a recording does not say which columns are observation, action and reward. "
            f"`fidec data map {file}` proposes a mapping file: check it, then name that file, table:columns.toml."
        )
    return file


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    return load_mapped(mapping_file(what), f"table:{what}", action_low, action_high)


def _check_present(what: str, cache_dir: CacheDir) -> None:
    file = mapping_file(what)
    files_of(file, read_mapping(file))


SOURCE = DataSource(
    summary="CSV, Parquet or MCAP files with a mapping file",
    example="table:columns.toml",
    load=load,
    claims=lambda text: text.endswith(KINDS),
    absolute=absolute_path,
    check_present=_check_present,
)
