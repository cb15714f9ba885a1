"""Real OGBench environments by their ids: seeding, silence, errors."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from fidec.envs.factory import factory_of, find_task, known_tasks, make
from fidec.envs.families import ogbench
from fidec.envs.video import check_video
from fidec.errors import ConfigError, EnvError

POINTMAZE = "pointmaze-medium-navigate-singletask-task1-v0"


def trajectory(env, seed, steps=12):
    observation, _ = env.reset(seed=seed)
    rng, seen = np.random.default_rng(seed), [observation]
    for _ in range(steps):
        seen.append(env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))[0])
    return np.stack(seen)


def test_ids_are_looked_up_with_prefix_and_default_task():
    info = find_task("ogbench:cube-single-play-singletask-v0")
    assert info == find_task("cube-single-play-singletask-task2-v0")
    assert (info.env, info.data, info.task, info.horizon, info.visual) == (
        "cube-single",
        "play",
        2,
        200,
        False,
    )
    assert info.dataset == "cube-single-play-v0"
    assert find_task("antsoccer-arena-navigate-singletask-v0").task == 4
    assert find_task("visual-puzzle-3x3-play-singletask-v0").task == 4
    ids = [info.id for info in known_tasks()[0]]
    assert len(ids) == len(set(ids)) > 200


@pytest.mark.parametrize(
    ("task", "suggested"),
    [
        ("cube-singel-play-singletask-task2-v0", "cube-single-play-singletask-task2-v0"),
        ("cube-single-play-v0", "cube-single-play-singletask"),
        ("cube-single-navigate-singletask-v0", "cube-single-"),
        ("HalfCheetah-v5", "fidec tasks"),
    ],
)
def test_an_unknown_id_gets_a_suggestion(task, suggested):
    with pytest.raises(ConfigError, match=f"no task '{task}'.*{suggested}"):
        make(task)


def test_making_resetting_and_stepping_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env: Any = make("cube-single-play-singletask-v0")
        assert env.unwrapped._reward_task_id == 2
        first = trajectory(env, 3)
        assert env.action_space == gymnasium.spaces.Box(-1, 1, (5,), np.float32)
    assert first.shape == (13, 28)
    trajectory(env, 4)
    np.testing.assert_array_equal(trajectory(env, 3), first)
    env.close()


def test_a_seed_determines_a_maze_episode_and_leaves_the_global_generator_alone():
    np.random.seed(0)
    expected = np.random.uniform(size=3)
    np.random.seed(0)
    first = trajectory(make(POINTMAZE), 3)
    second = trajectory(make(POINTMAZE), 3)
    np.testing.assert_array_equal(np.random.uniform(size=3), expected)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(trajectory(make(POINTMAZE), 4)[0], first[0])


def test_success_timing_reaches_the_environment():
    factory = factory_of(POINTMAZE, success_timing="post")
    assert factory is not None
    for made, timing in ((make(POINTMAZE), "pre"), (factory.function()(), "post")):
        base: Any = made.unwrapped
        assert base._success_timing == timing
    assert make("antmaze-umaze-v2", success_timing="post").observation_space.shape == (29,)  # has its own rule
    with pytest.raises(ConfigError, match="no success_timing 'after'"):
        make(POINTMAZE, success_timing="after")  # pyright: ignore[reportArgumentType]


def test_pixels_in_a_process_that_chose_no_opengl_are_refused_before_they_abort_it(monkeypatch):
    import mujoco  # noqa: F401

    monkeypatch.setattr("fidec.envs.factory.gl_environ", lambda: {"MUJOCO_GL": "egl"})
    with pytest.raises(EnvError, match=r"visual-cube-single.*MuJoCo was loaded.*MUJOCO_GL=egl"):
        make("visual-cube-single-play-singletask-task1-v0")


def test_importing_the_package_needs_no_simulator_and_no_jax():
    code = (
        "import sys; import fidec.envs.worker; assert 'numpy' not in sys.modules;"
        "import fidec.envs.factory, fidec.envs.exploration, fidec.envs.evaluation, fidec.envs.video;"
        "from fidec.envs.families import FAMILIES; [FAMILIES.get(name) for name in FAMILIES.names()];"
        "assert not {'jax', 'ogbench', 'mujoco', 'gymnasium_robotics', 'imageio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_package_is_met_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ogbench", None)
    ogbench.tasks.cache_clear()
    with pytest.raises(ConfigError, match=r"OGBench task needs the package ogbench: pip install 'fidec\[ogbench\]'"):
        find_task("cube-single-play-singletask-v0")
    with pytest.raises(
        ConfigError, match=r"no task 'antmaze-umaze-v3'; did you mean antmaze-umaze-v2\?.*fidec\[ogbench"
    ):
        find_task("antmaze-umaze-v3")
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(ConfigError, match=r"a video needs the package imageio: pip install 'fidec\[video\]'"):
        check_video(Path("a.mp4"))
    with pytest.raises(ConfigError, match=r"video a\.gif would be an mp4 file; expected a name that ends in \.mp4"):
        check_video(Path("a.gif"))


@pytest.mark.slow
def test_default_tasks_are_ogbenchs_own():
    default = {info.env: info for info in ogbench.tasks() if info.is_default and not info.visual}
    for name, info in default.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env: Any = gymnasium.make(f"{name}-singletask-v0")
        assert env.unwrapped._reward_task_id == info.task, name
