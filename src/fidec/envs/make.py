"""Environments by the ids of their tasks: OGBench's single tasks, D4RL's antmaze and Adroit, Minari data sets.

OGBench is imported inside the functions: evaluation workers import this module before they have chosen an
OpenGL backend, and MuJoCo reads that choice (`MUJOCO_GL`) once, when it is first imported.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium
import numpy as np

from fidec.envs import d4rl
from fidec.envs.info import TaskInfo
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.quiet import global_numpy_seed, quiet
from fidec.register import unknown

# The task that `...-singletask-v0` stands for. OGBench sets it while it makes an environment, not in its
# registry.
_DEFAULT_TASKS = {"antsoccer": 4, "cube": 2, "scene": 2, "puzzle-3x3": 4, "puzzle-4x4": 4, "puzzle": 2}

# Registered by OGBench 1.2.2, but without data, and MuJoCo refuses its scene.
_BROKEN = "humanoidmaze-teleport"


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
    """Look up an id, with or without `ogbench:` or `d4rl:` in front; OGBench's `-singletask-v0` means the default.

    `minari:ID` is the environment that the local data set of this id declares, if it is one that we know.
    """
    suite, _, name = task.rpartition(":")
    if suite == "minari":
        from fidec.envs import minari

        return minari.task_info(task)
    by_id: dict[str, TaskInfo] = {}
    if suite in ("", "d4rl"):
        by_id |= d4rl.tasks()
    if suite in ("", "ogbench") and name not in by_id:
        known = known_tasks()
        by_id |= {info.id: info for info in known}
        by_id |= {f"{i.family}-{i.data}-singletask-v0": i for i in known if i.is_default}
    if name in by_id:
        return by_id[name]
    raise unknown(
        "task",
        task,
        by_id,
        "Expected an OGBench single-task id such as cube-single-play-singletask-task2-v0, a D4RL id such as "
        "antmaze-medium-play-v2 or door-human-v1, or minari:ID. `fidec tasks --all` lists the tasks.",
    )


def make(
    task: str, *, render_mode: str | None = None, success_timing: str = "pre", rendering: str = "exact"
) -> gymnasium.Env:
    """Make the environment of a task (see `find_task`). `reset(seed=...)` determines the whole start.

    On OGBench, `success_timing="pre"` judges the state before the action, as the data sets are labelled; "post" is
    what OGBench did before 1.2. D4RL and Minari have their own rule, which this does not change. Pixel
    tasks are drawn as OGBench draws them (`rendering="exact"`) or in a fifth of the time ("fast", other pixels: see
    `fidec.envs.fast_render`). Pictures need OpenGL: without a display, MUJOCO_GL then defaults to egl.
    """
    if success_timing not in ("pre", "post"):
        raise ConfigError(f"success_timing must be 'pre' or 'post', not {success_timing!r}")
    if rendering not in ("exact", "fast"):
        raise ConfigError(f"rendering must be 'exact' or 'fast', not {rendering!r}")
    pixels = task.removeprefix("ogbench:").startswith("visual-")
    if pixels and gl_environ() and "mujoco" in sys.modules:  # it would abort the whole process at the first picture
        raise EnvError(
            f"cannot make environment {task}: pictures need OpenGL, and MuJoCo was loaded in this process without a "
            "display and without MUJOCO_GL. Set MUJOCO_GL=egl before, or make it in a process of its own (EnvPool)"
        )
    if render_mode is not None or pixels:
        os.environ.update(gl_environ())
    info = find_task(task)
    try:
        with quiet():
            if info.suite == "d4rl":
                return d4rl.make(info, render_mode)
            if info.suite == "minari":
                from fidec.envs import minari

                return minari.make(info, render_mode)
            env = _import_ogbench().make_env_and_datasets(
                info.id,
                env_only=True,
                render_mode=render_mode,
                success_timing=success_timing,
                disable_env_checker=True,
            )
            if info.visual and rendering == "fast":
                from fidec.envs.fast_render import install

                install(env)
            return _SeededReset(env)
    except FidecError:
        raise
    except Exception as error:
        why = f"cannot make environment {info.id}: {type(error).__name__}: {error}"
        if info.visual or render_mode is not None:
            why += (
                ". Pictures need OpenGL (MUJOCO_GL=egl without a display): on Debian or Ubuntu install libegl1 and "
                "libgl1-mesa-dri, or set MUJOCO_GL=osmesa"
            )
        raise EnvError(why) from error


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
