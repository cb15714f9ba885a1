"""Data sets that LeRobot itself wrote, and data sets of ours that LeRobot reads.

`tests/data/files/lerobot-v3` was written by lerobot 0.4.4. The slow tests run lerobot in a Python of its own: set
FIDEC_LEROBOT_PYTHON to one that has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fidec.data import dataset_from_arrays, load_dataset
from helpers import lerobot_tool
from helpers.lerobot_tool import EPISODES, SIZES, STEPS

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fidec[lerobot]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install 'fidec[lerobot]'")

FILES = Path(__file__).parent / "files" / "lerobot-v3"
CAMERAS = {name.rpartition(".")[2]: name for name in SIZES}


def lerobot(*arguments: object) -> None:
    """Run LeRobot's own code."""
    python = os.environ.get("FIDEC_LEROBOT_PYTHON")
    if not python:
        pytest.skip("FIDEC_LEROBOT_PYTHON is not set to a Python that has lerobot")
    command = [python, lerobot_tool.__file__, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]


def compare(root: Path, tolerance: float) -> None:
    """The data set is what was given to LeRobot's writer; `tolerance` is the mean difference of pixels."""
    given = list(lerobot_tool.rows())
    column = {key: np.stack([row[key] for row in given]) for key in given[0]}
    same = dataset_from_arrays(
        {"state": column["observation.state"], **{part: column[name] for part, name in CAMERAS.items()}},
        column["action"],
        column["next.reward"][:, 0],
        column["next.success"][:, 0],
        episodes=np.arange(EPISODES * STEPS) // STEPS,
    )
    found = load_dataset(f"lerobot:{root}?cameras=front,wrist")
    assert found.size == same.size
    for key in ("actions", "rewards", "masks", "terminals"):
        np.testing.assert_array_equal(getattr(found, key), getattr(same, key))
    for key in ("observations", "next_observations"):
        ours, theirs = getattr(found, key), getattr(same, key)
        np.testing.assert_array_equal(ours["state"], theirs["state"])
        for part in CAMERAS:
            wrong = np.abs(ours[part].astype(int) - theirs[part])
            # A frame of another time would differ by 10 levels.
            assert wrong.reshape(len(wrong), -1).mean(axis=1).max() <= tolerance


def test_a_data_set_that_lerobot_wrote_is_read(tmp_path):
    compare(shutil.copytree(FILES, tmp_path / "set"), tolerance=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "tolerance"), [("video", 1.5), ("image", 0.0)])
def test_what_lerobot_writes_now_is_read(tmp_path, kind, tolerance):
    lerobot("write", tmp_path / "set", kind)
    compare(tmp_path / "set", tolerance)


@pytest.mark.slow
def test_lerobot_reads_what_we_convert(tmp_path):
    from fidec.data.convert import convert

    rng = np.random.default_rng(0)
    rows, steps = 24, 8
    states, actions = rng.normal(size=(rows, 3)).astype(np.float32), rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    images = rng.integers(0, 256, (rows, 16, 24, 3)).astype(np.uint8)
    dataset = dataset_from_arrays(
        {"state": states, "top": images}, actions, rng.normal(size=rows), episodes=np.arange(rows) // steps
    )
    convert(dataset, "lerobot", tmp_path / "mine", fps=20)
    lerobot("read", tmp_path / "mine", tmp_path / "found.npz")
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(found["observation.state"], states)
    np.testing.assert_array_equal(found["observation.images.top"], images)
    last = np.arange(rows) % steps == steps - 1  # our last states repeat the last action
    np.testing.assert_array_equal(found["action"][~last], actions[~last])
    np.testing.assert_array_equal(found["next.reward"][~last], dataset.rewards)
    np.testing.assert_allclose(found["timestamp"], np.arange(rows) % steps / 20, atol=1e-6)
    np.testing.assert_array_equal(found["next.done"], last)
