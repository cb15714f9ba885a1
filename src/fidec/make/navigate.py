"""Maze `navigate` episodes: walk to one random goal after the other, with Gaussian action noise."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from fidec.make.expert.policy import Policy
from fidec.make.recipes import Recipe
from fidec.make.world import Rows, Snapshot, open_env, seed_generators

Cell = tuple[int, int]


class Maze:
    """A maze environment, its cells, and OGBench's shortest paths."""

    def __init__(self, env_id: str):
        self.env = open_env(env_id)
        os.unlink(self.env.fullpath)  # OGBench writes the maze to a temporary file and leaves it there.
        self.cells, self.corners = _cells(self.env.maze_map)
        # The next cell depends on the two cells alone; OGBench searches the maze at every step.
        self._next_cell = functools.cache(self._search)

    def subgoal(self, xy: Any, goal: Any) -> np.ndarray:
        """The centre of the next cell on the way."""
        return self._next_cell(self.env.xy_to_ij(xy), self.env.xy_to_ij(goal))

    def _search(self, start: Cell, goal: Cell) -> np.ndarray:
        # A cell's centre is in that cell, so this is the path that OGBench finds from the exact points.
        return self.env.get_oracle_subgoal(self.env.ij_to_xy(start), self.env.ij_to_xy(goal))[0]


class NavigateWorld:
    """A maze and its walker: a point that moves in a straight line, or an ant with the policy of an expert."""

    def __init__(self, recipe: Recipe, policy: Policy | None = None):
        self.recipe = recipe
        self.maze = Maze(recipe.env_id)
        self.env = self.maze.env
        self._snapshot = Snapshot(self.env)
        self._policy = policy
        self.goals = 0  # reached in the last episode

    def episode(self, seed: int, split: str, index: int) -> dict[str, np.ndarray]:
        """Row `t` holds the state before action `t`; the last row is terminal."""
        env, recipe, corners = self.env, self.recipe, self.maze.corners
        self._snapshot.restore()
        env_seed = seed_generators(seed, split, index, attempt=0)
        env.action_space.seed(env_seed)  # OGBench's reset takes a few random steps.
        start, goal = _pick(self.maze.cells), _pick(corners)
        ob, _ = env.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})

        rows, self.goals = Rows(recipe.dtypes), 0
        for _ in range(recipe.episode_rows):
            xy = env.get_xy()
            action = self._act(ob, _toward(xy, self.maze.subgoal(xy, env.cur_goal_xy)))
            action = np.clip(action + np.random.normal(0, recipe.noise, action.shape), -1, 1)
            next_ob, _, _, _, info = env.step(action)
            if info["success"]:
                self.goals += 1
                env.set_goal(_pick(corners))
            rows.step(ob, action, info)
            ob = next_ob
        return rows.arrays()

    def _act(self, ob: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """An expert sees its state without its position, and the direction."""
        return direction if self._policy is None else self._policy.mean(np.concatenate([ob[2:], direction]))


def _toward(xy: np.ndarray, goal: Any) -> np.ndarray:
    """The direction from a place to a goal."""
    direction = goal - xy
    return direction / (np.linalg.norm(direction) + 1e-6)


def _pick(cells: list[Cell]) -> Cell:
    return cells[np.random.randint(len(cells))]


def _cells(maze: Any) -> tuple[list[Cell], list[Cell]]:
    """All free cells, and those that are not inside a straight corridor (goals are drawn from these)."""
    free = [(int(i), int(j)) for i, j in zip(*np.nonzero(maze == 0), strict=True)]

    def corridor(i: int, j: int) -> bool:
        vertical, horizontal = (maze[i - 1, j], maze[i + 1, j]), (maze[i, j - 1], maze[i, j + 1])
        return (vertical, horizontal) in (((0, 0), (1, 1)), ((1, 1), (0, 0)))

    return free, [cell for cell in free if not corridor(*cell)]
