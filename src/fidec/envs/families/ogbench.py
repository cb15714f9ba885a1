"""OGBench's single tasks: cube-single-play-singletask-task2-v0. The id ...-singletask-v0 means the default task."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np

from fidec.envs.families import EnvFamily, EnvOptions, TaskInfo
from fidec.extras import global_numpy_seed, require

# The task that `...-singletask-v0` stands for. OGBench sets it while it makes an environment, not in its registry.
_DEFAULT_TASKS = {"antsoccer": 4, "cube": 2, "scene": 2, "puzzle-3x3": 4, "puzzle-4x4": 4, "puzzle": 2}

# Registered by OGBench 1.2.2, but without data, and MuJoCo refuses its scene.
_BROKEN = "humanoidmaze-teleport"


@cache
def tasks() -> list[TaskInfo]:
    """Every single-task id that the installed OGBench can make, in the order of its registry."""
    require("ogbench", "ogbench", "an OGBench task")
    known = []
    for env_id, spec in gymnasium.registry.items():
        env, separator, rest = env_id.partition("-singletask-task")
        if not separator or spec.max_episode_steps is None or _BROKEN in env:
            continue
        task = int(rest.removesuffix("-v0"))
        names = (n for name, n in _DEFAULT_TASKS.items() if env.removeprefix("visual-").startswith(name))
        default = next(names, 1)
        for data in _data_kinds(env):
            known.append(
                TaskInfo(
                    id=f"{env}-{data}-singletask-task{task}-v0",
                    env=env,
                    horizon=spec.max_episode_steps,
                    dataset=f"{env}-{data}-v0",
                    data=data,
                    task=task,
                    is_default=task == default,
                    visual=env.startswith("visual-"),
                )
            )
    return known


def find(name: str) -> TaskInfo | None:
    if "-singletask-" not in name:  # not OGBench's, which need not be imported
        return None
    by_id = {info.id: info for info in tasks()}
    by_id |= {f"{i.env}-{i.data}-singletask-v0": i for i in tasks() if i.is_default}
    return by_id.get(name)


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    env = require("ogbench", "ogbench", info.id).make_env_and_datasets(
        info.id,
        env_only=True,
        render_mode=options.render_mode,
        success_timing=options.success_timing,
        disable_env_checker=True,
    )
    return _SeededReset(env)


class _SeededReset(gymnasium.Wrapper):
    """Makes `reset(seed=...)` reach every generator that OGBench's reset draws from.

    The mazes draw start and goal from NumPy's global generator, so that equal seeds give different episodes. The
    manipulation environments take a few random steps at reset, sampled from a `Box` that they build anew on every
    access, unseeded and with a warning about its precision.
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


def _data_kinds(env: str) -> tuple[str, ...]:
    if env.removeprefix("visual-").startswith(("cube", "scene", "puzzle")):
        return ("play", "noisy")
    return ("navigate", "stitch", "explore") if "antmaze" in env else ("navigate", "stitch")


FAMILY = EnvFamily(find, make, tasks=tasks, bare_ids=True, example="cube-single-play-singletask-task2-v0")
