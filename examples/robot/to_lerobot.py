"""Write the recorded demonstrations as a LeRobotDataset v3.0, with the lerobot package's own writer.

    python to_lerobot.py demonstrations.npz pick-dataset

It needs lerobot 0.4 and NumPy only, so it can run in an environment of its own.
"""

from __future__ import annotations

import sys

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # pyright: ignore[reportMissingImports]

CAMERAS = ("front", "wrist")
STATE = ["x", "y", "z", "opening", "vx", "vy", "vz", "cube_x", "cube_y", "cube_z"]


def main(source: str, root: str) -> None:
    columns = dict(np.load(source, allow_pickle=False))
    rows = len(columns["actions"])
    features = {
        "observation.state": {"dtype": "float32", "shape": (10,), "names": STATE},
        "action": {"dtype": "float32", "shape": (4,), "names": ["dx", "dy", "dz", "grip"]},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    for name in CAMERAS:
        shape = columns[f"observations/{name}"].shape[1:]
        features[f"observation.images.{name}"] = {
            "dtype": "video",
            "shape": shape,
            "names": ["height", "width", "channels"],
        }
    dataset = LeRobotDataset.create("fidec/pick", fps=10, features=features, root=root, robot_type="rails")
    for row in range(rows):
        frame = {f"observation.images.{name}": columns[f"observations/{name}"][row] for name in CAMERAS}
        frame |= {"observation.state": columns["observations/state"][row], "action": columns["actions"][row]}
        frame["next.reward"] = columns["rewards"][[row]].astype(np.float32)
        frame["next.success"] = columns["terminals"][[row]].astype(bool)
        dataset.add_frame({**frame, "task": "lift the cube"})
        if row + 1 == rows or columns["episodes"][row + 1] != columns["episodes"][row]:
            dataset.save_episode()
    dataset.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])
