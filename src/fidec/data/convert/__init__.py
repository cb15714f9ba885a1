"""Write a data set in another format, and say what that format cannot hold (`fidec data convert`).

Every format is written with all episodes in order, and read again: the content's hash before and after is in the
result. They are equal if nothing was lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidec.console import Progress
from fidec.data.cache import FOLDER
from fidec.data.cameras import Cameras
from fidec.data.columns import user_path
from fidec.data.convert import lerobot, minari
from fidec.data.convert.rows import Rows, user_actions
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import blocks
from fidec.data.npz import write_npz
from fidec.data.source import load_dataset
from fidec.data.sources.lerobot import load_folder as load_lerobot
from fidec.data.sources.minari import load_folder as load_minari
from fidec.errors import ConfigError
from fidec.parts import named
from fidec.store import files
from fidec.store.directories import replacing_directory

FORMATS = ("npz", "minari", "lerobot")


@dataclass(frozen=True)
class Converted:
    """What was written."""

    path: Path
    source: str
    """The text that loads it."""
    sha256_before: str
    sha256_after: str
    lost: tuple[str, ...]
    """What the format cannot hold, in sentences."""
    notes: tuple[str, ...]
    """What was added, or has to be known to read it."""


def convert(
    dataset: OfflineDataset, to: str, out: str | Path, *, overwrite: bool = False, fps: int = 10
) -> Converted:
    """Write `dataset` as `to` (npz, minari or lerobot) to `out`, a new file or directory, and read it again."""
    out = user_path(out)
    if to not in FORMATS:
        raise ConfigError(f"the format is {to!r}; expected {', '.join(FORMATS)}")
    if to == "npz" and out.suffix != ".npz":
        raise ConfigError(f"--out {out}: expected a file that ends with .npz")
    if to == "minari":
        minari.check_name(out)
    if (out.exists() or out.is_symlink()) and not overwrite:
        raise ConfigError(f"{out} exists. Give --overwrite to replace it, or another --out")
    if out.exists() and out.is_dir() != (to != "npz"):
        kind = "directory" if out.is_dir() else "file"
        raise ConfigError(f"{out} is a {kind}, which a data set of this format cannot replace. Choose another --out")
    rows = Rows.of(dataset, last_states=to != "lerobot")
    with (
        _writing(out, to) as place,
        Progress(rows.count, name=f"writing {out.name}", unit="row", enabled=rows.count > 5000) as progress,
    ):
        if to == "npz":
            lost, notes = _write_npz(rows, place, progress)
        elif to == "minari":
            lost, notes = minari.write(rows, place, out.name, progress)
        else:
            lost, notes = lerobot.write(rows, place, progress, fps)
    again, source = _load(dataset, to, out)
    if again.sha256 != dataset.sha256 and not lost:
        lost = ["the content is not the same when it is read again: " + _difference(dataset, again)]
    return Converted(out, source, dataset.sha256, again.sha256, tuple(lost), tuple(notes))


@contextlib.contextmanager
def _writing(out: Path, to: str) -> Iterator[Path]:
    """Where to write. It takes the place of `out` as a whole at the end of the block."""
    with files.writing(out, "the converted data"):
        out.parent.mkdir(parents=True, exist_ok=True)
        if to != "npz":
            with replacing_directory(out) as place:
                yield place
            return
        place = files.hidden(out, "tmp")
        try:
            yield place
            place.replace(out)
            files.fsync_directory(out.parent)
        finally:
            place.unlink(missing_ok=True)


def _load(dataset: OfflineDataset, to: str, out: Path) -> tuple[OfflineDataset, str]:
    """The data set as it was written, and its source text."""
    if to == "npz":
        source = f"npz:{out}"
        return load_dataset(source), source
    if to == "minari":
        source = f"minari:{minari.dataset_id(out)}"
        return load_minari(out / "data", out.name, source), source
    cameras = [name for name, _ in lerobot.image_parts(dataset)]
    source = f"lerobot:{out}" + (f"?cameras={','.join(cameras)}" if cameras else "")
    chosen = Cameras(tuple(cameras))
    again = load_lerobot(out, chosen, out.name, source, dataset.action_low, dataset.action_high)
    files.remove(out / FOLDER)  # the format has no such directory; the open file stays readable
    return again, source


def _difference(before: OfflineDataset, after: OfflineDataset) -> str:
    """The first column that differs."""

    def shapes(dataset: OfflineDataset) -> dict[str, Any]:
        columns = {**named("observations", dataset.observations), "actions": dataset.actions}
        return {key: (array.shape, str(array.dtype)) for key, array in columns.items()}

    if shapes(before) != shapes(after):
        return f"{shapes(before)} became {shapes(after)}"
    for key in ("actions", "rewards", "masks", "terminals"):
        wrong = int((getattr(before, key) != getattr(after, key)).sum())
        if wrong:
            return f"{wrong} numbers of the {key} differ"
    return "the observations differ"


def _write_npz(rows: Rows, out: Path, progress: Progress) -> tuple[list[str], list[str]]:
    """Last states are rows of their own if the next states are the next rows, else next states are a column."""
    dataset = rows.dataset
    members: dict[str, Any] = {}
    if rows.unlinked:
        for key in ("observations", "next_observations"):
            for name, array in named(key, getattr(dataset, key)).items():
                members[name] = (array.shape, array.dtype), blocks(array)
        single = {"actions": user_actions(dataset), "masks": dataset.masks, "terminals": dataset.terminals}
        rewards = dataset.rewards
    else:
        for name, array in named("observations", dataset.observations).items():
            members[name] = ((rows.count, *array.shape[1:]), array.dtype), _blocks(rows, name, progress)
        single = {"actions": rows.actions, "masks": rows.masks, "terminals": rows.ends}
        rewards = rows.rewards
    single |= {"rewards": rewards} if dataset.has_rewards else {}
    if dataset.action_low is not None:
        single |= {"action_low": np.array(dataset.action_low), "action_high": np.array(dataset.action_high)}
    members |= {key: ((array.shape, array.dtype), [array]) for key, array in single.items()}
    with open(out, "xb") as file:
        write_npz(file, members)
    progress.update(rows.count)
    return [], []


def _blocks(rows: Rows, name: str, progress: Progress) -> Iterator[np.ndarray]:
    for start, stop in rows.blocks():
        yield rows.observed(start, stop)[name]
        progress.update(stop)
