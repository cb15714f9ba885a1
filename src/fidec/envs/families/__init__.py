"""The environment families: one module each, and the entry-point group `fidec.environments`.

A module defines `FAMILY`, an `EnvFamily`: the ids that it knows, how it makes an environment, and how it scores
episodes. The module's name is the family's name, and so is that of an entry point.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium

from fidec.register import Register, check_choices


@dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before its environment is made."""

    id: str  # cube-single-play-singletask-task2-v0, door-human-v1, minari:D4RL/door/human-v2
    env: str  # the environment that several tasks share: cube-single, door, AdroitHandDoor-v1
    family: str = ""  # ogbench, d4rl, minari, gymnasium or a plug-in; `find_task` fills it in
    horizon: int | None = None  # steps until an episode is cut off, if it is known
    dataset: str = ""  # the name of its data
    data: str = ""  # the kind of data, such as play or human; empty if there is only one
    task: int = 0  # the number of the task in its environment; 0 if there is only one
    is_default: bool = True  # whether OGBench's cube-single-play-singletask-v0 means this task
    visual: bool = False  # whether observations are images
    note: str = ""  # what a reader of its scores has to know
    declaration: str = ""  # what a policy records, so that its environment can be made without the data


@dataclass(frozen=True)
class EnvOptions:
    """How an environment is made. A family uses what applies to it.

    `success_timing` is OGBench's: "pre" judges the state before the action, as the data sets are labelled; "post" is
    what OGBench did before 1.2.
    """

    render_mode: str | None = None
    success_timing: Literal["pre", "post"] = "pre"

    def __post_init__(self):
        check_choices(self)


def takes_render_mode(make: Callable[..., Any]) -> bool:
    """Whether a function or class that makes an environment can be called with `render_mode`."""
    parameters = inspect.signature(make).parameters.values()
    return any(parameter.name == "render_mode" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def success_or_return(info: TaskInfo, summary: dict[str, Any]) -> float | None:
    """The score of most families: success in percent, or the mean return if the environment reports no success."""
    return summary["return"] if summary["success"] is None else 100.0 * summary["success"]


@dataclass(frozen=True)
class EnvFamily:
    """Environments that are found, made and scored in the same way.

    A task is named `FAMILY:ID`, or `ID` alone if the family allows it (`bare_ids`). Packages are imported inside the
    functions: environment processes import the family before MuJoCo reads its choice of OpenGL (`MUJOCO_GL`).
    """

    find: Callable[[str], TaskInfo | None] = field(repr=False)
    """The task of an id (without `FAMILY:`), or None."""
    make: Callable[[TaskInfo, EnvOptions], gymnasium.Env] = field(repr=False)
    score: Callable[[TaskInfo, dict[str, Any]], float | None] = field(default=success_or_return, repr=False)
    """The number that tables print, of the summary of an evaluation (`fidec.envs.evaluation.summarise`)."""
    tasks: Callable[[], list[TaskInfo]] = field(default=list, repr=False)
    """The tasks that can be listed."""
    find_declared: Callable[[str, str], TaskInfo] | None = field(default=None, repr=False)
    """The task of an id and its recorded `declaration`, which is not trusted, if `find` reads data."""
    bare_ids: bool = False
    example: str = ""
    """An id, for error messages."""


FAMILIES = Register("environment family", "fidec.envs.families", "FAMILY", EnvFamily, "fidec.environments")
