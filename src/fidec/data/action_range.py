"""Actions measured by the range that the data uses, instead of the bounds of the action space.

Logged commands often fill a small part of what a robot could do. Then [-1, 1] is nearly empty, and a unit of noise or
of displacement is large compared with the data.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fidec.data.columns import ACTION_LIMIT
from fidec.data.dataset import OfflineDataset
from fidec.errors import ConfigError

Bounds = tuple[tuple[float, ...], tuple[float, ...]]


def quantile_bounds(dataset: OfflineDataset, quantile: float) -> Bounds:
    """The quantiles q and 1 - q of each action dimension, in the user's units.

    A dimension that is constant between them keeps its bounds.
    """
    if not 0 <= quantile < 0.5:
        raise ConfigError(f"action_quantile must lie in [0, 0.5), not {quantile}")
    actions = dataset.spec.to_user_units(dataset.actions).astype(np.float64)
    low, high = np.quantile(actions, [quantile, 1 - quantile], axis=0)
    widest = [np.asarray(bound) for bound in dataset.spec.bounds]
    constant = high - low < 1e-6 * (widest[1] - widest[0])
    low, high = np.where(constant, widest[0], low), np.where(constant, widest[1], high)
    return tuple(low.tolist()), tuple(high.tolist())


def within(dataset: OfflineDataset, bounds: Bounds) -> OfflineDataset:
    """The same data with other action bounds. Actions outside are clipped.

    `info` has the share of such rows, and the bounds before.
    """
    low, high = (np.asarray(bound) for bound in bounds)

    def rescaled(actions: np.ndarray) -> np.ndarray:
        return 2.0 * (dataset.spec.to_user_units(actions) - low) / (high - low) - 1.0

    unit = {name: rescaled(getattr(dataset, name)) for name in ("actions", "next_actions")}
    clipped = float((np.abs(unit["actions"]) > 1.0 + 1e-6).any(axis=1).mean())
    limited = {name: np.clip(each, -ACTION_LIMIT, ACTION_LIMIT).astype(np.float32) for name, each in unit.items()}
    info = {**dataset.info, "clipped_action_rows": clipped, "action_bounds": dataset.spec.bounds}
    return dataclasses.replace(dataset, **limited, action_low=bounds[0], action_high=bounds[1], info=info)
