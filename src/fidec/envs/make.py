"""Tasks and their environments by id, from all environment families."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import Literal

import gymnasium

from fidec.envs.families import FAMILIES
from fidec.envs.family import EnvOptions, TaskInfo
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.quiet import quiet
from fidec.register import unknown


def find_task(task: str, declaration: str = "") -> TaskInfo:
    """The task of an id, with or without its family in front (`ogbench:ID`). Some families need it (`minari:ID`).

    With the `declaration` of a task that was found before, no data is needed to find it.
    """
    prefix, _, name = task.partition(":")
    if not name:
        families, name = ((n, family) for n, family in FAMILIES.entries() if family.bare_ids), task
    else:
        families = [(prefix, FAMILIES.get(prefix))] if prefix in FAMILIES.names() else []
    for family_name, family in families:
        recorded = family.find_declared if declaration else None
        info = recorded(name, declaration) if recorded is not None else family.find(name)
        if info is not None:
            return replace(info, family=family_name)
    known, missing = known_tasks()
    advice = [*missing, f"Expected an id such as {', '.join(_examples())}.", "`fidec tasks --all` lists the tasks."]
    if task in gymnasium.registry:
        advice.insert(0, f"Gymnasium has such an environment: name it with --env {task}.")
    raise unknown("task", task, [info.id for info in known], " ".join(advice))


def known_tasks() -> tuple[list[TaskInfo], list[str]]:
    """The tasks of all families, and a sentence for each family whose package is missing."""
    known, missing = [], []
    for name, family in FAMILIES.entries():
        try:
            known += [replace(info, family=name) for info in family.tasks()]
        except ConfigError as error:
            missing.append(f"{error}.")
    return known, missing


def _examples() -> list[str]:
    return [family.example for _, family in FAMILIES.entries() if family.example]


def make(
    task: str,
    *,
    render_mode: str | None = None,
    success_timing: Literal["pre", "post"] = "pre",
    rendering: Literal["exact", "fast"] = "exact",
) -> gymnasium.Env:
    """Make the environment of a task (see `find_task` and `EnvOptions`). `reset(seed=...)` determines the start.

    Images need OpenGL: without a display, MUJOCO_GL then defaults to egl.
    """
    return make_env(find_task(task), EnvOptions(render_mode, success_timing, rendering))


def make_env(info: TaskInfo, options: EnvOptions = EnvOptions()) -> gymnasium.Env:  # noqa: B008 - it is immutable
    """Make the environment of a task that was found."""
    if info.visual and gl_environ() and "mujoco" in sys.modules:  # the first image would abort the whole process
        raise EnvError(
            f"cannot make the environment {info.id}: images need OpenGL, and MuJoCo was loaded in this process "
            "without a display and without MUJOCO_GL. Set MUJOCO_GL=egl before, or make it in a new process (EnvPool)"
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
        if info.visual or re.search(r"GL|\bgl[A-Z]|OSMesa", str(error)):
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
