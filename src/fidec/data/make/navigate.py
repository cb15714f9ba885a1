"""Pointmaze `navigate` episodes: walk to a random goal, then to the next, with Gaussian action noise."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

from fidec.data.make.recipes import Recipe
from fidec.data.make.world import Rows, Snapshot, open_env, seed_generators


class NavigateWorld:
    """A maze, its cells, and the walker that follows OGBench's shortest paths."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.env = open_env(recipe.env_id)
        os.unlink(self.env.fullpath)  # OGBench writes the maze to a temporary file and leaves it there.
        self._snapshot = Snapshot(self.env)
        self._cells, self._corners = _cells(self.env.maze_map)
        # The next cell depends on the two cells alone; OGBench searches the maze anew at every step.
        self._next_cell = functools.cache(self._search)

    def episode(self, seed: int, split: str, index: int) -> dict[str, np.ndarray]:
        """Row `t` holds the state before action `t`; the last row is terminal."""
        env, recipe = self.env, self.recipe
        self._snapshot.restore()
        env_seed = seed_generators(seed, split, index, attempt=0)
        env.action_space.seed(env_seed)  # OGBench's reset takes a few random steps.
        start, goal = _pick(self._cells), _pick(self._corners)
        ob, _ = env.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})

        rows = Rows(recipe.dtypes)
        for _ in range(recipe.episode_rows):
            xy = env.get_xy()
            subgoal = self._next_cell(env.xy_to_ij(xy), env.xy_to_ij(env.cur_goal_xy))
            direction = subgoal - xy
            direction = direction / (np.linalg.norm(direction) + 1e-6)
            action = np.clip(direction + np.random.normal(0, recipe.noise, direction.shape), -1, 1)
            next_ob, _, _, _, info = env.step(action)
            if info["success"]:
                env.set_goal(_pick(self._corners))
            rows.append(
                observations=ob,
                actions=action,
                terminals=False,
                qpos=info["prev_qpos"],
                qvel=info["prev_qvel"],
            )
            ob = next_ob
        return rows.arrays()

    def _search(self, start: tuple[int, int], goal: tuple[int, int]) -> np.ndarray:
        # A cell's centre lies in that cell, so this is the path that OGBench finds from the exact points.
        return self.env.get_oracle_subgoal(self.env.ij_to_xy(start), self.env.ij_to_xy(goal))[0]


def _pick(cells: list[tuple[int, int]]) -> tuple[int, int]:
    return cells[np.random.randint(len(cells))]


def _cells(maze: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """All free cells, and those that are not inside a straight corridor (goals are drawn from these)."""
    free = [(int(i), int(j)) for i, j in zip(*np.nonzero(maze == 0), strict=True)]

    def corridor(i: int, j: int) -> bool:
        vertical, horizontal = (maze[i - 1, j], maze[i + 1, j]), (maze[i, j - 1], maze[i, j + 1])
        return (vertical, horizontal) in (((0, 0), (1, 1)), ((1, 1), (0, 0)))

    return free, [cell for cell in free if not corridor(*cell)]
