"""OGBench's environments that make episodes. These depend on their seeds alone, not on earlier episodes.

`play`: OGBench's plan oracles move random objects to random places. `visual-X-play-v0` has 64 x 64 images as
observations, as in OGBench's visual environments. Its qpos, qvel and actions are those of `X-play-v0` made with the
same seed. `navigate`: a walker goes to one random goal of a maze after the other, with Gaussian action noise.
"""

from __future__ import annotations

import copy
import functools
import os
from typing import Any

import numpy as np

from fidec.errors import EnvError
from fidec.extras import quiet, require
from fidec.make.expert import Policy
from fidec.make.recipes import Recipe

SPLITS = ("train", "val")

# Fields of the compiled model that OGBench's environments change in an episode: locks of drawer and window (damping),
# targets (site and geom positions) and colours. A reset does not restore them.
_MODEL_FIELDS = ("dof_damping", "site_pos", "geom_pos", "geom_rgba", "mat_rgba")
_SAVED_TYPES = (bool, int, float, str, tuple, np.ndarray, np.generic, type(None))


def open_env(env_id: str, **kwargs: Any) -> Any:
    """The environment without wrappers (the caller counts the rows), compiled and reset once."""
    import gymnasium

    require("ogbench", "ogbench", env_id)  # registers the environments
    with quiet():
        env: Any = gymnasium.make(env_id, terminate_at_goal=False, disable_env_checker=True, **kwargs).unwrapped
        # The first reset of a manipulation environment compiles the model and solves its contacts with different
        # gains. All later resets are equal.
        env.reset(seed=0)
    return env


class Snapshot:
    """The parts of an environment that a reset does not restore."""

    def __init__(self, env: Any):
        self._env = env
        self._attributes = {
            name: copy.deepcopy(value)
            for name, value in vars(env).items()
            if isinstance(value, _SAVED_TYPES) and name != "_np_random"
        }
        self._model = {name: getattr(env.model, name).copy() for name in _MODEL_FIELDS}

    def restore(self) -> None:
        for name, value in self._attributes.items():
            setattr(self._env, name, value.copy() if isinstance(value, np.ndarray) else value)
        for name, value in self._model.items():
            getattr(self._env.model, name)[:] = value


def seed_generators(seed: int, split: str, episode: int, attempt: int) -> int:
    """Seed the global NumPy generator, from which OGBench's oracles draw; returns the environment's seed."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(SPLITS.index(split), episode, attempt))
    words = sequence.generate_state(9)
    np.random.seed(words[:8])
    return int(words[8])


class Rows:
    """The rows of one episode, collected in the environment's own precision and stored in OGBench's."""

    def __init__(self, dtypes: dict[str, str]):
        self._dtypes = dtypes
        self._lists: dict[str, list[Any]] = {key: [] for key in dtypes}

    def append(self, **row: Any) -> None:
        for key, value in row.items():
            self._lists[key].append(value)

    def step(self, ob: Any, action: Any, info: dict[str, Any]) -> None:
        """A row of any environment: the state before the action, and the action."""
        before = {"qpos": info["prev_qpos"], "qvel": info["prev_qvel"]}
        self.append(observations=ob, actions=action, terminals=False, **before)

    def arrays(self) -> dict[str, np.ndarray]:
        self._lists["terminals"][-1] = True
        return {key: np.array(self._lists[key], dtype=dtype) for key, dtype in self._dtypes.items()}


_MAX_ATTEMPTS = 50


class PlayWorld:
    """A manipulation environment in data-collection mode with one oracle for each kind of object in it."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.family = recipe.env_id.removeprefix("visual-")
        self.env = open_env(recipe.env_id, mode="data_collection")
        if recipe.visual:
            # OGBench renders at every reset, step and new target. Here one image is rendered for each row.
            self.env.get_pixel_observation = lambda: None
        self._oracles = _oracles(self.env, recipe, self.family)
        self._snapshot = Snapshot(self.env)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        """The stored observation of the current state."""
        return self.env.render() if self.recipe.visual else state

    def episode(self, seed: int, split: str, index: int) -> dict[str, np.ndarray]:
        """Row `t` holds the state before action `t`; the last row is terminal.

        Scene episodes in which the cube leaves the visible area are discarded, as OGBench does.
        """
        for attempt in range(_MAX_ATTEMPTS):
            arrays = self._try(seed, split, index, attempt)
            if not self.family.startswith("scene") or _cube_stays_visible(arrays["qpos"]):
                return arrays
        raise EnvError(
            f"{self.recipe.name}, {split} episode {index}: the cube left the visible area in {_MAX_ATTEMPTS} "
            "attempts in a row. OGBench's data excludes such episodes. Use another seed."
        )

    def _try(self, seed: int, split: str, index: int, attempt: int) -> dict[str, np.ndarray]:
        env, recipe = self.env, self.recipe
        self._snapshot.restore()
        ob, info = env.reset(seed=seed_generators(seed, split, index, attempt))
        seen = self._observe(ob)
        p_stack = _stacking_probability(self.family)
        oracle = self._oracles[info["privileged/target_task"]]
        oracle.reset(ob, info)

        rows = Rows(recipe.dtypes)
        for _ in range(recipe.episode_rows):
            action = np.clip(oracle.select_action(ob, info), -1, 1)
            next_ob, _, _, _, info = env.step(action)
            following = self._observe(next_ob)
            if oracle.done:
                target_ob, target_info = env.set_new_target(p_stack=p_stack)
                oracle = self._oracles[target_info["privileged/target_task"]]
                oracle.reset(target_ob, target_info)
            rows.step(seen, action, info)
            if recipe.has_buttons:
                rows.append(button_states=info["prev_button_states"])
            ob, seen = next_ob, following
        return rows.arrays()


def _stacking_probability(family: str) -> float:
    if family.startswith("cube-single"):
        return 0.0
    if family.startswith("cube-double"):
        return np.random.uniform(0.0, 0.25)
    return 0.5


def _cube_stays_visible(qpos: np.ndarray) -> bool:
    """OGBench's health check of scene episodes: not too far right, and far left only inside the drawer."""
    y, z = qpos[:, 15], qpos[:, 16]
    lost_left = (y <= -0.3) & ((z < 0.06) | (z > 0.08))
    return not ((y >= 0.29) | lost_left).any()


def _oracles(env: Any, recipe: Recipe, family: str) -> dict[str, Any]:
    from ogbench.manipspace.oracles.plan.button_plan import ButtonPlanOracle
    from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle
    from ogbench.manipspace.oracles.plan.drawer_plan import DrawerPlanOracle
    from ogbench.manipspace.oracles.plan.window_plan import WindowPlanOracle

    kwargs: dict[str, Any] = {"env": env, "noise": recipe.noise, "noise_smoothing": recipe.noise_smoothing}
    if family.startswith("cube"):
        return {"cube": CubePlanOracle(**kwargs)}
    if family.startswith("puzzle"):
        return {"button": ButtonPlanOracle(gripper_always_closed=True, **kwargs)}
    return {
        "cube": CubePlanOracle(**kwargs),
        "button": ButtonPlanOracle(**kwargs),
        "drawer": DrawerPlanOracle(**kwargs),
        "window": WindowPlanOracle(**kwargs),
    }


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


def open_world(recipe: Recipe, policy: Policy | None = None) -> PlayWorld | NavigateWorld:
    """The environment and oracles of a recipe, with a method `episode(seed, split, index)`; ants need a policy."""
    return PlayWorld(recipe) if recipe.kind in ("play", "visual-play") else NavigateWorld(recipe, policy)
