"""The one way to an environment: a task of a family, a Gymnasium id or a user's function.

`find_task` looks up a task, `make` makes its environment here, and `factory_of` gives what training, evaluation and
video need to make one in other processes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import gymnasium

from fidec.envs.families import FAMILIES, EnvOptions, TaskInfo, success_or_return, takes_render_mode
from fidec.envs.render import gl_environ
from fidec.envs.wrappers import Bounds, make_for_policy
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.extras import quiet
from fidec.register import unknown
from fidec.types import Spec

MakeEnv = Callable[..., gymnasium.Env]
_FUNCTION = "function "  # no Gymnasium id has a blank


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
    examples = ", ".join(family.example for _, family in FAMILIES.entries() if family.example)
    advice = [*missing, f"Expected an id such as {examples}.", "`fidec tasks --all` lists the tasks."]
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


def make(
    task: str,
    *,
    render_mode: str | None = None,
    success_timing: Literal["pre", "post"] = "pre",
) -> gymnasium.Env:
    """Make the environment of a task (see `find_task` and `EnvOptions`). `reset(seed=...)` determines the start.

    Images need OpenGL: without a display, MUJOCO_GL then defaults to egl.
    """
    return make_env(find_task(task), EnvOptions(render_mode, success_timing))


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


@dataclass(frozen=True)
class EnvFactory:
    """How to make one environment in any process, and how its episodes are scored."""

    name: str
    """For messages, and for the run's configuration."""
    make: Callable[[str | None], gymnasium.Env]
    """Makes it, with a render mode or None."""
    score: Callable[[dict[str, Any]], float | None]
    """The number that tables print, of the summary of an evaluation."""
    note: str = ""
    """What a reader of its scores has to know."""
    declaration: str = ""
    """What a policy records, so that its environment can be made without the data."""
    action_bounds: Bounds | None = None
    """The action bounds of the data, if the policy's own are a part of them (--action-quantile)."""
    scale_actions: bool = False
    """Whether these are scaled to the environment's, which may differ (`fidec.envs.wrappers.fitted`)."""

    def function(self, spec: Spec | None = None, render_mode: str | None = None) -> Callable[[], gymnasium.Env]:
        """A function without arguments that makes the environment, as a policy of this specification acts in it."""
        make = partial(self.make, render_mode)
        if spec is None:
            return make
        return partial(make_for_policy, make, self.name, spec, self.action_bounds or spec.bounds, self.scale_actions)


def factory_of(
    task: str | None = None,
    env: str | MakeEnv | None = None,
    *,
    success_timing: Any = "pre",
    declaration: str = "",
    scale_actions: bool = False,
    action_bounds: Bounds | None = None,
) -> EnvFactory | None:
    """The environment of a task, or of an `env`: a Gymnasium id or a function that returns an environment.

    None if neither is given. The id is looked up now, or found by the `declaration` that a policy recorded; the
    environment is made later, in other processes. For `scale_actions` and `action_bounds` see `EnvFactory`.
    """
    if task is not None and env is not None:
        raise ConfigError(
            f"both task {task!r} and env {describe_env(env)!r} are given. A task has its own environment: omit one"
        )
    if task is None and env is None:
        return None
    actions: dict[str, Any] = {"scale_actions": scale_actions, "action_bounds": action_bounds}
    if env is not None and not isinstance(env, str):
        return replace(_from_function(env), **actions)
    if env is not None and not env.strip():
        raise ConfigError("--env is empty; expected a Gymnasium id, such as Pendulum-v1 or my_package:MyEnv-v0")
    if env is not None and is_function(env):
        raise ConfigError(
            f"the environment was given in Python ({env}) and is not stored with the run. Give it again: "
            "fidec.resume(run, env=make_env) or fidec.evaluate(run, env=make_env)"
        )
    info = find_task(task if task is not None else f"gymnasium:{env}", declaration)
    options = EnvOptions(success_timing=success_timing)
    return EnvFactory(
        name=info.id,
        make=partial(_make_task, info, options),
        score=partial(FAMILIES.get(info.family).score, info),
        note=info.note,
        declaration=info.declaration,
        **actions,
    )


def describe_env(env: str | MakeEnv | None) -> str | None:
    """An environment in words, for the run's configuration: a Gymnasium id, or which function makes it."""
    if env is None or isinstance(env, str):
        return env
    while isinstance(env, partial):
        env = env.func
    return f"{_FUNCTION}{getattr(env, '__module__', '?')}.{getattr(env, '__qualname__', type(env).__qualname__)}"


def is_function(name: str) -> bool:
    """Whether `describe_env` gave this description of a function."""
    return name.startswith(_FUNCTION)


def _make_task(info: TaskInfo, options: EnvOptions, render_mode: str | None) -> gymnasium.Env:
    return make_env(info, replace(options, render_mode=render_mode))


def _from_function(make: MakeEnv) -> EnvFactory:
    if isinstance(make, gymnasium.Env):
        raise ConfigError("env is an environment; expected a function that returns one, since several are made")
    if not callable(make):
        raise ConfigError(
            f"env is a {type(make).__name__}; expected a Gymnasium id, or a function that returns an environment"
        )
    name = describe_env(make) or ""
    info = TaskInfo(id=name, env=name)
    return EnvFactory(name, partial(_call, make, name), partial(success_or_return, info))


def _call(make: MakeEnv, name: str, render_mode: str | None) -> gymnasium.Env:
    """Call a user's function. For videos it gets render_mode="rgb_array" if it takes that."""
    passed = render_mode is not None and takes_render_mode(make)
    env = make(render_mode=render_mode) if passed else make()
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{name} returned a {type(env).__name__}; expected a gymnasium.Env")
    return env
