"""The data as the policy of a run sees it: its range of actions and its delay."""

from __future__ import annotations

from fidec.data import OfflineDataset
from fidec.data.action_range import Bounds, quantile_bounds, within
from fidec.data.delay import delayed
from fidec.data.mapped import is_mapped
from fidec.errors import ConfigError
from fidec.train.config import RunConfig


def seen_by(
    config: RunConfig, dataset: OfflineDataset, *others: OfflineDataset, bounds: Bounds | None = None
) -> list[OfflineDataset]:
    """The data sets of a run with --action-quantile and --delay.

    All have the quantiles of the first, or the `bounds` of a policy that was trained with such quantiles.
    """
    seen = [dataset, *others]
    if config.action_quantile is None and not config.delay:
        return seen
    for each in seen:
        if is_mapped(each.actions):
            raise ConfigError(
                f"--action-quantile and --delay need actions in memory, and those of {each.source} stay on the disk. "
                "Leave the options out, or train on fewer rows: less than 1 GB of vectors is read into memory"
            )
    if config.action_quantile is not None:
        bounds = bounds or quantile_bounds(dataset, config.action_quantile)
        seen = [within(each, bounds) for each in seen]
    return [delayed(each, config.delay) for each in seen] if config.delay else seen
