"""`hf:OWNER/NAME`: a LeRobot data set of the Hugging Face hub that `fidec data get hf:OWNER/NAME` has downloaded."""

from __future__ import annotations

from typing import Any

from fidec.data.cameras import split_cameras
from fidec.data.dataset import OfflineDataset
from fidec.data.hub import hub_folder, split_id, verify_hub
from fidec.data.source import CacheDir, DataSource, unchanged
from fidec.data.sources.lerobot import load_folder


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
