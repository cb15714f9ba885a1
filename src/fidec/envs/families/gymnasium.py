"""Any registered Gymnasium environment by its id: Pendulum-v1, or my_package:MyEnv-v0, which imports my_package."""

from __future__ import annotations

import importlib

import gymnasium
from gymnasium.envs.registration import EnvSpec

from fidec.envs.family import EnvFamily, EnvOptions, TaskInfo
from fidec.errors import ConfigError


def find(env_id: str) -> TaskInfo:
    """The environment of an id. Its module is imported, and nothing is made."""
    return TaskInfo(id=env_id, family="gymnasium", env=env_id, horizon=_spec(env_id).max_episode_steps)


def make(info: TaskInfo, options: EnvOptions) -> gymnasium.Env:
    """The environment; with a render mode only if it has that mode."""
    spec = _spec(info.env)
    render_mode = options.render_mode
    if render_mode is not None and render_mode not in _render_modes(spec):
        render_mode = None
    return gymnasium.make(spec, render_mode=render_mode, disable_env_checker=True)


def _spec(env_id: str) -> EnvSpec:
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the environment {env_id} needs the module {module}, which cannot be imported: {error}. Install its "
            f"package, or work in the directory that contains {module}"
        ) from error
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        where = f"after the import of {module}" if module else "without an import: name its module, as in module:ID"
        raise ConfigError(f"Gymnasium has no environment {name!r} ({where}). {error}") from error


def _render_modes(spec: EnvSpec) -> list[str]:
    entry = spec.entry_point
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        entry = getattr(importlib.import_module(module), name)
    return list(getattr(entry, "metadata", {}).get("render_modes", ["rgb_array"]))


FAMILY = EnvFamily("gymnasium", find, make, example="gymnasium:Pendulum-v1")
