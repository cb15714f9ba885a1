"""Configurations that were stored as JSON: of a run, of a method's options, of a specification."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fidec import algos
from fidec.errors import ConfigError, RunError
from fidec.store.rundir import RunDirectory
from fidec.store.schema import check
from fidec.train.config import PATHS, USUAL, OnlineConfig, RunConfig
from fidec.train.protocol import with_protocol
from fidec.types import Part, Spec


def read_config(directory: RunDirectory) -> RunConfig:
    """The configuration of a run; RunError if its file is damaged or of another version."""
    try:
        return config_of(directory.read_config())
    except ConfigError as error:
        raise RunError(f"{directory.config}: {error}") from error


def config_of(values: dict[str, Any]) -> RunConfig:
    """The configuration that `RunConfig.to_json` wrote, checked again, because the file may have been edited."""
    values = dict(values)
    unknown = set(values) - {f.name for f in dataclasses.fields(RunConfig)}
    if unknown or "algo" not in values:
        raise ConfigError(f"not a run's configuration: unknown or missing {sorted(unknown) or ['algo']}")
    try:
        tables = {name: values.pop(name, None) or {} for name in ("options", "online")}
        check(tables, dict[str, dict])
        if not values.get("online_steps") and tables["online"].get("freeze_flow") is False:
            del tables["online"]["freeze_flow"]  # the default of a version that had no other
        check({name: value for name, value in values.items() if value is not None}, RunConfig)
        kind = algos.get(values["algo"]).config_for(tables["options"])
        options, online = (
            config_from_json(kind, tables["options"]),
            config_from_json(OnlineConfig, tables["online"]),
        )
        for name in PATHS:
            values[name] = None if values.get(name) is None else Path(values[name])
        for name in ("action_low", "action_high"):
            values[name] = None if values.get(name) is None else tuple(values[name])
        values = {"normalize_observations": False, **USUAL} | values  # of a version without these fields
        return with_protocol(RunConfig(**values, options=options, online=online))
    except (TypeError, ValueError, AttributeError) as error:  # a value of another type, written by hand
        raise ConfigError(f"not a run's configuration: {error}") from error


def config_from_json(config: type, values: dict[str, Any]) -> Any:
    """A method's configuration from JSON, where tuples became lists."""
    known = {f.name for f in dataclasses.fields(config)}
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{config.__name__} has no option {', '.join(unknown)}: it was written by another version")
    try:
        check(values, config)
    except ValueError as error:
        raise ConfigError(f"the options of {config.__name__}: {error}") from error
    return config(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def spec_from_json(values: dict[str, Any]) -> Spec:
    """A specification from JSON, also of a version without parts."""
    spec = config_from_json(Spec, values)
    return dataclasses.replace(spec, parts=tuple(config_from_json(Part, each) for each in spec.parts))
