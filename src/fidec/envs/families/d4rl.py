"""D4RL's tasks of the benchmark, with D4RL's rules restored on today's simulator.

AntMaze: D4RL and OGBench have the same ant. D4RL drives the joints with +-30 behind a wrapper that scales the
actions, OGBench with +-1 and a gear of 30. The walls stand as in D4RL: cells of 4, and the start cell around the
origin. OGBench uses the same frame, so positions in the data of both mean the same place.

Adroit: the scenes, observations, actions and starts of gymnasium-robotics' hand equal D4RL's. The rewards, ends and
horizons do not: in gymnasium-robotics a dropped pen does not end an episode, every episode has 200 steps, and the
term that leads the palm to the object has changed its sign without a new version of the environment. All three are
therefore computed here from the state of the simulator.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import gymnasium
import numpy as np

from fidec.envs.families import EnvFamily, EnvOptions, TaskInfo
from fidec.extras import require

# --- AntMaze ---------------------------------------------------------------------------------------------------

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

    def add(name: str, touched: int, **attributes: str) -> None:
        attributes |= {"name": name, "contype": f"{touched}", "conaffinity": f"{touched}"}
        ElementTree.SubElement(world, "geom", attributes)

    for row, line in enumerate(MAPS[maze]):
        for column, mark in enumerate(line):
            if mark == "#":
                x, y = cell_xy(maze, (row, column))
                size = f"{UNIT / 2} {UNIT / 2} {UNIT / 4}"
                add(f"block_{row}_{column}", 1, type="box", pos=f"{x} {y} {UNIT / 4}", size=size, material="wall")
    add("target", 0, type="cylinder", pos="0 0 .05", size=f"{TOLERANCE} .05", material="target")
    return ElementTree.tostring(tree.getroot(), encoding="unicode")


# --- Adroit ----------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The reward and the end of a state."""

    reward: float
    achieved: bool  # D4RL's `goal_achieved`
    over: bool = False


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b))


def pen(data: Any) -> Outcome:
    """Turn the pen as the target is turned; a drop costs 5 and ends the episode."""
    place = data.body("Object").xpos
    distance = _distance(place, data.site("eps_ball").xpos)
    ours = data.site("object_top").xpos - data.site("object_bottom").xpos
    wanted = data.site("target_top").xpos - data.site("target_bottom").xpos
    likeness = float(ours @ wanted / (np.linalg.norm(ours) * np.linalg.norm(wanted)))
    near, dropped = distance < 0.075, bool(place[2] < 0.075)
    aligned = near and likeness > 0.95
    reward = likeness - distance + 10.0 * (near and likeness > 0.9) + 50.0 * aligned - 5.0 * dropped
    return Outcome(reward, aligned, dropped)


def door(data: Any) -> Outcome:
    """Open the door."""
    angle = float(data.joint("door_hinge").qpos[0])
    reward = -0.1 * _distance(data.site("S_grasp").xpos, data.site("S_handle").xpos)
    reward -= 0.1 * (angle - 1.57) ** 2 + 1e-5 * float(np.sum(data.qvel**2))
    reward += 2.0 * (angle > 0.2) + 8.0 * (angle > 1.0) + 10.0 * (angle > 1.35)
    return Outcome(reward, angle >= 1.35)


def hammer(data: Any) -> Outcome:
    """Drive the nail into the board."""
    handle, head, nail = data.body("Object").xpos, data.site("tool").xpos, data.site("S_target").xpos
    left = _distance(nail, data.site("nail_goal").xpos)
    reward = -0.1 * _distance(data.site("S_grasp").xpos, handle) - _distance(head, nail) - 10.0 * left
    reward -= 1e-2 * float(np.linalg.norm(data.qvel))
    reward += 2.0 * bool(handle[2] > 0.04 and head[2] > 0.04) + 25.0 * (left < 0.02) + 75.0 * (left < 0.01)
    return Outcome(reward, left < 0.01)


def relocate(data: Any) -> Outcome:
    """Take the ball to the target."""
    palm, ball, target = data.site("S_grasp").xpos, data.body("Object").xpos, data.site("target").xpos
    left = _distance(ball, target)
    reward = -0.1 * _distance(palm, ball)
    if ball[2] > 0.04:
        reward += 1.0 - 0.5 * _distance(palm, target) - 0.5 * left
    reward += 10.0 * (left < 0.1) + 20.0 * (left < 0.05)
    return Outcome(reward, left < 0.1)


