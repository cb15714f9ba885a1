"""Visual data has OGBench's images and the physics of the state data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fidec
from fidec.envs.render import gl_environ

# In a process of its own: MuJoCo looks for OpenGL once, when it is first imported.
SCRIPT = """
import sys
from dataclasses import replace
import numpy as np
from fidec.make.recipes import RECIPES
from fidec.make.worlds import open_world
from fidec.make.worlds import open_env, seed_generators

name, rows, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
world = open_world(replace(RECIPES[f"visual-{name}-play-v0"], episode_rows=2))
world.episode(1, "val", 4)  # an earlier episode must not change a later one
world.recipe = replace(world.recipe, episode_rows=rows)
taken, step = [], world.env.step
world.env.step = lambda action: (taken.append(action), step(action))[1]  # the actions in double precision
exact = world.episode(1, "train", 0)
arrays = {f"exact/{key}": value for key, value in exact.items()}
state = open_world(replace(RECIPES[f"{name}-play-v0"], episode_rows=rows)).episode(1, "train", 0)
arrays |= {f"state/{key}": value for key, value in state.items()}

# OGBench's own environment, stepped with the same actions.
env = open_env(f"visual-{name}-v0", mode="data_collection")
frames = [env.reset(seed=seed_generators(1, "train", 0, 0))[0]]
frames += [env.step(action)[0] for action in taken[:-1]]
arrays["ogbench/observations"] = np.array(frames)
np.savez(out, **arrays)
"""


def images(name: str, rows: int, folder: Path) -> dict[str, np.ndarray]:
    """The arrays that the script saves, or a skip without OpenGL."""
    environ = {**os.environ, **gl_environ(), "PYTHONPATH": str(Path(fidec.__file__).parents[1])}
    probe = [sys.executable, "-c", "import mujoco; mujoco.GLContext(8, 8).free()"]
    if subprocess.run(probe, env=environ, capture_output=True).returncode:
        pytest.skip("no OpenGL here")
    out = folder / "arrays.npz"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, name, str(rows), str(out)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return dict(arrays)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cube-single", "cube-double", "scene", "puzzle-3x3", "puzzle-4x4"])
def test_frames_are_ogbenchs_and_physics_are_the_states(name, tmp_path):
    rows = 6
    arrays = images(name, rows, tmp_path)
    frames = arrays["exact/observations"]
    assert (frames.shape, frames.dtype) == ((rows, 64, 64, 3), np.uint8)
    assert (np.diff(frames.astype(int), axis=0) != 0).any(axis=(1, 2, 3)).all()  # the arm moves in every row
    np.testing.assert_array_equal(frames, arrays["ogbench/observations"])
    for key in ("actions", "terminals", "qpos", "qvel"):
        assert arrays[f"exact/{key}"].tobytes() == arrays[f"state/{key}"].tobytes(), key
