"""Any registered Gymnasium environment by its id: Pendulum-v1, or my_package:MyEnv-v0, which imports my_package."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from fidec.envs.families import EnvFamily, EnvOptions, TaskInfo, takes_render_mode
from fidec.envs.worker import describe
from fidec.errors import ConfigError


def find(env_id: str) -> TaskInfo:
    """The environment of an id. Its module is imported, and nothing is made."""
    return TaskInfo(id=env_id, env=env_id, horizon=_spec(env_id).max_episode_steps)


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    spec, mode = _spec(info.env), options.render_mode
    drawn: dict[str, Any] = {"render_mode": mode} if mode is not None and _takes(spec, mode) else {}
    return gymnasium.make(spec, disable_env_checker=True, **drawn)


def _spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        reason, advice = describe(error), "Correct the module"
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            reason, advice = str(error), f"Install its package, or work in the directory that contains {module}"
        raise ConfigError(
            f"the environment {env_id} needs the module {module}, which cannot be imported: {reason}. {advice}"
        ) from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        where = f"after the import of {module}" if module else "without an import: name its module, as in module:ID"
        raise ConfigError(f"Gymnasium has no environment {name!r} ({where}). {error}") from error


def _takes(spec: EnvSpec, render_mode: str) -> bool:
    """Whether an environment can be made with a render mode: by its parameters, and by its metadata if it has any."""
    creator = spec.entry_point
    if isinstance(creator, str):
        creator = load_env_creator(creator)
    if creator is None or not takes_render_mode(creator):
        return False
    metadata = getattr(creator, "metadata", None)  # a function has none
    return metadata is None or render_mode in metadata.get("render_modes", ())


FAMILY = EnvFamily(find, make, example="gymnasium:Pendulum-v1")
