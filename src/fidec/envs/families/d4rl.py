"""D4RL's tasks of the benchmark, with D4RL's rules restored on today's simulator."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gymnasium

from fidec.envs import adroit, antmaze
from fidec.envs.family import EnvFamily, EnvOptions, TaskInfo

# D4RL's infos.py: (random, reference) mean returns, the same for all data sets of an environment. A score of 0 is the
# random policy, 100 is D4RL's reference policy. An antmaze's return is the environment's own 0 or 1, not the shifted
# reward of the training data.
REFERENCE = {
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "door": (-56.512833, 2880.5693087298737),
}


def note() -> str:
    """The sentence that stands beside every score of these tasks."""
    try:
        mujoco = f"MuJoCo {version('mujoco')}"
    except PackageNotFoundError:
        mujoco = "today's MuJoCo"
    return f"D4RL rules restored on {mujoco}; not the original simulator"


@cache
def tasks() -> list[TaskInfo]:
    """The six antmazes and the twelve Adroit tasks."""
    mazes = [("umaze", ""), ("umaze", "diverse")]
    mazes += [(maze, data) for maze in ("medium", "large") for data in ("play", "diverse")]
    known = [
        _info("-".join(filter(None, ("antmaze", maze, data, "v2"))), f"antmaze-{maze}", data, antmaze.HORIZONS[maze])
        for maze, data in mazes
    ]
    known += [
        _info(f"{name}-{data}-v1", name, data, rules.horizon)
        for name, rules in adroit.RULES.items()
        for data in ("human", "cloned", "expert")
    ]
    return known


def _info(task_id: str, env: str, data: str, horizon: int) -> TaskInfo:
    return TaskInfo(id=task_id, env=env, horizon=horizon, dataset=task_id, data=data, note=note())


def find(name: str) -> TaskInfo | None:
    return next((info for info in tasks() if info.id == name), None)


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    """The environment of a task. It does not depend on the kind of data."""
    if info.env.startswith("antmaze-"):
        return antmaze.make_antmaze(info.env.removeprefix("antmaze-"), options.render_mode)
    return adroit.make_adroit(info.env, options.render_mode)


def score(info: TaskInfo, summary: dict[str, Any]) -> float | None:
    """D4RL's normalised score in percent, of the mean return."""
    if summary["return"] is None:
        return None
    low, high = REFERENCE[info.env.partition("-")[0]]
    return 100.0 * (summary["return"] - low) / (high - low)


FAMILY = EnvFamily(find, make, score, tasks, bare_ids=True, example="antmaze-medium-play-v2")
