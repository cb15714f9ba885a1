"""The environment that a local Minari data set declares, if its id is on the list below.

A data set's metadata names an environment, an entry point (any function of any module) and arguments for it. The file
is not trusted. The entry point is never used: the installed gymnasium makes the environment by its id. Of the
arguments only plain values under known names are passed on, so no file is read that the data names.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NamedTuple

import gymnasium

from fidec.data.sources.minari import minari_folder, read_metadata
from fidec.envs.families import EnvFamily, EnvOptions, TaskInfo
from fidec.envs.families.d4rl import import_robotics
from fidec.errors import EnvError

_ROBOTICS = {
    "AdroitHand{Door,Hammer,Pen,Relocate}[Sparse]": r"AdroitHand(Door|Hammer|Pen|Relocate)(Sparse)?-v\d+",
    "AntMaze_*": r"AntMaze_(UMaze|Open|Medium|Large)(_Diverse_GR?)?(Dense)?-v\d+",
    "PointMaze_*": r"PointMaze_(UMaze|Open|Medium|Large)(_Diverse_GR?)?(Dense)?-v\d+",
    "FrankaKitchen": r"FrankaKitchen-v\d+",
}
_GYMNASIUM = {
    "gymnasium's MuJoCo tasks": r"(Ant|HalfCheetah|Hopper|Walker2d|Swimmer|Humanoid|HumanoidStandup|Reacher|Pusher"
    r"|InvertedPendulum|InvertedDoublePendulum)-v\d+",
    "Pendulum": r"Pendulum-v\d+",
    "MountainCarContinuous": r"MountainCarContinuous-v\d+",
}
_NUMBERS = {
    *("continuing_task", "reset_target", "terminate_on_tasks_completed", "remove_task_when_completed"),
    *("object_noise_ratio", "forward_reward_weight", "ctrl_cost_weight", "contact_cost_weight", "healthy_reward"),
    *("terminate_when_unhealthy", "reset_noise_scale", "exclude_current_positions_from_observation"),
    *("include_cfrc_ext_in_observation", "use_contact_forces"),
}
_WORDS = {"reward_type": {"sparse", "dense"}}
_KITCHEN = "bottom burner, top burner, light switch, slide cabinet, hinge cabinet, microwave, kettle"
_LISTS = {"tasks_to_complete": set(_KITCHEN.split(", "))}
_CELLS = {0, 1, "r", "g", "c"}  # of a maze_map: free, wall, start, goal, start or goal
_LONGEST = 1_000_000  # steps of an episode


class Declared(NamedTuple):
    """What is left of a declaration after the checks."""

    env_id: str
    options: dict[str, Any]
    horizon: int | None


def declaration(dataset_id: str) -> str:
    """The environment for evaluation that a local data set declares, else the one that it was collected in."""
    metadata = read_metadata(minari_folder(dataset_id))
    text = metadata.get("eval_env_spec") or metadata.get("env_spec")
    if text is None:
        raise EnvError(f"minari:{dataset_id}: the data set declares no environment; name a --task or an --env")
    return text


def declared(dataset_id: str, text: str) -> Declared:
    """A declaration of a data set or of a policy, checked."""
    where = f"minari:{dataset_id}"
    try:
        spec = json.loads(text)
        env_id, options, steps = spec["id"], dict(spec.get("kwargs") or {}), spec.get("max_episode_steps")
        wrappers = list(spec.get("additional_wrappers") or ())
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise EnvError(f"{where}: the declared environment cannot be read ({type(error).__name__})") from error
    _check_id(where, env_id)
    if wrappers:
        raise EnvError(f"{where}: {env_id} is declared with {len(wrappers)} wrapper(s); wrappers are never taken")
    options.pop("render_mode", None)  # not the data's choice
    known = _registered(env_id).kwargs
    options = {name: value for name, value in options.items() if name not in known or known[name] != value}
    for name, value in options.items():
        if not _is_allowed(name, value):
            raise EnvError(
                f"{where}: {env_id} is declared with {name}={str(value)[:60]!r}; only plain values of "
                f"{', '.join(sorted(_NUMBERS | {*_WORDS, *_LISTS, 'maze_map'}))} are taken"
            )
    if steps is not None and not (type(steps) is int and 0 < steps <= _LONGEST):
        raise EnvError(f"{where}: max_episode_steps is {str(steps)[:60]!r}; expected 1 to {_LONGEST}")
    return Declared(env_id, options, steps)


def find(dataset_id: str) -> TaskInfo:
    return find_declared(dataset_id, declaration(dataset_id))


def find_declared(dataset_id: str, text: str) -> TaskInfo:
    """The task of a declaration. The data set need not be there."""
    env = declared(dataset_id, text)
    horizon = env.horizon or _registered(env.env_id).max_episode_steps
    if horizon is None:
        raise EnvError(f"minari:{dataset_id}: {env.env_id} has no time limit, so that an episode may never end")
    return TaskInfo(
        id=f"minari:{dataset_id}",
        env=env.env_id,
        horizon=horizon,
        dataset=dataset_id,
        data=dataset_id,
        declaration=json.dumps({"id": env.env_id, "kwargs": env.options, "max_episode_steps": horizon}),
    )


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    """The environment, with dict observations flattened in sorted key order, as the data is."""
    spec = declared(info.dataset, info.declaration)
    env = gymnasium.make(
        spec.env_id,
        max_episode_steps=info.horizon,
        render_mode=options.render_mode,
        disable_env_checker=True,
        **spec.options,
    )
    is_dict = isinstance(env.observation_space, gymnasium.spaces.Dict)
    return gymnasium.wrappers.FlattenObservation(env) if is_dict else env


def _check_id(where: str, env_id: Any) -> None:
    allowed = _ROBOTICS | _GYMNASIUM
    if isinstance(env_id, str) and any(re.fullmatch(pattern, env_id) for pattern in allowed.values()):
        return
    raise EnvError(
        f"{where}: the data set declares the environment {str(env_id)[:80]!r}; only these are made for a data set: "
        f"{', '.join(allowed)}"
    )


def _is_gymnasium(env_id: str) -> bool:
    return any(re.fullmatch(pattern, env_id) for pattern in _GYMNASIUM.values())


def _registered(env_id: str) -> Any:
    if not _is_gymnasium(env_id):
        gymnasium.register_envs(import_robotics())
    if env_id not in gymnasium.registry:
        name = env_id.rpartition("-v")[0]
        there = sorted(known for known in gymnasium.registry if known.rpartition("-v")[0] == name)
        package = "gymnasium" if _is_gymnasium(env_id) else "gymnasium-robotics"
        raise EnvError(f"the installed {package} has no {env_id}" + (f"; it has {', '.join(there)}" if there else ""))
    return gymnasium.registry[env_id]


def _is_allowed(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return type(value) in (bool, int, float) and abs(value) <= sys.float_info.max  # an int may be larger
    if name in _WORDS:
        return isinstance(value, str) and value in _WORDS[name]
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(v, str) and v in _LISTS[name] for v in value)
    if name == "maze_map":
        rows = value if isinstance(value, list) and 0 < len(value) <= 64 else [None]
        return all(
            isinstance(row, list) and 0 < len(row) <= 64 and all(type(c) in (int, str) and c in _CELLS for c in row)
            for row in rows
        )
    return False


FAMILY = EnvFamily(find, make, find_declared=find_declared, example="minari:D4RL/door/human-v2")
