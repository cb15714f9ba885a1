"""D4RL's antmaze: its maps, start and goal around OGBench's ant.

D4RL and OGBench have the same ant: D4RL drives the joints with +-30 behind a wrapper that scales the actions, OGBench
with +-1 and a gear of 30. The walls stand as in D4RL: cells of 4, and the start cell around the origin. OGBench uses
the same frame, so positions in the data of both mean the same place.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium
import numpy as np

from fidec.extras import require

# S is the start and G the goal of every episode. D4RL calls them u-maze, big-maze and hardest-maze.
MAPS = {
    "umaze": (
        "#####",
        "#S  #",
        "### #",
        "#G  #",
        "#####",
    ),
    "medium": (
        "########",
        "#S ##  #",
        "#  #   #",
        "##   ###",
        "#  #   #",
        "# #  # #",
        "#   # G#",
        "########",
    ),
    "large": (
        "############",
        "#S   #     #",
        "# ## # # # #",
        "#      #   #",
        "# #### ### #",
        "#  # #     #",
        "## # # # ###",
        "#  #   # G #",
        "############",
    ),
}
HORIZONS = {"umaze": 700, "medium": 1000, "large": 1000}
UNIT = 4.0  # length of a cell
TOLERANCE = 0.5  # the goal is met within this distance


def find_cell(maze: str, mark: str) -> tuple[int, int]:
    """(row, column) of the start "S" or the goal "G"."""
    return next((row, line.index(mark)) for row, line in enumerate(MAPS[maze]) if mark in line)


def cell_xy(maze: str, cell: tuple[int, int]) -> np.ndarray:
    """The middle of a cell; the start's is the origin."""
    row, column = find_cell(maze, "S")
    return UNIT * np.array([cell[1] - column, cell[0] - row], float)


class AntMaze(gymnasium.Wrapper):
    """The rules of `antmaze-*-v2`: reward 1 and the episode's end at the goal, which is drawn at each reset.

    The ant starts at the origin, with the noise of its `reset_model`. The goal lies between 0 and 1.5 beyond the
    middle of its cell on both axes: D4RL adds two uniform numbers, up to 1 and up to 0.5. The state after the action
    decides. An ant on its back does not end the episode. The goal is not part of the observation.
    """

    def __init__(self, env: gymnasium.Env, maze: str):
        super().__init__(env)
        self.maze = maze
        self.goal = cell_xy(maze, find_cell(maze, "G"))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        base: Any = self.env.unwrapped
        noise = base.np_random.uniform(0, UNIT / 4, 2) + base.np_random.uniform(0, UNIT / 8, 2)
        self.goal = np.maximum(cell_xy(self.maze, find_cell(self.maze, "G")) + noise, 0)
        base.model.geom("target").pos[:2] = self.goal  # only drawn, never touched
        return observation, info

    def step(self, action: Any):
        observation, _, _, truncated, info = self.env.step(action)
        base: Any = self.env.unwrapped
        success = float(np.linalg.norm(base.data.qpos[:2] - self.goal) <= TOLERANCE)
        return observation, success, bool(success), truncated, {**info, "success": success}


def make_antmaze(maze: str, render_mode: str | None = None) -> gymnasium.Env:
    """An antmaze with D4RL's rules and time limit."""
    ant = require("ogbench.locomaze.ant", "d4rl", "a D4RL antmaze")
    mujoco = importlib.import_module("mujoco")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "maze.xml"
        path.write_text(_scene(ant.AntEnv.xml_file, maze))
        env: Any = ant.AntEnv(xml_file=str(path), render_mode=render_mode)
    rows, columns = len(MAPS[maze]), len(MAPS[maze][0])
    camera = mujoco.MjvCamera()  # from above, for videos
    camera.lookat[:2] = cell_xy(maze, (rows - 1, columns - 1)) / 2 - UNIT / 2
    camera.distance, camera.elevation = 1.25 * UNIT * max(rows, columns), -90
    env.custom_camera = camera
    return gymnasium.wrappers.TimeLimit(AntMaze(env, maze), HORIZONS[maze])


def _scene(ant: str, maze: str) -> str:
    """The ant's scene with the walls and a picture of the goal."""
    tree = ElementTree.parse(ant)
    world = tree.find(".//worldbody")
    assert world is not None

    def add(name: str, **attributes: str) -> None:
        ElementTree.SubElement(world, "geom", {"name": name, **attributes})

    for row, line in enumerate(MAPS[maze]):
        for column, mark in enumerate(line):
            if mark == "#":
                x, y = cell_xy(maze, (row, column))
                add(
                    f"block_{row}_{column}",
                    type="box",
                    pos=f"{x} {y} {UNIT / 4}",
                    size=f"{UNIT / 2} {UNIT / 2} {UNIT / 4}",
                    contype="1",
                    conaffinity="1",
                    material="wall",
                )
    add(
        "target",
        type="cylinder",
        pos="0 0 .05",
        size=f"{TOLERANCE} .05",
        contype="0",
        conaffinity="0",
        material="target",
    )
    return ElementTree.tostring(tree.getroot(), encoding="unicode")
