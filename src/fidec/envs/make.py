"""OGBench single-task environments, named as OGBench names them.

OGBench is imported inside the functions: evaluation workers import this module before they have chosen an
OpenGL backend, and MuJoCo reads that choice (`MUJOCO_GL`) once, when it is first imported.
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np

from fidec.errors import ConfigError, EnvError
from fidec.quiet import global_numpy_seed, quiet

# The task that `...-singletask-v0` stands for. OGBench sets it while it makes an environment, not in its
# registry.
_DEFAULT_TASKS = {"antsoccer": 4, "cube": 2, "scene": 2, "puzzle-3x3": 4, "puzzle-4x4": 4, "puzzle": 2}

# Registered by OGBench 1.2.2, but without data, and MuJoCo refuses its scene.
_BROKEN = "humanoidmaze-teleport"


@dataclass(frozen=True)
class TaskInfo:
    """One OGBench single-task environment with one kind of data."""

    id: str  # cube-single-play-singletask-task2-v0
    family: str  # cube-single
    data: str  # play
    task: int  # 2
    is_default: bool  # whether cube-single-play-singletask-v0 means this task
    horizon: int  # steps until an episode is cut off
    visual: bool  # 64 x 64 pixels instead of the state

    @property
    def env_id(self) -> str:
        """The id in gymnasium's registry, which does not mention the data."""
        return f"{self.family}-singletask-task{self.task}-v0"

    @property
    def dataset(self) -> str:
        """The OGBench data file that all tasks of this family share."""
        return f"{self.family}-{self.data}-v0"


def known_tasks() -> list[TaskInfo]:
    """Every single-task id that the installed OGBench can make, in the order of its registry."""
    _import_ogbench()
    found = []
    for env_id, spec in gymnasium.registry.items():
        family, separator, rest = env_id.partition("-singletask-task")
        if not separator or spec.max_episode_steps is None or _BROKEN in family:
            continue
        task = int(rest.removesuffix("-v0"))
        default = next(
            (number for name, number in _DEFAULT_TASKS.items() if family.removeprefix("visual-").startswith(name)),
            1,
        )
        for data in _data_kinds(family):
            found.append(
                TaskInfo(
                    id=f"{family}-{data}-singletask-task{task}-v0",
                    family=family,
                    data=data,
                    task=task,
                    is_default=task == default,
                    horizon=spec.max_episode_steps,
                    visual=family.startswith("visual-"),
                )
            )
    return found


def find_task(task: str) -> TaskInfo:
    """Look up an id, with or without `ogbench:` in front; `-singletask-v0` means the default task."""
    name = task.removeprefix("ogbench:")
    known = known_tasks()
    by_id = {info.id: info for info in known}
    by_id |= {f"{i.family}-{i.data}-singletask-v0": i for i in known if i.is_default}
    if name in by_id:
        return by_id[name]
    near = difflib.get_close_matches(name, by_id, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f"unknown task {task!r}: expected an OGBench single-task id such as "
        f"cube-single-play-singletask-task2-v0.{hint} `fidec tasks` lists them all."
    )


def make(
    task: str, *, render_mode: str | None = None, success_timing: Literal["pre", "post"] = "pre"
) -> gymnasium.Env:
    """Make the environment of an OGBench single-task id.

    `success_timing="pre"` judges the state before the action, as the data sets are labelled; "post" is what
    OGBench did before 1.2. `reset(seed=...)` determines the whole start (see `_SeededReset`). Rendering and
    pixel tasks need OpenGL: without a display, MUJOCO_GL then defaults to egl.
    """
    if render_mode is not None or task.removeprefix("ogbench:").startswith("visual-"):
        os.environ.update(gl_environ())
    info = find_task(task)
    ogbench = _import_ogbench()
    try:
        with quiet():
            env = ogbench.make_env_and_datasets(
                info.id,
                env_only=True,
                render_mode=render_mode,
                success_timing=success_timing,
                disable_env_checker=True,
            )
            return _SeededReset(env)
    except Exception as error:
        raise EnvError(f"cannot make environment {info.id}: {type(error).__name__}: {error}") from error


class _SeededReset(gymnasium.Wrapper):
    """Makes `reset(seed=...)` reach every generator that OGBench's reset draws from.

    The mazes draw start and goal from NumPy's global generator, so that equal seeds give different episodes.
    The manipulation environments take a few random steps at reset, sampled from a `Box` that they build anew
    on every access, unseeded and with a warning about its precision.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        base = env.unwrapped
        space = env.action_space
        if isinstance(getattr(type(base), "action_space", None), property):
            assert isinstance(space, gymnasium.spaces.Box)
            box = gymnasium.spaces.Box(space.low, space.high, dtype=np.float32)
            fixed = property(lambda self: box)
            # For this one object only: a subclass whose action_space is always the same box.
            base.__class__ = type(type(base).__name__, (type(base),), {"action_space": fixed})
        self._observation_space = env.observation_space  # a property that computes an observation each time

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is None:
            return self.env.reset(options=options)
        self.env.unwrapped.action_space.seed(seed)
        with global_numpy_seed(seed):
            return self.env.reset(seed=seed, options=options)


def _data_kinds(family: str) -> tuple[str, ...]:
    if family.removeprefix("visual-").startswith(("cube", "scene", "puzzle")):
        return ("play", "noisy")
    return ("navigate", "stitch", "explore") if "antmaze" in family else ("navigate", "stitch")


def gl_environ() -> dict[str, str]:
    """What to add to the environment so that MuJoCo can draw: EGL where there is no display and no other choice."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or display or os.environ.get("MUJOCO_GL"):
        return {}
    return {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}


def _import_ogbench() -> Any:
    try:
        with quiet():
            import ogbench
    except Exception as error:  # a wrong MUJOCO_GL makes the import of mujoco raise more than ImportError
        raise EnvError(
            f"cannot import ogbench: {type(error).__name__}: {error}. "
            "`fidec doctor` shows what is installed and whether MUJOCO_GL fits this machine."
        ) from error
    return ogbench
