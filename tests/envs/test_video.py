"""Videos of episodes: how an environment is made to draw, what is filmed, and why there is no video."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from fidec.envs.evaluation import episode_seed
from fidec.envs.factory import factory_of, make
from fidec.envs.render import drawing
from fidec.envs.video import _timing, _why_not_drawn, record
from fidec.errors import EnvError
from fidec.train.evaluation import PolicyEvaluation
from helpers.own_env import Reach

POINTMAZE = "pointmaze-medium-navigate-singletask-task1-v0"


def zeros(dim):
    return lambda observations, ids, steps: np.zeros((len(ids), dim))


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
    played = record(Frames, zeros(1), path, seed=3, episodes=(0, 7))
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


class Drawn(gymnasium.Env):
    """Draws by the mode that it was made with, as Gymnasium's own do."""

    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode


class OnlyText(Drawn):
    metadata = {"render_modes": ["ansi", "human"]}  # noqa: RUF012


class Undrawn(Drawn):
    def __init__(self):
        super().__init__()


@pytest.mark.parametrize(
    ("creator", "mode"),
    [
        (Drawn, "rgb_array"),
        (lambda **options: Drawn(**options), "rgb_array"),
        (lambda render_mode="human": Drawn(render_mode), "rgb_array"),
        (lambda: Drawn(), None),
        (OnlyText, None),
        (Undrawn, None),
    ],
)
def test_an_environment_that_can_draw_is_made_with_the_render_mode(creator, mode):
    gymnasium.register("Drawn-v0", creator)
    try:
        assert make("gymnasium:Drawn-v0", render_mode="rgb_array").render_mode == mode
    finally:
        gymnasium.registry.pop("Drawn-v0")
    if creator is not OnlyText:  # a function of the user is called with what it takes
        factory = factory_of(env=creator)
        assert factory is not None
        assert factory.function(render_mode="rgb_array")().render_mode == mode


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Drawn("rgb_array"), r"cannot draw \(no pygame\)$"),
        (Drawn(), r"cannot draw \(no pygame\)\. It was made with render_mode=None: let the function that makes it"),
        (OnlyText(), r"\. A video needs the render mode rgb_array, and its render modes are ansi, human$"),
        (gymnasium.Env(), "and it declares no render modes$"),
    ],
)
def test_only_a_mujoco_scene_that_is_not_drawn_is_blamed_on_opengl(env, words):
    mujoco: Any = pytest.importorskip("mujoco")

    assert re.search(words, _why_not_drawn(drawing(env), "no pygame"))
    env.model, env.data = mujoco.MjModel.from_xml_string("<mujoco/>"), object()
    assert _why_not_drawn(drawing(env), "SIGABRT").startswith("OpenGL cannot draw here")


def test_whatever_is_raised_is_the_reason_why_there_is_no_video(tmp_path, monkeypatch):
    """A policy that fails stands for an image or an encoder that does."""

    def failing(observations, ids, steps):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("fidec.train.evaluation.episode_policy", lambda *_: failing)
    policy = SimpleNamespace(algorithm=None, state=None, spec=None)
    env = SimpleNamespace(name="reach", function=lambda spec, render_mode: partial(Reach, render_mode))
    saved: Any = SimpleNamespace(policy=policy, env=env, seed=0, step=0, spec=None, act=None, fresh=False)
    reason = PolicyEvaluation.record(saved, tmp_path / "x.mp4")
    assert re.fullmatch(r"no video: ZeroDivisionError: division by zero \(test_video\.py:\d+\)", reason or "")
    assert list(tmp_path.iterdir()) == []


def test_a_maze_can_be_filmed(tmp_path):
    path = tmp_path / "maze.mp4"
    factory = factory_of(POINTMAZE)
    assert factory is not None
    make_env = factory.function(render_mode="rgb_array")
    try:
        record(lambda: TimeLimit(make_env(), 1), zeros(2), path, seed=0, size=130)
    except EnvError as error:
        pytest.skip(str(error))
    frame = np.asarray(imageio.get_reader(path).get_data(1))
    assert frame.shape == (128, 128, 3)
    assert frame.std() > 10


def test_without_opengl_the_reason_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    with pytest.raises(EnvError, match=r"^no video: ") as caught:
        record(partial(make, POINTMAZE), zeros(2), tmp_path / "x.mp4", seed=0)
    assert "nonsense" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
