"""One resolver for all data: `load_dataset("<scheme>:<what>")`."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fidec.data.dataset import OfflineDataset
from fidec.errors import ConfigError

SCHEMES = {
    "ogbench": "an OGBench single-task id, such as ogbench:cube-single-play-singletask-v0",
    "d4rl": "a D4RL antmaze-*-v2 or Adroit *-v1 id, such as d4rl:door-human-v1",
    "npz": "a NumPy archive, such as npz:runs/mine.npz",
    "hdf5": "a file in D4RL's layout, such as hdf5:hopper_medium-v2.hdf5",
    "minari": "a local Minari data set, such as minari:D4RL/pen/human-v2",
}
PLUGIN_GROUP = "fidec.datasets"


def load_dataset(
    source: str, *, cache_dir: str | Path | None = None, action_low: Any = None, action_high: Any = None
) -> OfflineDataset:
    """Load and check a data set; `source` is `<scheme>:<what>`, and a bare id means `ogbench:` or `d4rl:`.

    `cache_dir` is where the files of both are kept. `action_low` and `action_high` are for npz, hdf5 and minari
    data whose actions are not in [-1, 1] and which do not say their bounds themselves. Nothing is downloaded.
    An installed package may add a scheme with an entry point in the group `fidec.datasets`: a function from
    the text after the colon to an `OfflineDataset`.
    """
    scheme, colon, what = source.partition(":")
    if not colon:
        if Path(source).suffix in (".npz", ".hdf5", ".h5"):
            kind = "npz" if source.endswith(".npz") else "hdf5"
            raise ConfigError(f"{source!r} has no scheme; write '{kind}:{source}'.")
        from fidec.data.download.mirrors import D4RL_FILES

        scheme, what = "d4rl" if source in D4RL_FILES else "ogbench", source
    if not what:
        raise ConfigError(f"{source!r} names no data set. {_known()}")
    bounds = {"action_low": action_low, "action_high": action_high}
    if scheme == "npz":
        from fidec.data.npz import load_npz

        return load_npz(what, **bounds)
    if scheme == "hdf5":
        from fidec.data.hdf5 import load_hdf5

        return load_hdf5(what, **bounds)
    if scheme == "minari":
        from fidec.data.minari import load_minari

        return load_minari(what, **bounds)
    if action_low is not None or action_high is not None:
        raise ConfigError(f"action bounds cannot be given for '{scheme}:' data; it says its own.")
    if scheme == "ogbench":
        from fidec.data.ogbench import load_ogbench

        return load_ogbench(what, cache_dir=cache_dir)
    if scheme == "d4rl":
        from fidec.data.d4rl import load_d4rl

        return load_d4rl(what, cache_dir=cache_dir)
    return _load_plugin(scheme, what)


def _load_plugin(scheme: str, what: str) -> OfflineDataset:
    found = list(entry_points(group=PLUGIN_GROUP, name=scheme))
    if not found:
        raise ConfigError(f"unknown data source '{scheme}:'. {_known()}")
    dataset = found[0].load()(what)
    if not isinstance(dataset, OfflineDataset):
        raise ConfigError(
            f"the plug-in for '{scheme}:' ({found[0].value}) returned {type(dataset).__name__}; "
            "expected an OfflineDataset."
        )
    return dataset


def _known() -> str:
    lines = [f"{name}: ({text})" for name, text in SCHEMES.items()]
    lines += sorted(f"{e.name}: (plug-in {e.value})" for e in entry_points(group=PLUGIN_GROUP))
    return "Known schemes: " + "; ".join(lines) + "."
