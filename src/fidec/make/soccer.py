"""Ant soccer `navigate` episodes: walk to the ball, push it to a random goal, then to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from fidec.make.expert.policy import Policy
from fidec.make.navigate import Maze, pick, toward
from fidec.make.recipes import Recipe
from fidec.make.world import Rows, Snapshot, seed_generators

# OGBench's constants: when the ant is at the ball, how far ahead the ball expert looks, and when it is stuck.
_AT_BALL, _AHEAD = 2.0, 10.0
_STUCK_STEPS, _STUCK_RADIUS, _ARRIVED = 150, 2.0, 0.5


class SoccerWorld:
    """A field, and two experts: `ant` walks to the ball, `antball` pushes it."""

    def __init__(self, recipe: Recipe, policies: Mapping[str, Policy]):
        self.recipe = recipe
        self.maze = Maze(recipe.env_id)
        self.env = self.maze.env
        self._open = "arena" in recipe.env_id  # no walls to go around
        self._snapshot = Snapshot(self.env)
        self._ant, self._antball = policies["ant"], policies["antball"]
        self.goals = 0  # that the last episode reached

    def episode(self, seed: int, split: str, index: int) -> dict[str, np.ndarray]:
        """Row `t` holds the state before action `t`; the last row is terminal."""
        env, recipe, cells = self.env, self.recipe, self.maze.cells
        self._snapshot.restore()
        env_seed = seed_generators(seed, split, index, attempt=0)
        env.action_space.seed(env_seed)  # OGBench's reset takes a few random steps.
        agent, ball, goal = (cells[i] for i in np.random.choice(len(cells), 3, replace=False))
        task = {"agent_init_ij": agent, "ball_init_ij": ball, "goal_ij": goal}
        ob, _ = env.reset(seed=env_seed, options={"task_info": task})

        rows, self.goals = Rows(recipe.dtypes), 0
        detour: np.ndarray | None = None  # where a stuck ant walks before it tries again
        trail: deque[np.ndarray] = deque(maxlen=_STUCK_STEPS)
        for step in range(recipe.episode_rows):
            action = self._act(ob, detour)
            action = np.clip(action + np.random.normal(0, recipe.noise, action.shape), -1, 1)
            next_ob, _, _, _, info = env.step(action)
            here = next_ob[:2]
            if detour is not None and np.linalg.norm(detour - here) <= _ARRIVED:
                detour = None
            if info["success"]:
                self.goals += 1
                env.set_goal(pick(cells))
            if step > _STUCK_STEPS and detour is None and _within(trail, here):
                detour = np.array(env.ij_to_xy(pick(cells)))
            trail.append(ob[:2])
            rows.step(ob, action, info)
            ob = next_ob
        return rows.arrays()

    def _act(self, ob: np.ndarray, detour: np.ndarray | None) -> np.ndarray:
        xy, ball = self.env.get_agent_ball_xy()
        if detour is None and np.linalg.norm(xy - ball) <= _AT_BALL:
            return self._push(ob, xy, ball, np.array(self.env.cur_goal_xy))
        goal = ball if detour is None else detour
        target = goal if self._open else self.maze.subgoal(xy, goal)
        return self._ant.mean(np.concatenate([ob[2:15], ob[22:36], toward(xy, target)]))

    def _push(self, ob: np.ndarray, xy: np.ndarray, ball: np.ndarray, goal: np.ndarray) -> np.ndarray:
        if not self._open:
            goal = self.maze.subgoal(ball, goal)
        elif (distance := np.linalg.norm(goal - ball)) > _AHEAD:
            goal = ball + _AHEAD * (goal - ball) / distance  # The expert was trained on goals within reach.
        return self._antball.mean(np.concatenate([ob[2:15], ob[17:], ball - xy, goal - ball]))


def _within(trail: deque[np.ndarray], here: np.ndarray) -> bool:
    """Whether the ant has not been far from where it is now."""
    return bool(np.linalg.norm(np.array(trail) - here, axis=1).max() <= _STUCK_RADIUS)
