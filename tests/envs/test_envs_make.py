"""Real OGBench environments by their ids: seeding, silence, errors, videos."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from fidec.envs.factory import factory_of
from fidec.envs.families import ogbench
from fidec.envs.make import find_task, known_tasks, make
from fidec.envs.pool import episode_seed
from fidec.envs.video import _timing, check_video, record
from fidec.errors import ConfigError, EnvError

POINTMAZE = "pointmaze-medium-navigate-singletask-task1-v0"


def random_policy(dim):
    def act(observations, ids, steps):
        pairs = zip(ids, steps, strict=True)
        return np.stack([np.random.default_rng([e, s]).uniform(-1, 1, dim) for e, s in pairs])

    return act


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
    with pytest.raises(ConfigError, match="'pre' or 'post', not 'after'"):
        make(POINTMAZE, success_timing="after")


def test_pixels_in_a_process_that_chose_no_opengl_are_refused_before_they_abort_it(monkeypatch):
    import mujoco  # noqa: F401

    monkeypatch.setattr("fidec.envs.make.gl_environ", lambda: {"MUJOCO_GL": "egl"})
    with pytest.raises(EnvError, match=r"visual-cube-single.*MuJoCo was loaded.*MUJOCO_GL=egl"):
        make("visual-cube-single-play-singletask-task1-v0")


def test_importing_the_package_needs_no_simulator_and_no_jax():
    code = (
        "import sys; import fidec.envs.worker; assert 'numpy' not in sys.modules;"
        "import fidec.envs.factory, fidec.envs.lanes, fidec.envs.evaluate, fidec.envs.video, fidec.envs.render;"
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
        check_video()


@pytest.mark.parametrize(
    ("render_fps", "timing"),
    [(None, (10, 2)), (20, (10, 2)), (10, (10, 1)), (4, (4, 1)), (50, (12.5, 4)), (0, (10, 2)), (np.nan, (10, 2))],
)
def test_a_video_has_the_speed_of_its_environment(render_fps, timing):
    assert _timing(render_fps) == timing


def test_a_video_has_every_second_step_and_a_green_frame_for_success(tmp_path):
    class Frames(gymnasium.Env):  # local, so that its code is sent to the process
        """Succeeds after four steps; the brightness of a frame is the number of the step."""

        metadata = {"render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it
        observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.t += 1
            return np.zeros(1, np.float32), 1.0, self.t == 4, False, {"success": True}

        def render(self):
            return np.full((50, 64, 3), 40 * self.t, np.uint8)

    path = tmp_path / "deep" / "video.mp4"
    played = record(Frames, random_policy(1), path, seed=3, episodes=(0, 7))
    assert [(e.index, e.seed, e.return_, e.length) for e in played] == [
        (0, episode_seed(3, 0), 4.0, 4),
        (7, episode_seed(3, 7), 4.0, 4),
    ]
    assert imageio.get_reader(path).get_meta_data()["fps"] == 15
    frames = [np.asarray(frame) for frame in imageio.mimread(path)]
    assert frames[0].shape == (48, 64, 3)
    brightness = [frame[24, 32].mean() for frame in frames]
    assert brightness == pytest.approx([0, 80, *[160] * 16] * 2, abs=12)
    red, green, _ = frames[17][1, 32]
    assert green > int(red) + 60
    assert [p.name for p in path.parent.iterdir()] == ["video.mp4"]


def test_a_maze_can_be_filmed(tmp_path):
    path = tmp_path / "maze.mp4"
    factory = factory_of(POINTMAZE)
    assert factory is not None
    make_env = factory.function(render_mode="rgb_array")
    try:
        record(lambda: TimeLimit(make_env(), 1), random_policy(2), path, seed=0, size=130)
    except EnvError as error:
        pytest.skip(str(error))
    frame = np.asarray(imageio.get_reader(path).get_data(1))
    assert frame.shape == (128, 128, 3)
    assert frame.std() > 10


def test_without_opengl_the_reason_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    with pytest.raises(EnvError, match=r"^no video: ") as caught:
        record(partial(make, POINTMAZE), random_policy(2), tmp_path / "x.mp4", seed=0)
    assert "nonsense" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_default_tasks_are_ogbenchs_own():
    default = {info.env: info for info in ogbench.tasks() if info.is_default and not info.visual}
    for name, info in default.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env: Any = gymnasium.make(f"{name}-singletask-v0")
        assert env.unwrapped._reward_task_id == info.task, name
