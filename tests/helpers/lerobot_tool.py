"""LeRobot's own writer and reader, run by a Python that has lerobot (see tests/data/test_lerobot_own.py).

python lerobot_tool.py write DIR EXPECTED.npz [--episodes N] [--image]
python lerobot_tool.py read DIR FOUND.npz
"""

from __future__ import annotations

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

STEPS, FPS = 12, 10
SIZES = {"front": (96, 128), "wrist": (64, 64)}


def write(root: str, expected: str, episodes: int = 3, kind: str = "video") -> None:
    features = {
        "observation.state": {"dtype": "float32", "shape": (5,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    axes = ["height", "width", "channels"]
    features |= {
        f"observation.images.{name}": {"dtype": kind, "shape": (*size, 3), "names": axes}
        for name, size in SIZES.items()
    }
    dataset = LeRobotDataset.create(
        "fidec/test", fps=FPS, features=features, root=root, robot_type="none", use_videos=kind == "video"
    )
    rng, kept = np.random.default_rng(0), []
    for episode in range(episodes):
        for step in range(STEPS):
            last = step == STEPS - 1
            row = {
                "observation.state": rng.normal(size=5).astype(np.float32),
                "action": rng.uniform(-1, 1, 2).astype(np.float32),
                "next.reward": np.array([rng.normal()], np.float32),
                "next.done": np.array([last]),
                "next.success": np.array([last and episode % 2 == 0]),
            }
            row |= {f"observation.images.{name}": image(episode, step, size) for name, size in SIZES.items()}
            dataset.add_frame({**row, "task": "touch the cube"})
            kept.append(row | {"episode": episode})
        dataset.save_episode()
    dataset.finalize()
    np.savez(expected, **{key: np.stack([row[key] for row in kept]) for key in kept[0]})


def image(episode: int, step: int, size: tuple[int, int]) -> np.ndarray:
    """Smooth, so that a video keeps it: brighter by step, with a bar whose place tells the episode."""
    across = np.linspace(0, 60, size[1])[None, :, None]
    picture = np.broadcast_to(20 + 10 * step + across, (*size, 3)).copy()
    picture[:, 16 * episode : 16 * episode + 16, 0] += 40
    return picture.clip(0, 255).astype(np.uint8)


def read(root: str, found: str) -> None:
    """All rows as LeRobot itself reads them. Images become (height, width, 3) uint8."""
    dataset = LeRobotDataset("fidec/test", root=root)
    columns: dict[str, list[np.ndarray]] = {}
    for row in (dataset[index] for index in range(len(dataset))):
        for key, value in row.items():
            if hasattr(value, "numpy"):
                array = value.numpy()
                if array.ndim == 3:
                    array = np.rint(255 * array.transpose(1, 2, 0)).astype(np.uint8)
                columns.setdefault(key, []).append(array)
    np.savez(found, **{key: np.stack(values) for key, values in columns.items()})


if __name__ == "__main__":
    command, root, arrays, *rest = sys.argv[1:]
    if command == "read":
        read(root, arrays)
    else:
        write(root, arrays, kind="image" if "--image" in rest else "video")
