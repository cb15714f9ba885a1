"""What a run takes from its task and its preset: the published options, and the length of the protocol."""

from __future__ import annotations

import dataclasses
from typing import Any

from fidec import algos, tasks
from fidec.errors import ConfigError
from fidec.train.config import PROTOCOL_FIELDS, USUAL, RunConfig

_OWN_DATA = {"steps": 100_000, "eval_interval": 10_000, "eval_episodes": 50}  # of runs without a task


def resolve_options(algo: str, preset: str, task: str | None, setting: str = "offline", **fields: Any) -> Any:
    """The method's options: those of the preset, changed by the task's published options, then by `fields`."""
    return algos.get(algo).configure(preset, **{**task_options(algo, preset, task, setting, **fields), **fields})


def task_options(algo: str, preset: str, task: str | None, setting: str = "offline", **fields: Any) -> dict[str, Any]:
    """The values of a task's published options, of a method that has these other options."""
    return {name: option.value for name, option in published_options(algo, preset, task, setting, **fields).items()}


def published_options(
    algo: str, preset: str, task: str | None, setting: str = "offline", **fields: Any
) -> dict[str, tasks.Published]:
    """The published options of a task that the method has, each with its source.

    A preset that sets up a run has none: it is the same for all tasks. If `fields` name a constraint of another unit
    than the preset's, there is no published budget.
    """
    method = algos.get(algo)
    family = tasks.family_of(task) if task and preset not in method.runs else None
    published = family.options(algo, preset, setting) if family else {}
    known = {field.name for field in dataclasses.fields(method.config)}
    own = {name: option for name, option in published.items() if name in known}
    return method.suited(own, method.presets.get(preset, {}), fields)


def parts_of(config: RunConfig) -> dict[str, Any]:
    """The options that name parts of the method: the constraint."""
    return {name: getattr(config.options, name) for name in algos.get(config.algo).parts}


def protocol_values(task: str | None, algo: str, setting: str = "offline") -> dict[str, int]:
    """Steps, evaluation interval and episodes of the task's protocol, or of any run without a task."""
    if task is None:
        return dict(_OWN_DATA)
    protocol = tasks.protocol_of(task, algo, setting)
    return {name: getattr(protocol, name) for name in PROTOCOL_FIELDS}


def with_protocol(config: RunConfig) -> RunConfig:
    """The configuration with steps and evaluations of the task's protocol where they were not given.

    What the preset says of a run (`Method.runs`) comes next: the flow, returns and values, and how the policy acts.
    A flow takes at most two updates for each step of the rest.
    """
    values = protocol_values(config.task, config.algo, config.setting) | USUAL
    runs = algos.get(config.algo).runs.get(config.preset, {})
    for name in sorted(runs.keys() - {*USUAL, "normalize_observations", "n_step"}):
        raise ConfigError(f"the preset {config.preset} of {config.algo} sets up runs: it cannot set {name}")
    if config.init_from is None:
        values |= runs
    else:  # values are those of the run that it starts from, and so are its rewards
        values |= {name: runs[name] for name in ("candidates", "noise") if name in runs}
        del values["reward_rule"]
    values["flow_updates"] = min(values["flow_updates"], 2 * (config.steps or values["steps"]))
    if "n_step" in values:
        values["n_step"] = max(values["n_step"], config.chunk)
    if config.flow is not None:
        values["flow_updates"] = 0
    return dataclasses.replace(config, **{n: v for n, v in values.items() if getattr(config, n) is None})
