"""OGBench's official files, downloaded only when the user asks, and hashed."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from fidec.data.cache import data_dir, maker_record_path, read_sidecar, verify, write_sidecar
from fidec.data.npz import npz_headers, require_keys
from fidec.data.ogbench import dataset_name
from fidec.errors import DataError
from fidec.quiet import quiet


def download(some_id: str, cache_dir: str | Path | None = None, *, base_url: str | None = None) -> Path:
    """Fetch `<data set>.npz` for a task id or a data set's name, and return its path.

    OGBench publishes no checksums, so the SHA-256 of the first download is recorded beside the file and
    checked from then on. A file that is there already is not fetched again, whoever put it there.
    """
    dataset = dataset_name(some_id)
    folder = data_dir(cache_dir)
    target = folder / f"{dataset}.npz"
    if target.is_file():
        if not read_sidecar(target):
            npz_headers(target)
            write_sidecar(target, origin="unknown")
        verify(target)
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create the cache directory {folder}: {error}. Set FIDEC_DATA_DIR.") from error
    url = f"{base_url or _official_url()}/{dataset}.npz"
    partial = folder / f".{dataset}.{os.getpid()}.part"
    try:
        _fetch(url, partial)
        require_keys(f"{url}: the answer", npz_headers(partial), ("observations", "actions", "terminals"))
        os.replace(partial, target)
        maker_record_path(target).unlink(missing_ok=True)  # of a file that is gone
    finally:
        partial.unlink(missing_ok=True)
    write_sidecar(target, origin="downloaded", url=url)
    return target


def _official_url() -> str:
    with quiet():
        from ogbench.utils import DATASET_URL
    return DATASET_URL


def _fetch(url: str, target: Path) -> None:
    import pooch

    retrieve: Any = pooch.retrieve  # its own downloader does not fit its declared protocol

    logger, bar = pooch.get_logger(), _progress(target.name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    print(f"downloading {url}", file=sys.stderr)
    try:
        retrieve(
            url,
            known_hash=None,
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar or False, timeout=60, chunk_size=2**16),
        )
    except Exception as error:  # requests, urllib3, OSError: all mean that there is no file
        text = " ".join(str(error).split())[:300]
        raise DataError(
            f"download of {url} failed: {text}. Check the network and the free disk space, or put the "
            "file into "
            f"{target.parent} yourself."
        ) from error
    finally:
        logger.setLevel(level)
        if bar is not None:
            bar.close()


def _progress(name: str) -> Any:
    """A bar in pooch's protocol (total, update, reset, close) on a terminal, else nothing."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    class Bar:
        def __init__(self) -> None:
            self.total = 0
            self._bar = Progress(
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(name)
            self._bar.start()

        def update(self, count: int) -> None:
            self._bar.update(self._task, advance=count, total=self.total)

        def reset(self) -> None:
            self._bar.reset(self._task)

        def close(self) -> None:
            self._bar.stop()

    return Bar()
