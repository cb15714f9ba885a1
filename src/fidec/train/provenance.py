"""Where the options of a run come from, and the command that trains it again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from fidec import algos, tasks
from fidec.train.config import RunConfig
from fidec.train.configfile import ARRAYS
from fidec.train.protocol import parts_of, protocol_values, published_options, resolve_options
from fidec.train.resolve import resolve

GIVEN, DEFAULT = "given", "default"
_NAMES = ("task", "env", "algo", "preset")  # what a run is about; the defaults of the rest depend on them
_MACHINE = ("out", "eval_envs")  # of the machine: not part of a command, and their source is not known


class Option(NamedTuple):
    """An option of a run."""

    name: str  # as on the command line, without the dashes in front
    value: Any
    source: str
    """`default`, `preset NAME`, what published it, or `given`."""


def options_of(config: RunConfig) -> list[Option]:
    """All options of a resolved configuration, each with its source."""
    method, preset = algos.get(config.algo), f"preset {config.preset}"
    parts, fields = parts_of(config), method.presets.get(config.preset, {})
    published = published_options(config.algo, config.preset, config.task, config.setting, **parts)
    sources = {f"algo.{name}": preset for name in method.suited(fields, fields, parts)}
    sources |= {f"algo.{name}": option.source for name, option in published.items()}
    if config.task is not None:
        protocol = tasks.protocol_of(config.task, config.algo, config.setting).name
        sources |= dict.fromkeys(protocol_values(config.task, config.algo, config.setting), protocol)
    sources |= dict.fromkeys(method.runs.get(config.preset, {}), preset)
    usual = _usual(config)
    found = []
    for name, value in _values(config).items():
        given = value is not None if name in _NAMES else name not in _MACHINE and value != usual.get(name)
        found.append(Option(_dashed(name), value, GIVEN if given else sources.get(name, DEFAULT)))
    return found


def command_of(config: RunConfig) -> str | None:
    """The command that trains a run with this configuration again. None if its data was given in Python.

    Its directory is left out, so that it does not collide with the run.
    """
    if config.data is None or (config.buffer or "").startswith(ARRAYS):
        return None
    return shlex.join(["fidec", "train", *arguments_of(config)])


def arguments_of(config: RunConfig) -> list[str]:
    """The arguments of `fidec train` for a resolved configuration, without its directory."""
    usual, values, words = _usual(config), _values(config), []
    parts = [f"algo.{name}" for name in algos.get(config.algo).parts]  # other options depend on them
    for name in dict.fromkeys((*_NAMES, *parts, *values)):
        value = values[name]
        usual_value = None if name in _NAMES else usual.get(name)
        if name not in _MACHINE and value != usual_value:
            words += [f"--{_dashed(name)}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def _usual(config: RunConfig) -> dict[str, Any]:
    """What a run of this task, method and preset has if nothing else is given.

    Options that exist only with a part (a constraint) have the values that they have with the part of the run.
    """
    named = {name: getattr(config, name) for name in (*_NAMES, "online_steps", "chunk")}
    usual = resolve(RunConfig(**named, flow=config.flow, init_from=config.init_from))
    parts = parts_of(config)
    with_parts = resolve_options(config.algo, config.preset, config.task, config.setting, **parts)
    own = {f"algo.{name}": getattr(usual.options, name) for name in parts}
    of_run = {"online_steps": 0, "chunk": 1, "flow": None, "init_from": None}
    return _values(dataclasses.replace(usual, options=with_parts)) | own | of_run


def _values(config: RunConfig) -> dict[str, Any]:
    """All options by their names on the command line, with underscores."""
    values = {name: value for name, value in _fields(config).items() if name not in ("online", "options")}
    values |= {f"algo.{name}": value for name, value in _fields(config.options).items()}
    if config.online_steps:
        values |= {f"online.{name}": value for name, value in _fields(config.online).items()}
    return values


def _fields(values: Any) -> Mapping[str, Any]:
    return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}


def _dashed(name: str) -> str:
    return name.replace("_", "-")
