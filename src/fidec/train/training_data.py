"""The data that a policy was trained on: found again, checked, and as the policy's observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fidec.data import OfflineDataset
from fidec.data.batches import Sampling, gather_rows, host_source
from fidec.errors import ConfigError, DataError, FidecError, RunError
from fidec.parts import Observations
from fidec.store.rundir import RunDirectory, is_run
from fidec.train.config import RunConfig
from fidec.train.policy import Policy, load_policy
from fidec.train.stored import read_config
from fidec.types import Spec


def check_fits(policy: Policy, dataset: OfflineDataset) -> None:
    """Raise `ConfigError` if the data has other shapes or bounds than the policy."""
    spec = policy.spec
    differences = dataset.spec.stacked(spec.frame_stack, spec.history).chunked(spec.chunk).differences(spec)
    if differences:
        raise ConfigError(
            f"{dataset.source} does not fit the policy: it has {'; '.join(differences)}. Use data of the same task."
        )


def check_same_data(
    where: object, recorded: str | None, dataset: OfflineDataset, advice: str, error: type[FidecError] = RunError
) -> None:
    """Raise unless the data has the recorded hash; None if none was recorded."""
    if recorded is not None and recorded != dataset.sha256:
        raise error(
            f"{where} was trained on other data: the recorded SHA-256 is {recorded[:12]}…, that of {dataset.source} "
            f"is now {dataset.sha256[:12]}…. {advice}"
        )


def data_of(directory: Path, source: str | None = None, data_dir: Path | None = None) -> OfflineDataset:
    """The data named by `source`; without it the training data of the run, whose SHA-256 must be the recorded one."""
    advice = "Name the data with --data (npz:PATH, ogbench:ID, ...)."
    run, config = None, RunConfig()
    if is_run(directory):
        run = RunDirectory.open(directory, read_only=True)
        config = read_config(run)
    config = replace(config, data_dir=data_dir or config.data_dir)
    if source is not None:
        bounds = None if config.action_quantile is None else load_policy(directory).spec.bounds
        return config.transforms.view(config.load(source), bounds=bounds)[0]
    if run is None:
        raise ConfigError(f"{directory} is a policy without its run, so its training data is not known. {advice}")
    if config.data is None:
        raise ConfigError(f"{directory} was trained on arrays given in Python, which are not stored. {advice}")
    try:
        (dataset,) = config.transforms.view(config.load(config.data))
    except DataError as error:
        raise DataError(f"the training data of {directory}, {config.data}: {error} {advice}") from error
    recorded = (run.read_environment().get("dataset") or {}).get("sha256") if run.environment.exists() else None
    check_same_data(directory, recorded, dataset, f"Restore the data, or accept it with --data {config.data}.")
    return dataset


def observations_at(dataset: OfflineDataset, rows: np.ndarray, spec: Spec) -> Observations:
    """The policy's input at these rows, stacked with earlier observations of the same trajectory."""
    sampling = Sampling(frame_stack=spec.frame_stack, history=spec.history)
    return gather_rows(host_source(dataset, sampling), rows, sampling, np).observations
