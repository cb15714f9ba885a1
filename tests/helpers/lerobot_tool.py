"""LeRobot's own writer and reader, run by a Python that has lerobot (see tests/data/test_lerobot_own.py).

python lerobot_tool.py write DIR [image]
python lerobot_tool.py read DIR FOUND.npz
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

STEPS, EPISODES, FPS = 12, 3, 10
SIZES = {"observation.images.front": (96, 128), "observation.images.wrist": (64, 64)}


def rows() -> Iterator[dict[str, Any]]:
    """The frames of all episodes. Every second episode ends with success."""
    rng = np.random.default_rng(0)
    for episode in range(EPISODES):
        for step in range(STEPS):
            last = step == STEPS - 1
            row = {
                "observation.state": rng.normal(size=5).astype(np.float32),
                "action": rng.uniform(-1, 1, 2).astype(np.float32),
                "next.reward": np.array([rng.normal()], np.float32),
                "next.done": np.array([last]),
                "next.success": np.array([last and episode % 2 == 0]),
            }
            yield row | {name: image(episode, step, size) for name, size in SIZES.items()}


def image(episode: int, step: int, size: tuple[int, int]) -> np.ndarray:
    """Smooth, so that a video keeps it: brighter by step, with a bar whose place tells the episode."""
    across = np.linspace(0, 60, size[1])[None, :, None]
    picture = np.broadcast_to(20 + 10 * step + across, (*size, 3)).copy()
    picture[:, 16 * episode : 16 * episode + 16, 0] += 40
    return picture.clip(0, 255).astype(np.uint8)


def write(root: str, kind: str = "video") -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    features: dict[str, Any] = {
        name: {"dtype": dtype, "shape": shape, "names": None}
        for name, dtype, shape in (
            ("observation.state", "float32", (5,)),
            ("action", "float32", (2,)),
            ("next.reward", "float32", (1,)),
            ("next.done", "bool", (1,)),
            ("next.success", "bool", (1,)),
        )
    }
    axes = ["height", "width", "channels"]
    features |= {name: {"dtype": kind, "shape": (*size, 3), "names": axes} for name, size in SIZES.items()}
    dataset = LeRobotDataset.create(
        "fidec/test", fps=FPS, features=features, root=root, robot_type="none", use_videos=kind == "video"
    )
    for number, row in enumerate(rows()):
        dataset.add_frame({**row, "task": "touch the cube"})
        if number % STEPS == STEPS - 1:
            dataset.save_episode()
    dataset.finalize()


def read(root: str, found: str) -> None:
    """All rows as LeRobot itself reads them. Images become (height, width, 3) uint8."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

    dataset = LeRobotDataset("fidec/test", root=root)
    columns: dict[str, list[np.ndarray]] = {}
    for row in (dataset[index] for index in range(len(dataset))):
        for key, value in row.items():
            if hasattr(value, "numpy"):
                array = value.numpy()
                if array.ndim == 3:
                    array = np.rint(255 * array.transpose(1, 2, 0)).astype(np.uint8)
                columns.setdefault(key, []).append(array)
    arrays: dict[str, Any] = {key: np.stack(values) for key, values in columns.items()}
    np.savez(found, **arrays)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
