"""Episodes are functions of (seed, split, index), and the shortcuts change no bit of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fidec.make.recipes import RECIPES
from fidec.make.worker import open_world

PLAY = [name for name, recipe in RECIPES.items() if recipe.kind == "play"]
QUICK = ["cube-single-play-v0", "scene-play-v0"]
MAZES = [name for name, recipe in RECIPES.items() if recipe.kind == "navigate" and not recipe.experts]


def short(name: str, rows: int):
    return replace(RECIPES[name], episode_rows=rows)


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert a[key].dtype == b[key].dtype
        assert a[key].tobytes() == b[key].tobytes(), key


@pytest.mark.parametrize("name", QUICK)
def test_play_without_shortcuts_and_without_memory(name):
    """OGBench's own step and planner give the same bytes, in a fresh environment or after another episode."""
    from fidec.make.play import PlayWorld

    recipe = short(name, 130)
    world = open_world(recipe)
    first, second = world.episode(3, "train", 0), world.episode(3, "train", 1)
    assert_same(first, world.episode(3, "train", 0))
    plain = PlayWorld(recipe, fast=False)
    assert_same(second, plain.episode(3, "train", 1))
    for other in (first, world.episode(4, "train", 1), world.episode(3, "val", 1)):
        assert not np.array_equal(second["observations"], other["observations"])

    assert {key: str(array.dtype) for key, array in second.items()} == recipe.dtypes
    assert second["observations"].shape[0] == 130
    assert second["terminals"].tolist() == [False] * 129 + [True]
    assert np.abs(second["actions"]).max() <= 1
    assert np.isfinite(second["observations"]).all()
    if recipe.has_buttons and name != "scene-play-v0":
        assert (np.diff(second["button_states"], axis=0) != 0).any()  # the oracle did press something


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAY)
def test_play_without_shortcuts_full_length(name):
    from fidec.make.play import PlayWorld

    fast, plain = PlayWorld(RECIPES[name]), PlayWorld(RECIPES[name], fast=False)
    for index in range(2):
        assert_same(fast.episode(0, "train", index), plain.episode(0, "train", index))


@pytest.mark.parametrize("name", MAZES)
def test_navigate_is_ogbench_with_its_search_at_every_step(name):
    from fidec.make.navigate import _cells, pick
    from fidec.make.world import open_env, seed_generators

    recipe = short(name, 150)
    world = open_world(recipe)
    world.episode(5, "train", 0)
    made = world.episode(5, "train", 1)

    env = open_env(recipe.env_id)
    env_seed = seed_generators(5, "train", 1, 0)
    cells, corners = _cells(env.maze_map)
    start, goal = pick(cells), pick(corners)
    ob, _ = env.reset(seed=env_seed, options={"task_info": {"init_ij": start, "goal_ij": goal}})
    for t in range(recipe.episode_rows):
        subgoal, _ = env.get_oracle_subgoal(env.get_xy(), env.cur_goal_xy)
        direction = subgoal - env.get_xy()
        direction = direction / (np.linalg.norm(direction) + 1e-6)
        action = np.clip(direction + np.random.normal(0, 0.5, 2), -1, 1)
        assert np.float32(ob).tobytes() == made["observations"][t].tobytes()
        assert np.float32(action).tobytes() == made["actions"][t].tobytes()
        ob, _, _, _, info = env.step(action)
        if info["success"]:
            env.set_goal(pick(corners))
    assert made["terminals"].tolist() == [False] * 149 + [True]


def test_corridors_are_no_goals():
    from fidec.make.navigate import _cells

    maze = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    free, corners = _cells(maze)
    assert free == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]
    assert corners == [(1, 1), (1, 3), (3, 1)]


def test_cube_out_of_sight_is_rejected():
    from fidec.make.play import _cube_stays_visible

    qpos = np.zeros((4, 25))
    qpos[:, 15], qpos[:, 16] = 0.1, 0.02
    assert _cube_stays_visible(qpos)
    qpos[2, 15] = -0.31
    assert not _cube_stays_visible(qpos)
    qpos[2, 16] = 0.07  # in the drawer
    assert _cube_stays_visible(qpos)
    qpos[3, 15] = 0.29
    assert not _cube_stays_visible(qpos)
