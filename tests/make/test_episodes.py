"""Episodes are functions of (seed, split, index), and they are OGBench's."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fidec.make.expert import Policy
from fidec.make.recipes import RECIPES
from fidec.make.worlds import _cells, _cube_stays_visible, _pick, open_env, open_world, seed_generators


def test_a_play_episode_depends_on_its_seeds_alone():
    recipe = replace(RECIPES["scene-play-v0"], episode_rows=25)
    world = open_world(recipe)
    first, second = world.episode(3, "train", 0), world.episode(3, "train", 1)
    again = world.episode(3, "train", 0)
    assert all(first[key].tobytes() == again[key].tobytes() for key in recipe.dtypes)
    assert not np.array_equal(second["observations"], first["observations"])
    assert len({seed_generators(*place) for place in product((3, 4), ("train", "val"), (0, 1), (0, 1))}) == 16
    assert {key: str(array.dtype) for key, array in second.items()} == recipe.dtypes
    assert second["terminals"].tolist() == [False] * 24 + [True]
    assert np.abs(second["actions"]).max() <= 1
    assert np.isfinite(second["observations"]).all()


@pytest.mark.parametrize("maze", ["pointmaze-medium", "pointmaze-giant", "antmaze-medium"])
def test_maze_episodes_are_ogbenchs_with_its_search_at_every_step(maze):
    rng = np.random.default_rng(0)
    policy = Policy([(rng.normal(0, 0.3, (29, 16)).astype(np.float32), np.zeros(16, np.float32))])
    recipe = replace(RECIPES[f"{maze}-navigate-v0"], episode_rows=100)
    world = open_world(recipe, policy if recipe.expert else None)
    world.episode(5, "train", 0)
    made = world.episode(5, "train", 1)

    env = open_env(recipe.env_id)
    env_seed = seed_generators(5, "train", 1, 0)
    env.action_space.seed(env_seed)
    cells, corners = _cells(env.maze_map)
    start, goal = _pick(cells), _pick(corners)
    ob, _ = env.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})
    for t in range(recipe.episode_rows):
        subgoal, _ = env.get_oracle_subgoal(env.get_xy(), env.cur_goal_xy)
        direction = subgoal - env.get_xy()
        direction = direction / (np.linalg.norm(direction) + 1e-6)
        action = policy.mean(np.concatenate([ob[2:], direction])) if recipe.expert else direction
        action = np.clip(action + np.random.normal(0, 0.2 if recipe.expert else 0.5, action.shape), -1, 1)
        assert np.float32(ob).tobytes() == made["observations"][t].tobytes()
        assert np.float32(action).tobytes() == made["actions"][t].tobytes()
        ob, _, _, _, info = env.step(action)
        if info["success"]:
            env.set_goal(_pick(corners))
    assert made["terminals"].tolist() == [False] * 99 + [True]


def test_goals_are_never_inside_corridors():
    maze = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    free, corners = _cells(maze)
    assert free == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert corners == [(1, 1), (1, 3), (3, 1)]


def test_cube_out_of_sight_is_rejected():
    qpos = np.zeros((4, 25))
    qpos[:, 15], qpos[:, 16] = 0.1, 0.02
    assert _cube_stays_visible(qpos)
    qpos[2, 15] = -0.31
    assert not _cube_stays_visible(qpos)
    qpos[2, 16] = 0.07  # in the drawer
    assert _cube_stays_visible(qpos)
    qpos[3, 15] = 0.29
    assert not _cube_stays_visible(qpos)
