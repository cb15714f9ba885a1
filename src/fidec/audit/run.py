"""Audit a trained policy at states of its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fidec import rng
from fidec.audit.measure import Report, measure
from fidec.audit.neighbours import distances
from fidec.audit.summary import summarise
from fidec.data import OfflineDataset
from fidec.errors import ConfigError
from fidec.store import versions
from fidec.store.rundir import RunDirectory
from fidec.train.origin import check_data, observations_at
from fidec.train.policy import Policy
from fidec.train.stored import read_config


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
        observations_at(dataset, rows, policy.spec),
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


def candidates_of(directory: Path) -> int:
    """Among how many actions the policy of this run chooses; 1 for a policy without its run."""
    if not (directory / "run.json").exists():
        return 1
    return read_config(RunDirectory.open(directory, read_only=True)).candidates
