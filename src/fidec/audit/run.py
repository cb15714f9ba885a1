"""Audit a trained policy at states of its data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fidec import rng
from fidec.audit.measure import Report, measure
from fidec.audit.neighbours import distances
from fidec.audit.summary import summarise
from fidec.data import OfflineDataset
from fidec.errors import ConfigError, DataError, RunError
from fidec.store import versions
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig, read_config
from fidec.train.policy import Policy


def audit(
    policy: Policy,
    dataset: OfflineDataset,
    *,
    states: int = 256,
    samples: int = 64,
    seed: int = 0,
    report: Report | None = None,
) -> dict[str, Any]:
    """Measure how far the policy has moved from its behaviour flow, at `states` random rows of the data.

    Each state gets `samples` base actions. The same seed gives the same numbers. `report` is called with the number
    of finished states and a text. The result has plain numbers and NumPy arrays; docs/audit.md explains its keys.
    """
    check_transport(policy)
    check_data(policy, dataset)
    transport = policy.algorithm.transport
    assert transport is not None  # checked
    generator = np.random.default_rng([seed, 0])
    rows = np.sort(generator.choice(dataset.size, min(states, dataset.size), replace=False))
    measured = measure(
        transport,
        policy.state,
        _observations(dataset, rows, policy.spec.frame_stack),
        samples=samples,
        action_dim=policy.spec.action_dim,
        key=rng.stream(seed, "evaluate"),
        report=report,
    )
    if policy.spec.images:
        near = "observations are images, and distances between pixels do not tell which states are similar"
    elif dataset.size < 2:
        near = "the data has one row"
    else:
        moved = measured.moved
        moves = (moved.actions, moved.actions + moved.displacement)
        near = distances(dataset, rows, *moves, seed, policy.spec.chunk)
    origin = describe(policy, dataset, seed)
    return {**origin, "data": {**origin["data"], "rows": rows}, **summarise(measured, near)}


def describe(policy: Policy, dataset: OfflineDataset, seed: int) -> dict[str, Any]:
    """What was audited: the policy, the data, the seed and the versions of packages."""
    return {
        "algo": policy.algo,
        "step": policy.info.get("step"),
        "seed": seed,
        "chunk": policy.spec.chunk,
        "data": {"name": dataset.name, "source": dataset.source, "sha256": dataset.sha256},
        "packages": {name: versions.version(name) for name in versions.PACKAGES},
    }


def check_transport(policy: Policy) -> None:
    """Raise `ConfigError` if the policy has no residual map."""
    if policy.algorithm.transport is None:
        raise ConfigError(
            f"this is a policy of {policy.algo}, which has no residual map to audit; "
            "methods with a residual map are fidec and deflow. `fidec audit RUN --values` estimates its value"
        )


def check_data(policy: Policy, dataset: OfflineDataset) -> None:
    """Raise `ConfigError` if the data has other shapes or bounds than the policy."""
    ours, theirs = policy.spec, dataset.spec.stacked(policy.spec.frame_stack).chunked(policy.spec.chunk)
    for field in ("observation_shape", "observation_dtype", "action_dim", "bounds"):
        if getattr(ours, field) != getattr(theirs, field):
            raise ConfigError(
                f"{dataset.source} does not fit the policy: its {field.replace('_', ' ')} is "
                f"{getattr(theirs, field)}, the policy's is {getattr(ours, field)}. Use data of the same task."
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
        return config.load(source)
    if run is None:
        raise ConfigError(f"{directory} is a policy without its run, so its training data is not known. {advice}")
    if config.data is None:
        raise ConfigError(f"{directory} was trained on arrays given in Python, which are not stored. {advice}")
    try:
        dataset = config.load(config.data)
    except DataError as error:
        raise DataError(f"the training data of {directory}, {config.data}: {error} {advice}") from error
    recorded = (run.read_environment().get("dataset") or {}).get("sha256") if run.environment.exists() else None
    if recorded is not None and recorded != dataset.sha256:
        raise RunError(
            f"{directory} was trained on other data: the recorded SHA-256 is {recorded[:12]}…, that of {config.data} "
            f"is now {dataset.sha256[:12]}…. Restore the data, or accept it with --data {config.data}."
        )
    return dataset


def candidates_of(directory: Path) -> int:
    """Among how many actions the policy of this run chooses; 1 for a policy without its run."""
    if not (directory / "run.json").exists():
        return 1
    return read_config(RunDirectory.open(directory, read_only=True)).candidates


def _observations(dataset: OfflineDataset, rows: np.ndarray, frame_stack: int) -> np.ndarray:
    """The policy's input at these rows; images are stacked with earlier frames of the same trajectory."""
    if frame_stack == 1:
        return dataset.observations[rows]
    starts = dataset.episodes[np.searchsorted(dataset.episodes[:, 0], rows, side="right") - 1, 0]
    frames = [dataset.observations[np.maximum(rows - i, starts)] for i in reversed(range(frame_stack))]
    return np.concatenate(frames, axis=-1)
