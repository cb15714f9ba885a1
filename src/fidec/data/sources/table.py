"""`table:columns.toml`: CSV, Parquet or MCAP files, with a small TOML file that says which columns are what.

files = ["log-*.csv"]            relative to this file; CSV, Parquet or MCAP
observation = ["q*", "gripper"]  columns in this order; * stands for any text, in the order of the file
action = ["tau*"]
episode = "episode"              without it each file is an episode
reward = "reward"                or `success`, or `reward_function`, or none of the three

A user writes it, or `fidec data map` suggests one by the names of the columns.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.data.arrays import build_dataset
from fidec.data.columns import dimension_names, existing_file, fail, flag_vector
from fidec.data.dataset import OfflineDataset
from fidec.data.source import CacheDir, DataSource, absolute_path
from fidec.data.tables import SUFFIX, SUFFIXES, Recording, Table, match_columns, natural, open_table
from fidec.errors import ConfigError, DataError
from fidec.store.schema import TableReader, read_table

Columns = dict[str, np.ndarray]
KINDS = (*SUFFIXES, SUFFIX)


@dataclass(frozen=True)
class TableSchema:
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


def mapping_file(what: str) -> Path:
    """The path of a mapping file; an error says how to get one for a table."""
    file = existing_file(what)
    if file.suffix.lower() in KINDS:
        raise DataError(
            f"{file}: a table or a recording does not say which columns are observation, action and reward. "
            f"`fidec data map {file}` proposes a mapping file: check it, then name that file, table:columns.toml."
        )
    return file


def read_schema(path: Path) -> TableSchema:
    """A mapping file; ConfigError names the file and the key."""
    return TableReader(path).build(TableSchema, read_table(path), "")


def files_of(path: Path, schema: TableSchema) -> list[Path]:
    """The data files that a mapping file names. They lie in its directory or below."""
    root, files = path.absolute().parent, []
    for pattern in schema.files:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise DataError(f"{path}: files has {pattern!r}; expected a path below the directory of this file")
        matching = sorted(filter(Path.is_file, root.glob(pattern)), key=lambda file: natural(str(file)))
        if not matching:
            raise DataError(f"{path}: no file is {pattern!r} below {root}")
        files += [file for file in matching if file not in files]
    return files


def load(what: str, *, cache_dir: CacheDir = None, action_low: Any = None, action_high: Any = None) -> OfflineDataset:
    """The data set of a mapping file."""
    path = mapping_file(what)
    schema = read_schema(path)
    files = files_of(path, schema)
    where = str(path)
    names, whole = _read_all(path, schema, files)
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
        _check_time(where, str(schema.time), time, ends)
    if schema.reward_function is not None:
        whole["rewards"] = _call(path, schema, whole, ends)
    for name in [name for name in whole if name.startswith("column:")]:
        del whole[name]
    given = action_low is not None or action_high is not None
    bounds = (action_low, action_high) if given else (schema.action_low, schema.action_high)
    whole |= {"action_low": bounds[0], "action_high": bounds[1]}
    info: dict[str, Any] = {"file": str(path.absolute()), "files": len(files), "rewards": schema.rule}
    info |= names
    info |= {} if schema.action_kind is None else {"action_kind": schema.action_kind}
    if any(file.suffix.lower() == SUFFIX for file in files):
        info |= {"resampled": f"rows are the messages of {schema.clock}; other topics hold their last value"}
    return build_dataset(whole, where=where, name=path.stem, source=f"table:{what}", info=info)


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
            key: [dimension for name in names for dimension in dimension_names(name, shapes[name])]
            for key, names in keys.items()
        }


def _choose(path: Path, schema: TableSchema, table: Table | Recording) -> _Chosen:
    where, names = str(table.file), list(table.types)
    observation = match_columns(where, "observation", schema.observation, names)
    action = match_columns(where, "action", schema.action, names)
    if both := [name for name in observation if name in action]:
        raise DataError(f"{path}: the column {both[0]!r} of {table.file.name} is both an observation and an action")
    single = {
        "rewards": schema.reward,
        "success": schema.success,
        "episodes": schema.episode,
        "time": schema.time,
        "terminals": schema.terminal,
        "truncations": schema.truncation,
    }
    single = {key: name for key, name in single.items() if name is not None}
    return _Chosen(observation, action, single, names if schema.reward_function is not None else [])


def _read_all(path: Path, schema: TableSchema, files: list[Path]) -> tuple[dict[str, list[str]], Columns]:
    """The names of the dimensions, and the columns of all files. Their order is that of the first file."""
    chosen: _Chosen | None = None
    names: dict[str, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    tables: list[Columns] = []
    for file in files:
        table = open_table(file, schema.clock)
        of_file = _choose(path, schema, table)
        chosen = chosen or of_file
        if other := sorted(set(chosen.all) ^ set(of_file.all)):
            has, lacks = (file, files[0]) if other[0] in of_file.all else (files[0], file)
            raise DataError(f"{lacks}: has no column {other[0]!r}, but {has} has; all files need the same columns")
        columns = table.read(chosen.all)
        for name, array in columns.items():
            if shapes.setdefault(name, array.shape[1:]) != array.shape[1:]:
                raise fail(str(file), name, f" has rows of shape {array.shape[1:]}; {files[0]} has {shapes[name]}.")
        names = chosen.dimensions(shapes)
        tables.append(_columns(path, file, chosen, columns))
    return names, {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _columns(path: Path, file: Path, chosen: _Chosen, table: Columns) -> Columns:
    """The columns of one file under the names that `build_dataset` knows."""
    where, rows = str(file), len(next(iter(table.values())))
    if rows == 0:
        raise DataError(f"{where}: has no rows")
    columns = {key: table[name] for key, name in chosen.single.items()}
    columns |= {
        "observations": _joined(where, table, chosen.observation),
        "actions": _joined(where, table, chosen.action),
    }
    name = str(file.relative_to(path.absolute().parent))  # files of several folders may have one name
    if "episodes" not in columns:
        columns["episodes"] = np.full(rows, name)
    else:  # an id may come back in another file
        columns["episodes"] = np.char.add(f"{name}: ", columns["episodes"].astype(np.str_))
    return columns | {f"column:{name}": table[name] for name in chosen.extra}


def _joined(where: str, table: Columns, names: list[str]) -> np.ndarray:
    for name in names:
        if table[name].dtype.kind not in "biuf":
            raise fail(where, name, f" is text ({table[name][0]!r} in the first row); expected numbers.")
    return np.concatenate([table[name].reshape(len(table[name]), -1).astype(np.float32) for name in names], axis=1)


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


def _call(path: Path, schema: TableSchema, whole: Columns, ends: np.ndarray) -> np.ndarray:
    """The user's reward function, episode by episode."""
    function, name = _function(path, str(schema.reward_function)), str(schema.reward_function)
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
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{path}: reward_function {text}: {error}. Install the module, or start in its directory"
        ) from error
    if not callable(function):
        raise ConfigError(f"{path}: reward_function {text} is not a function")
    return function


