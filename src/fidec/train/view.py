"""The data as the policy of a run sees it: its range of actions and its delay."""

from __future__ import annotations

from fidec.data import OfflineDataset
from fidec.data.action_range import quantile_bounds, within
from fidec.data.delay import delayed
from fidec.train.config import RunConfig


def seen_by(config: RunConfig, dataset: OfflineDataset, *others: OfflineDataset) -> list[OfflineDataset]:
    """The data sets of a run with --action-quantile and --delay. All have the quantiles of the first."""
    seen = [dataset, *others]
    if config.action_quantile is not None:
        bounds = quantile_bounds(dataset, config.action_quantile)
        seen = [within(each, bounds) for each in seen]
    return [delayed(each, config.delay) for each in seen] if config.delay else seen
