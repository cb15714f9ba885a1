"""Data as a policy sees it that acts late: the observation is d steps old when its action begins.

The policy chooses a_t from o_{t-d}. What happens until t is decided by the actions that were chosen before, so they
are part of the observation, the oldest first:

    (o_{t-d}, a_{t-d}, ..., a_{t-1})

Before step d of an episode it is o_0, and actions from before the episode are zeros.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from fidec.data.dataset import OfflineDataset
from fidec.data.mapped import is_mapped, take
from fidec.errors import ConfigError, DataError
from fidec.parts import map_parts

PENDING = "pending"  # the part with the actions, of observations that have parts


def delayed(dataset: OfflineDataset, delay: int) -> OfflineDataset:
    """The same transitions with late observations. Actions, rewards and masks stay with their rows."""
    rows = np.arange(dataset.size)
    starts = np.repeat(dataset.episodes[:, 0], np.diff(dataset.episodes)[:, 0])
    info = {**dataset.info, "delay": delay}
    if "observation_names" in info and not isinstance(dataset.observations, dict):
        added = range(delay * dataset.actions.shape[1])
        info["observation_names"] = [*info["observation_names"], *(f"{PENDING}[{number}]" for number in added)]
    return dataclasses.replace(
        dataset,
        observations=_late(dataset, rows, starts, delay),
        next_observations=_late(dataset, rows + 1, starts, delay),
        info=info,
    )


def _late(dataset: OfflineDataset, rows: np.ndarray, starts: np.ndarray, delay: int) -> Any:
    """The late observations at these rows; a row after the end of its trajectory is never looked up."""
    seen = map_parts(lambda column: take(column, np.maximum(rows - delay, starts)), dataset.observations)
    at = rows[:, None] - delay + np.arange(delay)
    actions = np.where((at >= starts[:, None])[..., None], dataset.actions[np.maximum(at, 0)], np.float32(0))
    try:
        return with_pending(seen, actions.reshape(len(rows), -1))
    except ConfigError as error:
        raise DataError(f"{dataset.name}: {error}") from error


def with_pending(observations: Any, actions: np.ndarray) -> Any:
    """Observations and the actions that are on their way: a further part, or more columns of a single vector."""
    if isinstance(observations, dict):
        if PENDING in observations:
            raise ConfigError(f"the observation has a part {PENDING!r} already, which a delay adds. Rename it")
        return {**observations, PENDING: actions}
    if observations.ndim != actions.ndim:
        raise ConfigError(
            "a delay adds actions to the observation, and a single image has no place for them. Give the image as a "
            'part: observations={"image": images, "state": vectors}'
        )
    if is_mapped(observations):
        raise ConfigError("a delay needs vectors in memory, and these stay on the disk. Give them as a part")
    return np.concatenate([observations, actions], axis=-1)


class Pending:
    """The actions that are on their way in a control loop with a delay.

    `pending.reset()` begins an episode. `policy(pending(observation))` gives the policy its newest observation and
    the actions since then; `pending.add(action)` says that an action was sent, in the units of the bounds.
    """

    def __init__(self, delay: int, low: Any, high: Any):
        self._low, self._high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        self._actions: deque[np.ndarray] = deque(maxlen=delay)
        self.reset()

    def reset(self) -> None:
        self._actions.extend([np.zeros(len(self._low), np.float32)] * (self._actions.maxlen or 0))

    def add(self, action: Any) -> None:
        unit = 2.0 * (np.asarray(action) - self._low) / (self._high - self._low) - 1.0
        self._actions.append(unit.astype(np.float32))

    def __call__(self, observation: Any) -> Any:
        return with_pending(observation, np.concatenate(self._actions)) if self._actions.maxlen else observation
