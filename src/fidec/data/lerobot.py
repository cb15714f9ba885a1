"""The layout of a LeRobotDataset, from its meta data: features, files, and where the frames of an episode are.

meta/info.json            codebase_version, fps, features {name: {dtype, shape, names}}, video_path, total_frames, ...
meta/episodes/**.parquet  v3.0: for each episode and camera the file, and the time of its first frame in that file
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.cameras import LARGEST
from fidec.data.columns import user_path
from fidec.data.tables import Table
from fidec.errors import DataError

VERSIONS = ("v2.0", "v2.1", "v3.0")
STATE = "observation.state"
VIDEO_PATHS = {
    "v2": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    "v3": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
_LIMIT = 16 * 2**20  # bytes of info.json
_FIELD = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")


@dataclass(frozen=True)
class Layout:
    """What info.json says."""

    root: Path
    version: str
    fps: float
    vectors: tuple[str, ...]
    """Vectors of the observation, `observation.state` first."""
    cameras: dict[str, tuple[int, int]]
    """Height and width by name."""
    videos: frozenset[str]
    """Cameras that are stored as videos; the others are images in the tables."""
    video_path: str
    chunks_size: int
    names: dict[str, tuple[str, ...]]
    """Names of the dimensions of vectors and actions, of those that have them."""
    total_frames: int
    total_episodes: int
    """0 if the file does not say how many there are."""

    def tables(self, folder: str) -> list[Path]:
        """The Parquet files of a folder, in the order of their names."""
        return [inside(self.root, file) for file in sorted((self.root / folder).rglob("*.parquet"))]

    def video_starts(self, camera: str, episodes: Iterable[int]) -> dict[int, tuple[Path, float]]:
        """{episode: (file, time of its first frame in the file)}."""
        wanted = list(episodes)
        if not (0 < self.fps < 1e4 and self.chunks_size > 0):
            text = f"fps is {self.fps:g} and chunks_size {self.chunks_size}; expected positive numbers."
            raise DataError(f"{self.root / 'meta/info.json'}: {text}")
        if self.version != "v3.0":
            return {
                episode: (
                    self._video(camera, episode_index=episode, episode_chunk=episode // self.chunks_size),
                    0.0,
                )
                for episode in wanted
            }
        prefix = f"videos/{camera}"
        names = ["episode_index", *(f"{prefix}/{key}" for key in ("chunk_index", "file_index", "from_timestamp"))]
        found: dict[int, tuple[Path, float]] = {}
        for file in self.tables("meta/episodes"):
            columns = Table(file).read(names)
            for episode, chunk, number, start in zip(*(columns[name].tolist() for name in names), strict=True):
                if not np.isfinite(start) or start < 0:
                    raise DataError(f"{file}: {prefix}/from_timestamp of episode {episode} is {start}")
                found[int(episode)] = self._video(camera, chunk_index=int(chunk), file_index=int(number)), start
        if missing := [episode for episode in wanted if episode not in found]:
            raise DataError(f"{self.root}: meta/episodes does not say where {camera} of episode {missing[0]} is")
        return {episode: found[episode] for episode in wanted}

    def _video(self, camera: str, **numbers: int) -> Path:
        path = self.root / fill(self.video_path, f"{self.root}: video_path", video_key=camera, **numbers)
        return inside(self.root, path)


def folder(what: str) -> Path:
    """The directory of a data set."""
    root = user_path(what)
    if not (root / "meta" / "info.json").is_file():
        found = "has no meta/info.json" if root.is_dir() else "is no directory"
        raise DataError(
            f"{root} {found}; expected a local LeRobotDataset. Data of the hub has to be downloaded first: "
            "`fidec data get hf:ID`, then --data hf:ID."
        )
    return root


def read_layout(root: Path) -> Layout:
    """The meta data of a data set, checked."""
    path = inside(root, root / "meta" / "info.json")
    try:
        if path.stat().st_size > _LIMIT:
            raise DataError(f"{path}: larger than {_LIMIT} bytes; not meta data.")
        info = json.loads(path.read_text(encoding="utf-8"))
        version, features = info["codebase_version"], info["features"]
        kinds = {str(name): str(feature["dtype"]) for name, feature in features.items()}
        own = sorted((name for name in kinds if name.startswith("observation")), key=lambda n: (n != STATE, n))
        pictures = [name for name in own if kinds[name] in ("video", "image")]
        cameras = {name: _size(path, name, features[name]) for name in pictures}
        names = {name: _names(feature) for name, feature in features.items()}
        template = str(info.get("video_path") or VIDEO_PATHS.get(str(version)[:2], ""))
        fps, chunks_size = float(info.get("fps") or 0.0), int(info.get("chunks_size") or 1000)
        totals = [int(info.get(name) or 0) for name in ("total_frames", "total_episodes")]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path}: is not the meta data of a LeRobotDataset ({type(error).__name__}: {error})."
        ) from error
    if version not in VERSIONS:
        raise DataError(f"{path}: codebase_version is {version!r}; read are {', '.join(VERSIONS)}.")
    vectors = [name for name in own if kinds[name] not in ("video", "image", "string")]
    if "action" not in kinds or not own:
        missing = "action" if "action" not in kinds else "observation.*"
        raise DataError(f"{path}: the data set has no {missing}; its features are {', '.join(kinds)}.")
    videos = frozenset(name for name in cameras if kinds[name] == "video")
    return Layout(root, version, fps, tuple(vectors), cameras, videos, template, chunks_size, names, *totals)


def _names(feature: dict[str, Any]) -> tuple[str, ...]:
    """The names of a feature's dimensions; none if it does not say them."""
    names = feature.get("names")
    if isinstance(names, dict) and len(names) == 1:  # such as {"motors": [...]}
        (names,) = names.values()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def _size(path: Path, name: str, feature: dict[str, Any]) -> tuple[int, int]:
    """Height and width of a camera. The axes are named, or the channels are the last one."""
    shape = [int(side) for side in feature["shape"]]
    names = feature.get("names")
    if isinstance(names, list) and {"height", "width"} <= set(names) and len(names) == len(shape):
        size = shape[names.index("height")], shape[names.index("width")]
    else:
        size = (shape[0], shape[1]) if len(shape) == 3 else (0, 0)
    if not all(1 <= side <= LARGEST for side in size):
        raise DataError(f"{path}: {name} has the shape {shape}; expected (height, width, channels) up to {LARGEST}.")
    return size


def fill(template: str, where: str, **values: Any) -> str:
    """`str.format` for the path templates of LeRobot alone: a format string can do more than name files."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise DataError(f"{where} is {template!r}; its fields may be {', '.join(values)}.")
        found = values[match[1]]
        return f"{found:0{match[2]}d}" if match[2] else str(found)

    text = _FIELD.sub(value, template)
    if "{" in text or "}" in text:
        raise DataError(f"{where} is {template!r}; expected a path with fields such as {{file_index:03d}}.")
    return text


def inside(root: Path, path: Path) -> Path:
    """The path, if it lies in the data set also after its links are followed.

    The hub's cache is one exception: there, snapshots/REVISION has links into blobs beside snapshots.
    """
    real, whole = path.resolve(), root.resolve()
    roots = [whole, whole.parent.parent / "blobs"] if whole.parent.name == "snapshots" else [whole]
    below = path.is_relative_to(root) and ".." not in path.relative_to(root).parts
    if not below or not any(real.is_relative_to(each) for each in roots):
        raise DataError(f"{path}: leads out of the data set {root}, to {real}; not read.")
    return path
