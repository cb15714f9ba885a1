"""`lerobot:DIR`: the numbers of a local LeRobotDataset, versions 2.0, 2.1 and 3.0. Videos and images are not read.

meta/info.json        codebase_version, features {name: {dtype, shape}}
data/**/*.parquet     one row a frame: observation.*, action, episode_index, frame_index, and maybe next.reward and
                      next.success

The observation is all vectors `observation.*`: `observation.state` first, the others in sorted order. An episode that
ends with `next.success` ends the task; all others were cut.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.data.arrays import build_dataset
from fidec.data.columns import flag_vector, user_path
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, absolute_if_exists
from fidec.data.tables import Table
from fidec.errors import DataError

VERSIONS = ("v2.0", "v2.1", "v3.0")
STATE = "observation.state"
_LIMIT = 16 * 2**20  # bytes of info.json
_IMAGES = ("video", "image")


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    root = folder(what)
    vectors, images = _features(root)
    files = sorted((root / "data").rglob("*.parquet"))
    if not files:
        raise DataError(f"{root}: has no data/**/*.parquet. Copy the whole data set, not only its meta data.")
    names = Table(files[0]).types
    optional = [name for name in ("next.reward", "next.success") if name in names]
    wanted = [*vectors, "action", "episode_index", "frame_index", *optional]
    tables = []
    with Progress(len(files), name=f"reading {root.name}", unit="file", enabled=len(files) > 20) as progress:
        for number, file in enumerate(files, 1):
            tables.append(Table(file).read(wanted))
            progress.update(number)
    whole = {name: np.concatenate([table[name] for table in tables]) for name in wanted}
    order = np.lexsort((whole["frame_index"], whole["episode_index"]))
    whole = {name: array[order] for name, array in whole.items()}
    rows, episodes = len(order), whole["episode_index"]
    ends = np.append(episodes[1:] != episodes[:-1], True)
    columns: dict[str, Any] = {
        "observations": np.concatenate([_flat(whole[name]) for name in vectors], axis=1),
        "actions": _flat(whole["action"]),
        "episodes": episodes,
        "action_low": action_low,
        "action_high": action_high,
    }
    if "next.reward" in optional:
        columns["rewards"] = whole["next.reward"]
    if "next.success" in optional:
        columns["terminals"] = flag_vector(str(root), "next.success", whole["next.success"], rows) & ends
    info = {"file": str(root.absolute()), "observation_keys": vectors}
    info |= {"left_out": images} if images else {}
    return build_dataset(columns, where=str(root), name=root.name, source=f"lerobot:{what}", info=info)


def folder(what: str) -> Path:
    """The directory of a data set."""
    root = user_path(what)
    if not (root / "meta" / "info.json").is_file():
        found = "has no meta/info.json" if root.is_dir() else "is no directory"
        raise DataError(
            f"{root} {found}; expected a local LeRobotDataset. Data of the hub has to be downloaded first: "
            "`huggingface-cli download ID --repo-type dataset --local-dir DIR`."
        )
    return root


def _features(root: Path) -> tuple[list[str], list[str]]:
    """The vectors of the observation, and the images, which are not read."""
    path = root / "meta" / "info.json"
    try:
        if path.stat().st_size > _LIMIT:
            raise DataError(f"{path}: larger than {_LIMIT} bytes; not meta data.")
        info = json.loads(path.read_text(encoding="utf-8"))
        version, features = info["codebase_version"], info["features"]
        kinds = {str(name): str(feature["dtype"]) for name, feature in features.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is not the meta data of a LeRobotDataset ({type(error).__name__}: {error})."
        ) from error
    if version not in VERSIONS:
        raise DataError(f"{path}: codebase_version is {version!r}; read are {', '.join(VERSIONS)}.")
    own = sorted((name for name in kinds if name.startswith("observation")), key=lambda name: (name != STATE, name))
    vectors = [name for name in own if kinds[name] not in (*_IMAGES, "string")]
    images = [name for name in own if kinds[name] in _IMAGES]
    if "action" not in kinds or not vectors:
        missing = "action" if "action" not in kinds else "vector observation.*"
        raise DataError(f"{path}: the data set has no {missing}; its features are {', '.join(kinds)}.")
    return vectors, images


def _flat(array: np.ndarray) -> np.ndarray:
    """(rows, n) float32. LeRobot stores vectors of one number as numbers."""
    return array.reshape(len(array), -1).astype(np.float32)


SOURCE = DataSource(
    summary="a local LeRobotDataset, without its images",
    example="lerobot:my-dataset",
    load=load,
    absolute=absolute_if_exists,
    check_present=lambda what, cache_dir: folder(what),
    at_url=("meta", "data"),
)
