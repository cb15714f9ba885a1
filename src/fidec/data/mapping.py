"""Which columns of a table are what: a small TOML file that a user writes, or `fidec data map` proposes.

files = ["log-*.csv"]            relative to this file; CSV or Parquet
observation = ["q*", "gripper"]  columns in this order; * stands for any text, in the order of the file
action = ["tau*"]
episode = "episode"              without it each file is an episode
reward = "reward"                or `success`, or `reward_function`, or none of the three
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.columns import dimension_names, fail, flag_vector
from fidec.data.dataset import OfflineDataset
from fidec.data.recordings import SUFFIX, Recording, open_table
from fidec.data.tables import Table, match_columns, natural
from fidec.errors import ConfigError, DataError
from fidec.store.schema import TableReader, read_table

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Mapping:
    """The content of a mapping file."""

    files: tuple[str, ...]
    """Paths or patterns, relative to the mapping file, read in natural order: log2 before log10."""
    observation: tuple[str, ...]
    """Columns of the observation, by name or pattern. Those of one pattern are in the order of the first file."""
    action: tuple[str, ...]
    """Columns of the action."""
    action_kind: str | None = None
    """What an action says: where to go (absolute), or how far from here (delta). It is only recorded, for whoever
    plays the actions."""
    reward: str | None = None
    """Column of the reward."""
    success: str | None = None
    """Column of flags. The reward is -1 at every step and 0 at the last one of an episode that ends with success,
    which is also the end of the task."""
    reward_function: str | None = None
    """`my_package:reward`: called for each episode with its columns by name, returns one number for each row."""
    episode: str | None = None
    """Column with the id of the episode."""
    time: str | None = None
    """Column that has to increase within an episode."""
    terminal: str | None = None
    """Column of flags: 1 where the task ended."""
    truncation: str | None = None
    """Column of flags: 1 where the episode was cut."""
    clock: str | None = None
    """MCAP recordings only: the topic whose messages are the rows. Other columns have their last value before."""
    action_low: tuple[float, ...] | None = None
    """Lowest actions, one number or one for each dimension, if they are not in [-1, 1]."""
    action_high: tuple[float, ...] | None = None
    """Highest actions."""

    def __post_init__(self):
        given = [name for name in ("reward", "success", "reward_function") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are given: rewards have one source")
        if self.action_kind not in (None, "absolute", "delta"):
            raise ConfigError(f"action_kind is {self.action_kind!r}; expected absolute or delta")
        if not self.files:
            raise ConfigError("files is empty: name at least one file")
        for name, example in (("observation", "q*"), ("action", "tau*")):
            if not getattr(self, name):
                raise ConfigError(
                    f'{name} is empty: fill in its columns, such as {name} = ["{example}"]. `fidec data map FILE` '
                    "lists the columns of a file"
                )

    @property
    def rule(self) -> str:
        """Where rewards come from, for the record of a run."""
        if self.success is not None:
            return f"-1 a step, 0 at the end of an episode with success (column {self.success})"
        if self.reward_function is not None:
            return f"by {self.reward_function}"
        return "none" if self.reward is None else f"column {self.reward}"


def read_mapping(path: Path) -> Mapping:
    """A mapping file; ConfigError names the file and the key."""
    return TableReader(path).build(Mapping, read_table(path), "")


def files_of(path: Path, mapping: Mapping) -> list[Path]:
    """The data files that a mapping file names. They lie in its directory or below."""
    root, found = path.absolute().parent, []
    for pattern in mapping.files:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise DataError(f"{path}: files has {pattern!r}; expected a path below the directory of this file")
        own = sorted((each for each in root.glob(pattern) if each.is_file()), key=lambda each: natural(str(each)))
        if not own:
            raise DataError(f"{path}: no file is {pattern!r} below {root}")
        found += [each for each in own if each not in found]
    return found


def load_mapped(path: Path, source: str, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    """The data set of a mapping file."""
    mapping = read_mapping(path)
    files = files_of(path, mapping)
    where = str(path)
    names, whole = _read_all(path, mapping, files)
    rows = len(whole["actions"])
    for name in ("terminals", "truncations", "success"):
        if name in whole:
            whole[name] = flag_vector(where, name, whole[name], rows)
    ends = _ends(whole)
    if "success" in whole:
        won = whole.pop("success") & ends
        whole |= {
            "rewards": np.where(won, 0.0, -1.0),
            "terminals": won | whole.get("terminals", np.zeros(rows, bool)),
        }
    time = whole.pop("time", None)
    if time is not None:
        _check_time(where, str(mapping.time), time, ends)
    if mapping.reward_function is not None:
        whole["rewards"] = _call(path, mapping, whole, ends)
    for name in [name for name in whole if name.startswith("column:")]:
        del whole[name]
    given = action_low is not None or action_high is not None
    bounds = (action_low, action_high) if given else (mapping.action_low, mapping.action_high)
    whole |= {"action_low": bounds[0], "action_high": bounds[1]}
    info: dict[str, Any] = {"file": str(path.absolute()), "files": len(files), "rewards": mapping.rule}
    info |= names
    info |= {} if mapping.action_kind is None else {"action_kind": mapping.action_kind}
    if any(file.suffix.lower() == SUFFIX for file in files):
        info |= {"resampled": f"rows are the messages of {mapping.clock}; other topics hold their last value"}
    return build_dataset(whole, where=where, name=path.stem, source=source, info=info)


class _Chosen(NamedTuple):
    """The names of the columns that are read from a file."""

    observation: list[str]
    action: list[str]
    single: dict[str, str]
    """By the names that `build_dataset` knows."""
    extra: list[str]
    """What a reward function is given."""

    @property
    def all(self) -> list[str]:
        return [*self.observation, *self.action, *self.single.values(), *self.extra]

    def dimensions(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, list[str]]:
        """What the dimensions of observations and actions are called, for `OfflineDataset.info`."""
        keys = {"observation_names": self.observation, "action_names": self.action}
        return {
            key: [each for name in own for each in dimension_names(name, shapes[name])] for key, own in keys.items()
        }


def _choose(path: Path, mapping: Mapping, table: Table | Recording) -> _Chosen:
    where, names = str(table.file), list(table.types)
    observation = match_columns(where, "observation", mapping.observation, names)
    action = match_columns(where, "action", mapping.action, names)
    if both := [name for name in observation if name in action]:
        raise DataError(f"{path}: the column {both[0]!r} of {table.file.name} is both an observation and an action")
    single = {
        "rewards": mapping.reward,
        "success": mapping.success,
        "episodes": mapping.episode,
        "time": mapping.time,
        "terminals": mapping.terminal,
        "truncations": mapping.truncation,
    }
    single = {key: name for key, name in single.items() if name is not None}
    return _Chosen(observation, action, single, names if mapping.reward_function is not None else [])


def _read_all(path: Path, mapping: Mapping, files: list[Path]) -> tuple[dict[str, list[str]], Columns]:
    """The names of the dimensions, and the columns of all files. Their order is that of the first file."""
    chosen: _Chosen | None = None
    names: dict[str, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    tables: list[Columns] = []
    for file in files:
        table = open_table(file, mapping.clock)
        own = _choose(path, mapping, table)
        chosen = chosen or own
        if other := sorted(set(chosen.all) ^ set(own.all)):
            has, lacks = (file, files[0]) if other[0] in own.all else (files[0], file)
            raise DataError(f"{lacks}: has no column {other[0]!r}, but {has} has; all files need the same columns")
        found = table.read(chosen.all)
        for name, array in found.items():
            if shapes.setdefault(name, array.shape[1:]) != array.shape[1:]:
                raise fail(str(file), name, f" has rows of shape {array.shape[1:]}; {files[0]} has {shapes[name]}.")
        names = chosen.dimensions(shapes)
        tables.append(_columns(path, file, chosen, found))
    return names, {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _columns(path: Path, file: Path, chosen: _Chosen, found: Columns) -> Columns:
    """The columns of one file under the names that `build_dataset` knows."""
    where, rows = str(file), len(next(iter(found.values())))
    if rows == 0:
        raise DataError(f"{where}: has no rows")
    columns = {key: found[name] for key, name in chosen.single.items()}
    columns |= {
        "observations": _joined(where, found, chosen.observation),
        "actions": _joined(where, found, chosen.action),
    }
    name = str(file.relative_to(path.absolute().parent))  # files of several folders may have one name
    if "episodes" not in columns:
        columns["episodes"] = np.full(rows, name)
    else:  # an id may come back in another file
        columns["episodes"] = np.char.add(f"{name}: ", columns["episodes"].astype(np.str_))
    return columns | {f"column:{name}": found[name] for name in chosen.extra}


def _joined(where: str, found: Columns, names: list[str]) -> np.ndarray:
    parts = []
    for name in names:
        if found[name].dtype.kind not in "biuf":
            raise fail(where, name, f" is text ({found[name][0]!r} in the first row); expected numbers.")
        parts.append(found[name].reshape(len(found[name]), -1).astype(np.float32))
    return np.concatenate(parts, axis=1)


def _ends(whole: Columns) -> np.ndarray:
    """(rows,) bool: the last row of each episode."""
    ids = whole["episodes"]
    ends = np.append(ids[1:] != ids[:-1], True)
    for name in ("terminals", "truncations"):
        ends |= whole.get(name, False)
    return ends


def _check_time(where: str, name: str, time: np.ndarray, ends: np.ndarray) -> None:
    """Within an episode each row is later than the one before."""
    if time.dtype.kind not in "biuf":
        raise fail(where, name, " is text; expected a number or a time stamp.")
    back = ~(time[1:] > time[:-1]) & ~ends[:-1]
    if back.any():
        row = int(back.argmax()) + 1
        raise fail(
            where,
            name,
            f", row {row}: {time[row]} is not later than {time[row - 1]} in the row before, of the same episode. "
            "Sort the rows, or name the column of the episode.",
        )


def _call(path: Path, mapping: Mapping, whole: Columns, ends: np.ndarray) -> np.ndarray:
    """The user's reward function, episode by episode."""
    function, name = _function(path, str(mapping.reward_function)), str(mapping.reward_function)
    starts = np.append(0, np.flatnonzero(ends)[:-1] + 1)
    columns = {key.removeprefix("column:"): value for key, value in whole.items() if key.startswith("column:")}
    rewards = []
    for start, end in zip(starts, np.flatnonzero(ends) + 1, strict=True):
        given = np.asarray(function({key: value[start:end] for key, value in columns.items()}))
        if given.shape != (end - start,) or given.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: {name} returned {given.dtype} of shape {given.shape} for an episode of {end - start} rows; "
                f"expected numbers of shape ({end - start},)"
            )
        rewards.append(given.astype(np.float32))
    return np.concatenate(rewards)


def _function(path: Path, text: str) -> Callable[[Columns], Any]:
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{path}: reward_function is {text!r}, expected my_package:reward")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{path}: reward_function {text}: {error}. Install the module, or start in its directory"
        ) from error
    if not callable(found):
        raise ConfigError(f"{path}: reward_function {text} is not a function")
    return found