@dataclass(frozen=True)
class Rules:
    """One task as D4RL defines it."""

    judge: Callable[[Any], Outcome]
    horizon: int
    enough: int  # a success in `evaluate_success` has more than this many steps with the goal achieved
    observation: int  # numbers in an observation
    action: int


RULES = {
    "pen": Rules(pen, 100, 20, 45, 24),
    "door": Rules(door, 200, 25, 39, 28),
    "hammer": Rules(hammer, 200, 25, 46, 26),
    "relocate": Rules(relocate, 200, 25, 39, 30),
}


class Adroit(gymnasium.Wrapper):
    """D4RL's reward and end of a task.

    `info["success"]` is 1 from the step on at which D4RL's `evaluate_success` counts the episode: the goal was
    achieved in more than 20 steps (pen) or 25 (the others). `info["goal_achieved"]` is about the current state.
    """

    def __init__(self, env: gymnasium.Env, rules: Rules):
        super().__init__(env)
        self.rules, self._achieved = rules, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._achieved = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any):
        observation, *_ = self.env.step(action)
        base: Any = self.env.unwrapped
        reward, achieved, over = self.rules.judge(base.data)
        self._achieved += achieved
        success = float(self._achieved > self.rules.enough)
        return observation, reward, over, False, {"success": success, "goal_achieved": bool(achieved)}


def make_adroit(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """pen, door, hammer or relocate with D4RL's rules and time limit."""
    rules = RULES[name]
    import_robotics()
    module = importlib.import_module(f"gymnasium_robotics.envs.adroit_hand.adroit_{name}")
    env = getattr(module, f"AdroitHand{name.capitalize()}Env")(reward_type="dense", render_mode=render_mode)
    camera = importlib.import_module("mujoco").MjvCamera()  # near the hand, for videos
    camera.lookat[:], camera.distance, camera.elevation = (0, 0, 0.15), 1.2, -35
    env.custom_camera = camera
    return gymnasium.wrappers.TimeLimit(Adroit(env, rules), rules.horizon)


def import_robotics() -> Any:
    """The package gymnasium_robotics, without its notice about reward functions that are not used here."""
    with contextlib.redirect_stderr(io.StringIO()):
        return require("gymnasium_robotics", "d4rl", "an environment of gymnasium-robotics (Adroit, AntMaze, ...)")


# --- the tasks -------------------------------------------------------------------------------------------------

# D4RL's infos.py: (random, reference) mean returns, the same for all data sets of an environment. A score of 0 is the
# random policy, 100 is D4RL's reference policy. An antmaze's return is the environment's own 0 or 1, not the shifted
# reward of the training data.
REFERENCE = {
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "door": (-56.512833, 2880.5693087298737),
}


def note() -> str:
    """The sentence that stands beside every score of these tasks."""
    try:
        mujoco = f"MuJoCo {version('mujoco')}"
    except PackageNotFoundError:
        mujoco = "today's MuJoCo"
    return f"D4RL rules restored on {mujoco}; not the original simulator"


@cache
def tasks() -> list[TaskInfo]:
    """The six antmazes and the twelve Adroit tasks."""
    mazes = [("umaze", ""), ("umaze", "diverse")]
    mazes += [(maze, data) for maze in ("medium", "large") for data in ("play", "diverse")]
    known = [
        _info("-".join(filter(None, ("antmaze", maze, data, "v2"))), f"antmaze-{maze}", data, HORIZONS[maze])
        for maze, data in mazes
    ]
    known += [
        _info(f"{name}-{data}-v1", name, data, rules.horizon)
        for name, rules in RULES.items()
        for data in ("human", "cloned", "expert")
    ]
    return known


def _info(task_id: str, env: str, data: str, horizon: int) -> TaskInfo:
    return TaskInfo(id=task_id, env=env, horizon=horizon, dataset=task_id, data=data, note=note())


def find(name: str) -> TaskInfo | None:
    return next((info for info in tasks() if info.id == name), None)


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    """The environment of a task. It does not depend on the kind of data."""
    if info.env.startswith("antmaze-"):
        return make_antmaze(info.env.removeprefix("antmaze-"), options.render_mode)
    return make_adroit(info.env, options.render_mode)


def score(info: TaskInfo, summary: dict[str, Any]) -> float | None:
    """D4RL's normalised score in percent, of the mean return."""
    if summary["return"] is None:
        return None
    low, high = REFERENCE[info.env.partition("-")[0]]
    return 100.0 * (summary["return"] - low) / (high - low)


FAMILY = EnvFamily(find, make, score, tasks, bare_ids=True, example="antmaze-medium-play-v2")
