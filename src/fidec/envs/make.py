"""Tasks and their environments by id, from all environment families."""

from __future__ import annotations

import os
import sys

import gymnasium

from fidec.envs.families import FAMILIES
from fidec.envs.family import EnvFamily, EnvOptions, TaskInfo
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.quiet import quiet
from fidec.register import unknown


def families() -> list[EnvFamily]:
    """All environment families, the built-in ones first."""
    names = [*FAMILIES.builtin(), *FAMILIES.plugins()]
    return [FAMILIES.get(name) for name in names]


def find_task(task: str) -> TaskInfo:
    """The task of an id, with or without its family in front (`ogbench:ID`); some families need it (`minari:ID`)."""
    prefix, _, name = task.partition(":")
    if name and prefix in FAMILIES.names():
        info = FAMILIES.get(prefix).find(name)
    elif name:
        info = None
    else:
        matches = (family.find(task) for family in families() if family.bare_ids)
        info = next((info for info in matches if info is not None), None)
    if info is None:
        raise _unknown_task(task)
    return info


def _unknown_task(task: str) -> ConfigError:
    known, advice = [], ""
    for family in families():
        try:
            known += [info.id for info in family.tasks()]
        except ConfigError as error:
            advice += f"{error}. "
    if task in gymnasium.registry:
        advice += f"Gymnasium has such an environment: name it with --env {task}. "
    examples = ", ".join(family.example for family in families() if family.example)
    advice += f"Expected an id such as {examples}. `fidec tasks --all` lists the tasks."
    return unknown("task", task, known, advice)


def make(
    task: str, *, render_mode: str | None = None, success_timing: str = "pre", rendering: str = "exact"
) -> gymnasium.Env:
    """Make the environment of a task (see `find_task` and `EnvOptions`). `reset(seed=...)` determines the whole start.

    Images need OpenGL: without a display, MUJOCO_GL then defaults to egl.
    """
    if success_timing not in ("pre", "post"):
        raise ConfigError(f"success_timing must be 'pre' or 'post', not {success_timing!r}")
    if rendering not in ("exact", "fast"):
        raise ConfigError(f"rendering must be 'exact' or 'fast', not {rendering!r}")
    return make_env(find_task(task), EnvOptions(render_mode, success_timing, rendering))


def make_env(info: TaskInfo, options: EnvOptions = EnvOptions()) -> gymnasium.Env:  # noqa: B008 - it is immutable
    """Make the environment of a task that was found."""
    if info.visual and gl_environ() and "mujoco" in sys.modules:  # the first image would abort the whole process
        raise EnvError(
            f"cannot make the environment {info.id}: images need OpenGL, and MuJoCo was loaded in this process without "
            "a display and without MUJOCO_GL. Set MUJOCO_GL=egl before, or make it in a process of its own (EnvPool)"
        )
    if options.render_mode is not None or info.visual:
        os.environ.update(gl_environ())
    try:
        with quiet():
            return FAMILIES.get(info.family).make(info, options)
    except FidecError:
        raise
    except Exception as error:  # a simulator may raise anything
        reason = f"cannot make the environment {info.id}: {type(error).__name__}: {error}"
        if info.visual or (options.render_mode is not None and "mujoco" in sys.modules):
            reason += (
                ". Images need OpenGL (MUJOCO_GL=egl without a display): on Debian or Ubuntu install libegl1 and "
                "libgl1-mesa-dri, or set MUJOCO_GL=osmesa"
            )
        raise EnvError(reason) from error


def gl_environ() -> dict[str, str]:
    """The environment variables that let MuJoCo draw: EGL if there is no display and nothing else was chosen."""
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or display or os.environ.get("MUJOCO_GL"):
        return {}
    return {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
