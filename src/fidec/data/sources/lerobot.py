"""`lerobot:DIR`: a local LeRobotDataset, versions 2.0, 2.1 and 3.0.

meta/info.json            codebase_version, fps, features {name: {dtype, shape, names}}, video_path, total_frames, ...
meta/episodes/**.parquet  v3.0: for each episode and camera the file, and the time of its first frame in that file
data/**/*.parquet         one row a frame: observation.*, action, episode_index, frame_index, timestamp, and maybe
                          next.reward, next.done, next.truncated, next.success
videos/                   one MP4 file an episode (v2), or many episodes one after another (v3.0)

The observation is all vectors `observation.*`: `observation.state` first, the others in sorted order. Cameras are
read if they are named: `lerobot:DIR?cameras=front,wrist&size=64x64`. An episode that ends with `next.success`, or
with `next.done` and without `next.truncated`, ends the task; all others were cut. Missing frames or episodes are an
error, unless the source says `?holes=allow`: then an episode is cut where frames are missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.data.arrays import build_dataset
from fidec.data.cameras import (
    LARGEST,
    Cameras,
    picture,
    resize,
    split_cameras,
    stored_frames,
    video_frames,
    with_options,
    with_state,
)
from fidec.data.columns import dimension_names, flag_vector, user_path
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, absolute_if_exists
from fidec.data.tables import Table
from fidec.errors import DataError
from fidec.store.files import sha256_file

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
                episode: (self._video(camera, episode_index=episode, episode_chunk=episode // self.chunks_size), 0.0)
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


_OPTIONAL = ("next.reward", "next.success", "next.done", "next.truncated")
_PICTURES = 16  # rows of encoded images that are read at a time


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    path, cameras = split_cameras(what)
    root = folder(path)
    return load_folder(root, cameras, root.name, f"lerobot:{what}", action_low, action_high)


def load_folder(
    root: Path,
    cameras: Cameras,
    name: str,
    source: str,
    action_low: Any = None,
    action_high: Any = None,
    facts: dict[str, Any] | None = None,
) -> OfflineDataset:
    """The data set in a directory. `facts` are added to its `info`."""
    layout = read_layout(root)
    chosen = cameras.chosen(str(root), list(layout.cameras))
    if not layout.vectors and not chosen:
        raise DataError(
            f"{root}: the data set has no vector observation.*, only cameras. Name some: ?cameras="
            f"{','.join(layout.cameras)}&size=64x64"
        )
    files = layout.tables("data")
    if not files:
        raise DataError(f"{root}: has no data/**/*.parquet. Copy the whole data set, not only its meta data.")
    whole = _read(layout, files)
    order = np.lexsort((whole["frame_index"], whole["episode_index"]))
    sorted_ = {key: array[order] for key, array in whole.items()}
    episodes, frames = sorted_["episode_index"], sorted_["frame_index"]
    first = np.append(True, episodes[1:] != episodes[:-1])
    if (~first[1:] & (np.diff(frames) == 0)).any():
        raise DataError(f"{root}: two rows of data/ have the same episode_index and frame_index.")
    jumps = np.where(first, frames, np.diff(frames, prepend=-1) - 1) != 0  # rows before which frames are missing
    holes = _holes(layout, episodes, frames, jumps)
    if holes and not cameras.holes:
        raise DataError(
            f"{root}: {holes}. Copy or download the whole data set again, or add ?holes=allow to the source "
            "(&holes=allow after other options): an episode is then cut where frames are missing."
        )
    parts = {part: _frames(layout, camera, cameras, files, whole, order) for part, camera in chosen.items()}
    state = np.concatenate(
        [np.zeros((len(order), 0), np.float32), *(_flat(sorted_[v]) for v in layout.vectors)], axis=1
    )
    columns: dict[str, Any] = {
        "observations": with_state(state, parts),
        "actions": _flat(sorted_["action"]),
        "rewards": sorted_.get("next.reward"),
        "terminals": _terminals(str(root), sorted_, np.append(first[1:], True)),
        "episodes": np.cumsum(first | jumps),
        "action_low": action_low,
        "action_high": action_high,
    }
    info: dict[str, Any] = {"file": str(root.absolute()), "observation_keys": list(layout.vectors), **(facts or {})}
    info |= {"cameras": chosen} if chosen else {}
    vectors = ((name, sorted_[name].shape[1:], layout.names[name]) for name in layout.vectors)
    info |= {"observation_names": [each for vector in vectors for each in dimension_names(*vector)]}
    if len(layout.names["action"]) == columns["actions"].shape[1]:
        info["action_names"] = list(layout.names["action"])
    info |= {"holes": holes} if holes else {}
    left_out = [camera for camera in layout.cameras if camera not in chosen.values()]
    info |= {"left_out": left_out} if left_out else {}
    return build_dataset(columns, where=str(root), name=name, source=source, info=info)


def _read(layout: Layout, files: list[Path]) -> dict[str, np.ndarray]:
    """The columns that are numbers, in the order of the files."""
    optional = [key for key in (*_OPTIONAL, "timestamp") if key in Table(files[0]).types]
    wanted = [*layout.vectors, "action", "episode_index", "frame_index", *optional]
    tables = []
    with Progress(len(files), name=f"reading {layout.root.name}", unit="file", enabled=len(files) > 20) as progress:
        for file in files:
            tables.append(Table(file).read(wanted))
            progress.advance(1)
    return {key: np.concatenate([table[key] for table in tables]) for key in wanted}


def _holes(layout: Layout, episodes: np.ndarray, frames: np.ndarray, jumps: np.ndarray) -> str:
    """What is missing, in words; nothing if the data set is complete."""
    found = []
    if jumps.any():
        row = int(jumps.argmax())
        inside = row and episodes[row - 1] == episodes[row]
        place = f"jumps from {frames[row - 1]} to {frames[row]}" if inside else f"begins with {frames[row]}"
        found.append(f"gaps in frame_index: {int(jumps.sum())}, first in episode {episodes[row]}, which {place}")
    own = len(set(episodes.tolist()))
    counts = (len(frames), layout.total_frames, "frame"), (own, layout.total_episodes, "episode")
    found += [f"{have} {name}s of total_{name}s {total}" for have, total, name in counts if have < total]
    return "; ".join(found)


def _terminals(where: str, columns: dict[str, np.ndarray], ends: np.ndarray) -> np.ndarray | None:
    """Where the task ended; None if the data set does not say."""
    flags = {key: flag_vector(where, key, columns[key], len(ends)) for key in _OPTIONAL[1:] if key in columns}
    if "next.truncated" in flags and "next.done" in flags:
        return flags["next.done"] & ~flags["next.truncated"] & ends
    return flags["next.success"] & ends if "next.success" in flags else None


def _flat(array: np.ndarray) -> np.ndarray:
    """(rows, n) float32. LeRobot stores vectors of one number as numbers."""
    return array.reshape(len(array), -1).astype(np.float32)


# --- cameras --------------------------------------------------------------------------------------------------------


def _frames(
    layout: Layout, camera: str, cameras: Cameras, files: list[Path], whole: dict[str, np.ndarray], order: np.ndarray
) -> np.ndarray:
    """(rows, height, width, 3) uint8 of one camera, in the order of the rows."""
    size = cameras.size or layout.cameras[camera]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))  # of each row of the tables
    if camera in layout.videos:
        sources, frames = _from_videos(layout, camera, whole)
    else:
        sources, frames = files, _from_tables(files, camera, layout.cameras[camera])
    times = whole.get("timestamp", np.zeros(0)).astype(np.float64)
    plan = [place, whole["episode_index"].astype(np.int64), times]
    origin = {
        "camera": camera,
        "rows": hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in plan)).hexdigest(),
        "sources": {str(file.relative_to(layout.root)): sha256_file(file) for file in _existing(sources)},
        "size": list(size),
    }
    resized = ((int(place[row]), resize(image, size)) for row, image in frames)
    name = f"{layout.root.absolute().name}.{camera}.{size[0]}x{size[1]}"
    return stored_frames(layout.root, layout.root, name, origin, (len(order), *size, 3), resized)


def _existing(files: list[Path]) -> list[Path]:
    if missing := [file for file in files if not file.is_file()]:
        raise DataError(f"{missing[0]} does not exist: the data set is incomplete. Copy or download it again.")
    return files


def _from_videos(
    layout: Layout, camera: str, whole: dict[str, np.ndarray]
) -> tuple[list[Path], Iterator[tuple[int, np.ndarray]]]:
    """The files of a camera, and (row, frame), each file read once from its beginning."""
    if "timestamp" not in whole:
        raise DataError(f"{layout.root}: has no column timestamp, which says where the frames of {camera} are.")
    episodes, rows = whole["episode_index"], {}
    starts = layout.video_starts(camera, sorted(set(episodes.tolist())))
    first = np.array([starts[episode][1] for episode in episodes.tolist()])
    times = first + whole["timestamp"].astype(np.float64)
    for episode, (file, _) in starts.items():
        rows.setdefault(file, []).append(np.flatnonzero(episodes == episode))

    def frames() -> Iterator[tuple[int, np.ndarray]]:
        for file, groups in rows.items():
            own = np.concatenate(groups)
            for index, frame in video_frames(file, times[own], layout.fps, layout.cameras[camera]):
                yield int(own[index]), frame

    return sorted(rows), frames()


def _from_tables(files: list[Path], camera: str, size: tuple[int, int]) -> Iterator[tuple[int, np.ndarray]]:
    """(row, image) of the images that are stored in the tables."""
    row = 0
    for file in files:
        for struct in Table(file).stream(camera, _PICTURES):
            content = struct.get("bytes") if isinstance(struct, dict) else None
            yield row, picture(f"{file}: {camera}, row {row}", content, size)
            row += 1


def _absolute(what: str) -> str:
    return with_options(what, absolute_if_exists(split_cameras(what)[0]))


SOURCE = DataSource(
    summary="a local LeRobotDataset",
    example="lerobot:my-dataset",
    load=load,
    absolute=_absolute,
    check_present=lambda what, cache_dir: folder(split_cameras(what)[0]),
    at_url=("meta", "data"),
)
