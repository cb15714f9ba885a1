"""Training from Python in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fidec.data import OfflineDataset, load_dataset
from fidec.train.config import RunConfig, resolve_options
from fidec.train.run import Result, train


def fit(
    dataset: OfflineDataset | str,
    out: str | Path,
    *,
    algo: str = "fidec",
    preset: str = "recommended",
    steps: int = 100_000,
    seed: int = 0,
    task: str | None = None,
    options: dict[str, Any] | None = None,
    buffer: OfflineDataset | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Train a method on a data set (or on a source such as "npz:mine.npz") and write a run directory.

    `options` are the method's (`{"budget": 0.01}`), `settings` any other field of `RunConfig` (`batch_size`,
    `checkpoint_interval`, ...). With a `buffer`, a second data set, half of each batch comes from it. With a `task`
    the policy is evaluated in that environment; without one no environment is needed.
    `fidec.load_policy(result.policy)` gives the policy.
    """
    setting = "online" if settings.get("online_steps") else "offline"
    resolved = resolve_options(algo, preset, task, setting, **(options or {}))
    source = dataset if isinstance(dataset, str) else None
    config = RunConfig(
        task=task,
        algo=algo,
        preset=preset,
        data=source,
        steps=steps,
        seed=seed,
        out=Path(out),
        options=resolved,
        buffer=buffer if isinstance(buffer, str) else None,
        **settings,
    )
    loaded = load_dataset(dataset, cache_dir=config.data_dir) if isinstance(dataset, str) else dataset
    given = None if isinstance(buffer, str) else buffer
    return train(config, loaded, given, overwrite=overwrite, quiet=quiet)