# By the part of a name before its number: action_0, tau3, "cmd.x".
_ACTION = r"(action|act|a|u|cmd|command|control|ctrl|tau|torque|target)s?([._\[ -].*|\d+\]?)?"
_SINGLE = {
    "episode": r"(episode|ep|traj|trajectory|demo|run|rollout)([._ ]?(index|id|number|idx))?",
    "time": r"(log[._])?(t|time|stamp|timestamp|seconds)([._ ](s|ns|us|ms|stamp))?",
    "reward": r"(next[._])?(reward|rew|r)",
    "success": r"(next[._]|is[._])?(success|succeeded|solved)",
    "terminal": r"(next[._]|is[._])?(terminal|terminated|done)s?",
    "truncation": r"(next[._]|is[._])?(truncat(ed|ion)|timeout)s?",
}
_COUNTERS = r"(index|frame([._]?(index|id))?|step|row|unnamed: 0|)"
_NUMBER = r"(u?int\d*|halffloat|float|double|bool)"
_NUMBERS = rf"{_NUMBER}|(large_|fixed_size_)?list<[^:]+: {_NUMBER}( not null)?>(\[\d+\])?|list of \d+"
_TYPES = {"episode": r"(?!.*list).*", "time": rf"{_NUMBER}|(timestamp|duration)\[.*"}  # of columns that may be others


