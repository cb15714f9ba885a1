"""LeRobot data sets with cameras, in their documented layout, written with pyarrow, PyAV and Pillow alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fidec.data.cameras import png

STEPS, EPISODES, FPS = 6, 3, 10
ROWS = STEPS * EPISODES
SIZES = {"observation.images.front": (48, 64), "observation.images.wrist": (32, 32)}
EPISODE, FRAME = np.arange(ROWS) // STEPS, np.arange(ROWS) % STEPS
RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(ROWS, 3)).astype(np.float32)
ACTIONS = RNG.uniform(-1, 1, (ROWS, 2)).astype(np.float32)


def frame(row: int, size: tuple[int, int]) -> np.ndarray:
    """A grey level that tells the row, with a brighter left half: it survives the compression of a video."""
    image = np.full((*size, 3), 10 + 12 * row, np.uint8)
    image[:, : size[1] // 2] += 20
    return image


def write_video(path: Path, images: list[np.ndarray], fps: int = FPS) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.height, stream.width, stream.pix_fmt = *images[0].shape[:2], "yuv420p"
        stream.options = {"crf": "10"}
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def write_lerobot(root: Path, version: str = "v3.0", kind: str = "video", **changes: Any) -> Path:
    """Two cameras as videos or as images. In v3.0 the first two episodes share a file."""
    import pyarrow as pa
    from pyarrow import parquet

    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [3]},
        "action": {"dtype": "float32", "shape": [2]},
    }
    names = ["height", "width", "channels"]
    features |= {key: {"dtype": kind, "shape": [*size, 3], "names": names} for key, size in SIZES.items()}
    info = {"codebase_version": version, "fps": FPS, "features": features, "chunks_size": 1000, **changes}
    (root / "meta").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info))
    table: dict[str, Any] = {
        "observation.state": STATES.tolist(),
        "action": ACTIONS.tolist(),
        "episode_index": EPISODE,
        "frame_index": FRAME,
        "timestamp": (FRAME / FPS).astype(np.float32),
    }
    if kind == "image":
        for key, size in SIZES.items():
            table[key] = [{"bytes": png(frame(row, size)), "path": f"{row}.png"} for row in range(ROWS)]
    data = root / "data" / "chunk-000" / "file-000.parquet"
    data.parent.mkdir(parents=True)
    shuffled = pa.table(table).take(np.random.default_rng(1).permutation(ROWS))
    parquet.write_table(shuffled, data)
    if kind == "video":
        _write_videos(root, version)
    return root


def _write_videos(root: Path, version: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    meta: dict[str, Any] = {"episode_index": list(range(EPISODES))}
    for key, size in SIZES.items():
        images = [frame(row, size) for row in range(ROWS)]
        if version != "v3.0":
            for episode in range(EPISODES):
                path = root / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"
                write_video(path, images[episode * STEPS : (episode + 1) * STEPS])
            continue
        write_video(root / f"videos/{key}/chunk-000/file-000.mp4", images[: 2 * STEPS])
        write_video(root / f"videos/{key}/chunk-000/file-001.mp4", images[2 * STEPS :])
        meta[f"videos/{key}/chunk_index"] = [0, 0, 0]
        meta[f"videos/{key}/file_index"] = [0, 0, 1]
        meta[f"videos/{key}/from_timestamp"] = [0.0, STEPS / FPS, 0.0]
    if version == "v3.0":
        path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True)
        parquet.write_table(pa.table(meta), path)
