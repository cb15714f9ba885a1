"""`hf:OWNER/NAME`: a LeRobot data set of the Hugging Face hub that `fidec data get hf:OWNER/NAME` has downloaded.

DATA_DIR/hf/OWNER/NAME holds one revision of a data set. Its manifest has the id, the commit and the SHA-256 of every
file, which are checked at every load.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from fidec.console import Progress
from fidec.data.cache import data_dir
from fidec.data.cameras import split_cameras
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, unchanged
from fidec.data.sources.lerobot import load_folder
from fidec.errors import CheckpointError, ConfigError, DataError
from fidec.extras import require
from fidec.store import lock
from fidec.store.files import fsync_directory, verify_manifest, write_manifest

_ID = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_PARTS = ("meta/*", "data/*", "videos/*")


def split_id(text: str) -> tuple[str, str | None]:
    """OWNER/NAME and the revision after @, if there is one."""
    match = _ID.fullmatch(text)
    if match is None or ".." in text:
        raise ConfigError(f"hf:{text} is not an id of the hub; expected hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return f"{match[1]}/{match[2]}", match[3]


def hub_folder(text: str, cache_dir: str | Path | None = None) -> Path:
    """The directory of a downloaded data set; a DataError says how to get it."""
    name, _ = split_id(text)
    folder = data_dir(cache_dir) / "hf" / name
    if not folder.is_dir():
        raise DataError(
            f"{folder} does not exist: hf:{text} is not downloaded. Get it with `fidec data get hf:{text}`."
        )
    return folder


def verify_hub(text: str, cache_dir: str | Path | None = None) -> tuple[Path, dict[str, Any]]:
    """The directory and the record of a data set whose files are as they were downloaded."""
    folder, (name, revision) = hub_folder(text, cache_dir), split_id(text)
    try:
        record = verify_manifest(folder)
    except CheckpointError as error:
        raise DataError(f"hf:{name}: {error}. Delete {folder}, and get it again.") from error
    commit = str(record.get("revision"))
    if revision not in (None, record.get("requested")) and not commit.startswith(str(revision)):
        raise DataError(
            f"hf:{text}: the downloaded revision is {commit}. Delete {folder} and get the other one, or use another "
            "--data-dir."
        )
    return folder, record


def download_hub(text: str, cache_dir: str | Path | None = None, *, videos: bool = True) -> Path:
    """Download a data set of the hub, at the commit that the revision (by default main) has now.

    After an interruption the same call continues. HF_ENDPOINT is another address of the hub.
    """
    name, revision = split_id(text)
    final = data_dir(cache_dir) / "hf" / name
    hub = require("huggingface_hub", "hub", f"the download of hf:{name}")
    with Progress(None, name=name) as progress:
        waiting = f"another process is downloading hf:{name}; waiting for it"
        with lock.wait_for(final.with_name(f".{final.name}.lock"), lambda: progress.message(waiting)):
            if final.is_dir():
                _, record = verify_hub(text, cache_dir)
                progress.message(f"{final} exists already (revision {record.get('revision')}); not downloaded again")
                return final
            _download(hub, name, revision, final, videos, progress)
    return final


def _download(hub: Any, name: str, revision: str | None, final: Path, videos: bool, progress: Progress) -> None:
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    try:
        found = hub.HfApi(endpoint=endpoint).repo_info(name, repo_type="dataset", revision=revision or "main")
        commit = str(found.sha)
        if not re.fullmatch(r"[0-9a-f]{6,64}", commit):
            raise DataError(f"{endpoint} gave {commit!r} as the commit of {name}; expected a hash.")
        part = final.with_name(f".part-{final.name}-{commit[:12]}")
        progress.message(f"downloading {name} from {endpoint}, commit {commit}")
        hub.snapshot_download(
            name,
            repo_type="dataset",
            revision=commit,
            local_dir=part,
            allow_patterns=list(_PARTS if videos else _PARTS[:2]),
            endpoint=endpoint,
        )
    except DataError:
        raise
    except Exception as error:
        raise DataError(_words(hub, error, name, revision, endpoint)) from error
    if not (part / "meta" / "info.json").is_file():
        shutil.rmtree(part, ignore_errors=True)
        raise DataError(
            f"{name} has no meta/info.json: it is not a LeRobotDataset. Only these are read from the hub."
        )
    shutil.rmtree(part / ".cache", ignore_errors=True)  # of the download
    record = {"origin": "downloaded", "id": name, "revision": commit, "requested": revision or "main"}
    write_manifest(part, record | {"endpoint": endpoint, "videos": videos})
    part.rename(final)
    fsync_directory(final.parent)


def _words(hub: Any, error: Exception, name: str, revision: str | None, endpoint: str) -> str:
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated: its owner has to give you access. Ask for it at {endpoint}/datasets/{name}, then "
            "`hf auth login`, or set HF_TOKEN."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision!r}. Look at {endpoint}/datasets/{name}/commits/main."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no data set {name} on {endpoint}, or it is private. Check the id; for a private one log in."
    text = " ".join(str(error).split())[:200]
    return (
        f"{name} could not be downloaded from {endpoint} ({type(error).__name__}: {text}). Check the network; behind "
        "a proxy set HTTPS_PROXY; HF_ENDPOINT is for another address. What was received is kept: the same command "
        "continues."
    )


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    text, cameras = split_cameras(what)
    root, record = verify_hub(text, cache_dir)
    name, facts = split_id(text)[0], {"revision": record.get("revision"), "endpoint": record.get("endpoint")}
    return load_folder(root, cameras, name, f"hf:{what}", action_low, action_high, facts)


SOURCE = DataSource(
    summary="a downloaded LeRobot data set of the hub",
    example="hf:lerobot/pusht",
    load=load,
    absolute=unchanged,
    check_present=lambda what, cache_dir: hub_folder(split_cameras(what)[0], cache_dir),
)
