"""The data that a policy was trained on: found again, checked, and as the policy's observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fidec.data import OfflineDataset
from fidec.errors import ConfigError, DataError, RunError
from fidec.parts import Observations, map_parts
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.policy import Policy, load_policy
from fidec.train.stored import read_config
from fidec.train.view import seen_by
from fidec.types import Spec


def check_data(policy: Policy, dataset: OfflineDataset) -> None:
    """Raise `ConfigError` if the data has other shapes or bounds than the policy."""
    ours, spec = policy.spec, policy.spec
    theirs = dataset.spec.stacked(spec.frame_stack, spec.history).chunked(spec.chunk)
    facts = [
        (field.replace("_", " "), getattr(theirs, field), getattr(ours, field))
        for field in ("observation_shape", "observation_dtype", "action_dim", "bounds")
    ]
    parts = [", ".join(map(str, each.parts)) or "none" for each in (theirs, ours)]
    for name, found, expected in [("list of parts", *parts), *facts]:
        if found != expected:
            raise ConfigError(
                f"{dataset.source} does not fit the policy: its {name} is {found}, the policy's is {expected}. "
                "Use data of the same task."
            )


def data_of(directory: Path, source: str | None = None, data_dir: Path | None = None) -> OfflineDataset:
    """The data named by `source`; without it the training data of the run, whose SHA-256 must be the recorded one."""
    advice = "Name the data with --data (npz:PATH, ogbench:ID, ...)."
    run, config = None, RunConfig()
    if (directory / "run.json").exists():
        run = RunDirectory.open(directory, read_only=True)
        config = read_config(run)
    config = replace(config, data_dir=data_dir or config.data_dir)
    if source is not None:
        bounds = None if config.action_quantile is None else load_policy(directory).spec.bounds
        return seen_by(config, config.load(source), bounds=bounds)[0]
    if run is None:
        raise ConfigError(f"{directory} is a policy without its run, so its training data is not known. {advice}")
    if config.data is None:
        raise ConfigError(f"{directory} was trained on arrays given in Python, which are not stored. {advice}")
    try:
        (dataset,) = seen_by(config, config.load(config.data))
    except DataError as error:
        raise DataError(f"the training data of {directory}, {config.data}: {error} {advice}") from error
    recorded = (run.read_environment().get("dataset") or {}).get("sha256") if run.environment.exists() else None
    if recorded is not None and recorded != dataset.sha256:
        raise RunError(
            f"{directory} was trained on other data: the recorded SHA-256 is {recorded[:12]}…, that of {config.data} "
            f"is now {dataset.sha256[:12]}…. Restore the data, or accept it with --data {config.data}."
        )
    return dataset


def observations_at(dataset: OfflineDataset, rows: np.ndarray, spec: Spec) -> Observations:
    """The policy's input at these rows, stacked with earlier observations of the same trajectory."""
    starts = dataset.episodes[np.searchsorted(dataset.episodes[:, 0], rows, side="right") - 1, 0]

    def stacked(array: np.ndarray, count: int) -> np.ndarray:
        return np.concatenate([array[np.maximum(rows - i, starts)] for i in reversed(range(count))], axis=-1)

    return map_parts(stacked, dataset.observations, spec.observations(spec.stack_of))
