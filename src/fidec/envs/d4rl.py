"""D4RL's tasks of the benchmark, with its rules restored on today's simulator."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

import gymnasium

from fidec.envs import adroit, antmaze
from fidec.envs.info import TaskInfo


def note() -> str:
    """What everyone who meets these tasks has to know."""
    return f"D4RL rules restored on MuJoCo {version('mujoco')}; not the original simulator"


@cache
def tasks() -> dict[str, TaskInfo]:
    """The six antmazes and the twelve Adroit tasks by their ids."""
    mazes = [("umaze", ""), ("umaze", "diverse")]
    mazes += [(maze, data) for maze in ("medium", "large") for data in ("play", "diverse")]
    found = [
        _info("-".join(filter(None, ("antmaze", maze, data, "v2"))), f"antmaze-{maze}", data, antmaze.HORIZONS[maze])
        for maze, data in mazes
    ]
    found += [
        _info(f"{name}-{data}-v1", name, data, rules.horizon)
        for name, rules in adroit.RULES.items()
        for data in ("human", "cloned", "expert")
    ]
    return {info.id: info for info in found}


def make(info: TaskInfo, render_mode: str | None = None) -> gymnasium.Env:
    """The environment of a task; which data belongs to it makes no difference."""
    if info.family.startswith("antmaze-"):
        return antmaze.make_antmaze(info.family.removeprefix("antmaze-"), render_mode)
    return adroit.make_adroit(info.family, render_mode)


def _info(task_id: str, family: str, data: str, horizon: int) -> TaskInfo:
    return TaskInfo(
        id=task_id,
        family=family,
        data=data,
        task=0,
        is_default=True,
        horizon=horizon,
        visual=False,
        suite="d4rl",
        note=note(),
    )
