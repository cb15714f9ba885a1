"""The way of a row, from a file to a gradient, and its transforms of whole data sets.

    stage           where                      what a row is then
    1 file          data.sources               arrays by name; nothing is unpickled
    2 columns       data.columns               checked float32 (uint8 for images), actions in [-1, 1]
    3 episodes      data.arrays                an `OfflineDataset`: next rows, masks and ends, within episodes
    4 view          Transforms.view            actions by the range that the data uses, late observations, rewards by
                                               a rule
    5 hold-out      Transforms.split           without the episodes that are only validated
    6 windows       batches.host_source        rewards and masks over n steps
    7 batch         batches.sample_rows        rows that seed and step choose: frames stacked, chunks of actions
                    batches.augment            rewards scaled, images shifted
    8 normalised    Method.build               (o - mean) / std, vectors joined, before every network

A stage takes what the one before gives. The specification, the statistics of stage 8 and the hash of checkpoints are
those of the data after stage 4. The proposals of a frozen flow are one more column, for the rows after stage 5, by
the same gathering (`batches.map_batches`). Rows that are collected online have stages 3 and 4 from the environments'
wrappers (`envs.control`). They take stage 6 by `windows.WindowBuilder`, and stages 7 and 8 with the offline rows.

The rule of stage 4. Some tasks count what is not done yet: -3, -2, -1, and 0 when all is done. Then a policy learns
to keep what is done, and hardly to finish. `sparse` is -1 in each step, and 0 where the task is done.

The range of stage 4. Logged commands often fill a small part of what a robot could do. [-1, 1] is then nearly empty,
and a unit of noise or of displacement is large compared with the data. The range of the data takes the place of the
bounds of the action space.

The delay of stage 4. The policy chooses a_t from o_{t-d}. What happens until t is decided by the actions that were
chosen before, so they are part of the observation, the oldest first:

    (o_{t-d}, a_{t-d}, ..., a_{t-1})

Before step d of an episode it is o_0, and actions from before the episode are zeros.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fidec.data.columns import ACTION_LIMIT, take_rows
from fidec.data.dataset import GIVEN, OfflineDataset, episodes_of
from fidec.data.disk_array import is_mapped, take
from fidec.errors import ConfigError, DataError
from fidec.parts import map_parts

RewardRule = Literal["given", "sparse", "auto"]
FEW = 32  # rewards of a task that counts
SAMPLE = 100_000  # rows among which rewards are counted
Bounds = tuple[tuple[float, ...], tuple[float, ...]]
PENDING = "pending"  # the part with the actions on their way, of observations that have parts
_ROWS = ("observations", "actions", "rewards", "masks", "terminals", "next_observations", "next_actions")


@dataclass(frozen=True)
class Transforms:
    """What a run does to whole data sets, in this order."""

    reward_rule: RewardRule = "given"
    """Rewards as they are (given), 0 at the highest one and -1 else (sparse), or sparse if they `count_what_is_left`
    (auto)."""
    action_quantile: float | None = None
    """Which quantile of each action dimension is -1; the opposite one is 1. None keeps the bounds."""
    delay: int = 0
    """How many steps old observations are."""
    held_out: float = 0.0
    """Share of the episodes that are only validated."""

    def __post_init__(self) -> None:
        if self.action_quantile is not None and not 0 <= self.action_quantile < 0.5:
            raise ConfigError(f"action_quantile must lie in [0, 0.5), not {self.action_quantile}")

    def view(self, *datasets: OfflineDataset, bounds: Bounds | None = None) -> list[OfflineDataset]:
        """The data sets as the policy sees them. `dataset.info` has the highest reward, the range and the delay.

        All have the rule and the quantiles of the first, or the `bounds` of a policy that was trained with such
        quantiles.
        """
        seen = self._rearranged(*datasets, bounds=bounds)
        if self.reward_rule == "sparse" or (self.reward_rule == "auto" and count_what_is_left(datasets[0])):
            highest = done_at(datasets[0])
            return [sparse(dataset, highest) for dataset in seen]
        return seen

    def _rearranged(self, *datasets: OfflineDataset, bounds: Bounds | None) -> list[OfflineDataset]:
        """With the range and the delay."""
        if self.action_quantile is None and not self.delay:
            return list(datasets)
        for dataset in datasets:
            if is_mapped(dataset.actions):
                raise ConfigError(
                    f"--action-quantile and --delay need actions in memory, and those of {dataset.source} stay on "
                    "the disk. Leave the options out, or train on fewer rows: less than 1 GB of vectors is read into "
                    "memory"
                )
        if self.action_quantile is not None:
            bounds = bounds or quantile_bounds(datasets[0], self.action_quantile)
            datasets = tuple(within(dataset, bounds) for dataset in datasets)
        return [delayed(dataset, self.delay) for dataset in datasets] if self.delay else list(datasets)

    def split(self, dataset: OfflineDataset) -> tuple[OfflineDataset, OfflineDataset | None]:
        """The data to train on, and the held-out episodes, if there are any."""
        return hold_out(dataset, self.held_out) if self.held_out else (dataset, None)


def count_what_is_left(dataset: OfflineDataset) -> bool:
    """Whether rewards are a few numbers, more than two, the highest one where the task is done and only there.

    The task is done in rows with mask 0.
    """
    values = np.unique(dataset.rewards[:: max(1, dataset.size // SAMPLE)])
    if not 2 < len(values) <= FEW:
        return False
    return bool(np.array_equal(dataset.rewards == dataset.rewards.max(), dataset.masks == 0))


def done_at(dataset: OfflineDataset) -> float:
    """The highest reward. DataError if it does not tell rows apart."""
    highest = float(dataset.rewards.max())
    if not dataset.has_rewards or dataset.rewards.min() == highest:
        found = f"all rewards are {highest:g}" if dataset.has_rewards else "there are no rewards"
        raise DataError(
            f"{dataset.source}: --reward-rule sparse needs a reward that is highest when the task is done; {found}"
        )
    return highest


def sparse(dataset: OfflineDataset, highest: float) -> OfflineDataset:
    """The same data with a reward of 0 at the highest one, and -1 else. Its hash is that of the rewards as given."""
    return replace(
        dataset,
        rewards=np.where(dataset.rewards >= highest, 0, -1).astype(np.float32),
        info={**dataset.info, "reward_done": highest, GIVEN: dataset.sha256},
    )


def quantile_bounds(dataset: OfflineDataset, quantile: float) -> Bounds:
    """The quantiles q and 1 - q of each action dimension, in the user's units.

    A dimension that is constant between them keeps its bounds.
    """
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
    limited = {name: np.clip(column, -ACTION_LIMIT, ACTION_LIMIT).astype(np.float32) for name, column in unit.items()}
    info = {**dataset.info, "clipped_action_rows": clipped, "action_bounds": dataset.spec.bounds}
    return replace(dataset, **limited, action_low=bounds[0], action_high=bounds[1], info=info)


def delayed(dataset: OfflineDataset, delay: int) -> OfflineDataset:
    """The same transitions with late observations. Actions, rewards and masks stay with their rows."""
    rows = np.arange(dataset.size)
    starts = np.repeat(dataset.episodes[:, 0], np.diff(dataset.episodes)[:, 0])
    info = {**dataset.info, "delay": delay}
    if "observation_names" in info and not isinstance(dataset.observations, dict):
        added = range(delay * dataset.actions.shape[1])
        info["observation_names"] = [*info["observation_names"], *(f"{PENDING}[{number}]" for number in added)]
    return replace(
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


def hold_out(dataset: OfflineDataset, share: float) -> tuple[OfflineDataset, OfflineDataset]:
    """The data set without, and with only, about this share of its episodes: the last one of every round(1 / share).

    Neighbouring rows of an episode are alike, so held-out rows of a training episode would show nothing.
    """
    every, episodes = max(2, round(1 / share)), dataset.episodes
    held = np.arange(len(episodes)) % every == every - 1
    if not held.any():
        raise DataError(
            f"{dataset.source}: it has {len(episodes)} episodes, and holding out a share of {share:g} takes one of "
            f"every {every}. Hold out a larger share, or none: --validation 0."
        )
    rows = np.repeat(held, np.diff(episodes, axis=1)[:, 0])
    return _with_rows(dataset, ~rows, "training"), _with_rows(dataset, rows, "held out")


def _with_rows(dataset: OfflineDataset, rows: np.ndarray, label: str) -> OfflineDataset:
    columns = {name: take_rows(getattr(dataset, name), rows) for name in _ROWS}
    name = f"{dataset.name} ({label})"
    info = {key: value for key, value in dataset.info.items() if key != GIVEN}
    return replace(dataset, **columns, episodes=episodes_of(columns["terminals"]), name=name, info=info)