def suggest(types: dict[str, str]) -> dict[str, list[str]]:
    """The columns for each key of a mapping file, in the order of the file. What else is numbers is observed."""
    columns: dict[str, list[str]] = {"observation": [], "action": []}
    for name, kind in types.items():
        low = name.lower().strip().lstrip("/")
        key = next((key for key, pattern in _SINGLE.items() if re.fullmatch(pattern, low)), "")
        if key and key not in columns and re.fullmatch(_TYPES.get(key, _NUMBER), kind):
            columns[key] = [name]
        elif not re.fullmatch(_NUMBERS, kind):
            continue
        elif re.fullmatch(_ACTION, low):
            columns["action"].append(name)
        elif not re.fullmatch(_COUNTERS, low) and ".header." not in low:
            columns["observation"].append(name)
    if "reward" in columns:
        columns.pop("success", None)  # rewards have one source
    return columns


def suggested_file(files: list[Path], out: Path) -> str:
    """A mapping file for these tables, with a comment for what has to be checked."""
    first = open_table(files[0])
    names = dict(first.types)
    for other in files[1:]:
        types = open_table(other).types
        if unlike := sorted(set(types) ^ set(names)):
            has, lacks = (other, files[0]) if unlike[0] in types else (files[0], other)
            raise DataError(
                f"{lacks} has no column {unlike[0]!r}, but {has} has: map them one by one, or rename columns"
            )
        names |= {name: kind for name, kind in types.items() if not re.fullmatch(_NUMBERS, kind)}
    root = out.absolute().parent
    paths = [file.absolute() for file in files]
    if outside := [path for path in paths if not path.is_relative_to(root)]:
        raise DataError(f"{outside[0]} is not below {root}, the directory of {out.name}: choose another --out")
    columns = suggest(names)
    clock = []
    if isinstance(first, Recording) and first.topics:
        action = (*columns["action"], "")[0]
        topics = [topic for topic in first.topics if action.startswith(f"{topic}.")]
        topic = max(topics, key=len) if topics else first.topics[0]
        clock = [f"clock = {json.dumps(topic)}  # its messages are the rows; other topics hold their last value"]
    lines = [
        "# Which columns are what. Check every line: it was proposed by the names of the columns.",
        f"files = {_list([str(path.relative_to(root)) for path in paths])}",
        f"observation = {_list(columns.pop('observation'))}",
        f"action = {_list(columns.pop('action'))}",
        *(f"{key} = {json.dumps(of_key[0])}" for key, of_key in columns.items()),
        *clock,
        *(['# episode = "..."  # without it each file is an episode'] if "episode" not in columns else []),
        *(
            ['# reward = "..."  # or success, or reward_function; without it train bc or flow_bc']
            if not {"reward", "success"} & columns.keys()
            else []
        ),
        "# action_low = [-1.0]  # the bounds of the actions, if they are not in [-1, 1]",
        "# action_high = [1.0]",
        "",
        "# All columns:",
        *(f"#   {json.dumps(name)}  {kind}" for name, kind in names.items()),
    ]
    return "\n".join(lines) + "\n"


def _list(values: list[str]) -> str:
    return "[" + ", ".join(json.dumps(value) for value in values) + "]"


def _check_present(what: str, cache_dir: CacheDir) -> None:
    file = mapping_file(what)
    files_of(file, read_schema(file))


SOURCE = DataSource(
    summary="CSV, Parquet or MCAP files with a mapping file",
    example="table:columns.toml",
    load=load,
    claims=lambda text: text.endswith(KINDS),
    absolute=absolute_path,
    check_present=_check_present,
)
