"""Videos of a policy, rendered without a display in a process of their own."""

from __future__ import annotations

import errno
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from fidec.envs.evaluation import Act, Episode, episode_seed
from fidec.envs.processes import EVENTS, EnvProcess, pickled, wait_ready
from fidec.envs.render import Drawing, gl_environ
from fidec.envs.worker import describe
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.extras import require
from fidec.parts import map_parts

_GREEN = np.array([40, 190, 90], np.uint8)
_SPEED = 20.0  # steps a second of an environment that does not say, such as OGBench's manipulation
_SMOOTH = 15  # frames a second are enough; drawing takes most of the time


@contextmanager
def _quiet_fork() -> Iterator[None]:
    """ffmpeg is started by a fork that executes at once: JAX's warning about forks does not apply."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


def check_video(path: Path) -> None:
    """Raise an error if no video can be written: the file has another ending, or a package or ffmpeg is missing."""
    if path.suffix.lower() != ".mp4":
        raise ConfigError(f"the video {path} would be an mp4 file; expected a name that ends in .mp4")
    require("imageio", "video", "a video")
    try:
        require("imageio_ffmpeg", "video", "a video").get_ffmpeg_exe()
    except RuntimeError as error:
        raise EnvError(f"no video: {error}; `pip install imageio-ffmpeg` brings a ffmpeg") from error


@_quiet_fork()
def record(
    make_env: Callable[[], gymnasium.Env],
    act: Act,
    path: Path,
    *,
    name: str = "unnamed",
    seed: int,
    fresh: int | None = None,
    episodes: Sequence[int] = (0,),
    size: int = 320,
    timeout: float = 60.0,
) -> list[Episode]:
    """Write an mp4 of some episodes of `EnvPool.run(act, ..., seed, fresh=fresh)`, given by their indices.

    It has the speed of the environment's `metadata["render_fps"]`. Of a fast environment not every step is drawn.
    The last frame of an episode stays for a second, with a green border after a success. `size` (pixels) is rounded
    to a multiple of 16, which video codecs need. The environment steps and draws in its own process. If OpenGL aborts
    that process, or the file cannot be written, an EnvError says why there is no video. So does whatever a policy, an
    image or ffmpeg raises.
    """
    check_video(path)
    imageio = require("imageio.v2", "video", "a video")
    part = path.with_name(f".{path.stem}.part.mp4")
    size = max(16, round(size / 16) * 16)
    process = EnvProcess(pickled(make_env), gl_environ())
    try:
        if (reason := wait_ready([process], name, 2 * timeout)[0]) is not None:
            raise EnvError(f"no video: the environment cannot be made: {reason}")
        stage = _Stage(process, size, timeout)
        stage.ask("reset", episode_seed(seed, 0, fresh))
        stage = replace(stage, drawing=stage.ask("drawing", None))
        stage.picture()  # an environment that cannot draw fails here, before there is a file
        played = []
        fps, every = _timing(process.facts["render_fps"])
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()  # what cannot be written fails here and not in ffmpeg
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        writer: Any = imageio.get_writer(part, fps=fps, codec="libx264", quality=7, macro_block_size=16)
        with writer:
            for index in episodes:
                episode, pictures = _play(stage, act, index, episode_seed(seed, index, fresh), every)
                played.append(episode)
                for picture in pictures + [_last(pictures[-1], episode)] * round(fps):
                    writer.append_data(picture)
        os.replace(part, path)
        return played
    except OSError as error:  # no space, no permission; ffmpeg's own error has many lines
        reason = error.strerror or str(error).partition("\n")[0]
        raise EnvError(f"no video: cannot write {path}: {reason}. Choose another file") from error
    except FidecError:
        raise
    except Exception as error:
        raise EnvError(f"no video: {describe(error)}") from error
    finally:
        process.end(grace=2.0)
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _timing(render_fps: float | None) -> tuple[float, int]:
    """Frames a second of the video, and of how many steps one is drawn."""
    speed = render_fps if render_fps is not None and 1 <= render_fps <= 1000 else _SPEED
    every = math.ceil(speed / _SMOOTH)
    return speed / every, every


def _play(stage: _Stage, act: Act, index: int, seed: int, every: int) -> tuple[Episode, list[np.ndarray]]:
    observation = stage.ask("reset", seed)
    pictures = [stage.picture()]
    total, length, over, success = 0.0, 0, False, None
    while not over:
        lane = map_parts(lambda array: array[None], observation)
        action = np.asarray(act(lane, np.array([index]), np.array([length])), np.float32)[0]
        observation, reward, terminated, truncated, success = stage.ask("step", action)
        total, length, over = total + reward, length + 1, terminated or truncated
        if over or length % every == 0:
            pictures.append(stage.picture())
    return Episode(index, seed, 0, "ok", total, length, success), pictures


@dataclass(frozen=True)
class _Stage:
    """The process that plays, asked one thing at a time."""

    process: EnvProcess
    size: int
    timeout: float
    drawing: Drawing | None = None  # known after the first reset

    def ask(self, command: str, argument: Any) -> Any:
        kind, value = self.process.ask(command, argument, self.timeout)
        if kind == "ok":
            return value
        if command == "render":
            raise EnvError(f"no video: {_why_not_drawn(self.drawing, value)}")
        raise EnvError(f"no video: the environment {EVENTS[kind]} ({value})")

    def picture(self) -> np.ndarray:
        picture = self.ask("render", self.size)
        if picture.ndim != 3 or picture.shape[2] != 3 or min(picture.shape[:2]) < 16:
            raise EnvError(
                f"no video: frames have shape {picture.shape}; expected (height, width, 3) from 16 pixels on"
            )
        height, width = (length - length % 16 for length in picture.shape[:2])
        return picture[:height, :width]


def _why_not_drawn(drawing: Drawing | None, reason: str) -> str:
    if drawing is not None and drawing.mujoco:
        return (
            f"OpenGL cannot draw here without a display ({reason}); on Debian or Ubuntu install libegl1 and "
            "libgl1-mesa-dri, or set MUJOCO_GL=osmesa"
        )
    text = f"the environment cannot draw ({reason})"
    if drawing is None or drawing.mode == "rgb_array":
        return text
    if "rgb_array" in drawing.modes:
        return (
            f"{text}. It was made with render_mode={drawing.mode!r}: let the function that makes it have a parameter "
            "render_mode and pass it on"
        )
    known = f"its render modes are {', '.join(drawing.modes)}" if drawing.modes else "it declares no render modes"
    return f"{text}. A video needs the render mode rgb_array, and {known}"


def _last(picture: np.ndarray, episode: Episode) -> np.ndarray:
    """The last picture of an episode, framed in green if it was a success."""
    if not episode.success:
        return picture
    framed = picture.copy()
    framed[:6] = framed[-6:] = framed[:, :6] = framed[:, -6:] = _GREEN
    return framed
