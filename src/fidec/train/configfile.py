"""A file with the options of a run: TOML, or JSON such as the config.json of another run.

The keys are the fields of `RunConfig`. The tables `online` and `options` hold the options of the online phase and of
the method. Relative paths of data start at the file's directory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fidec import algos
from fidec.data.source import source_from
from fidec.envs.factory import is_function
from fidec.errors import ConfigError, naming
from fidec.store.rundir import check_config, is_run
from fidec.store.schema import TableReader, read_table
from fidec.train.config import RunConfig
from fidec.train.protocol import resolve_options, task_options

REPLACED = ("task", "env", "data", "buffer", "preset")  # given elsewhere, they change what the file's values mean
_TABLE = "`options` (and `sha256`, if it is there)"  # what to delete from a copy of a run's config.json
ARRAYS = "arrays:"  # instead of a source, for data that was given in Python


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """The values of a file. Without a file there are none."""

    path: Path | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of RunConfig's fields, without the options
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the method, as the file has them
    replaced: Collection[str] = ()  # keys that the command line gives instead

    @classmethod
    def read(cls, path: Path, replaced: Collection[str] = ()) -> ConfigFile:
        """Read and check a file, but for the method's options."""
        table = read_table(path)
        own_run = "sha256" in table or is_run(path.parent)
        if path.suffix == ".json" and own_run:
            check_config(path, table)
            table.pop("out", None)  # a new run has its own directory
        options = TableReader(path).value(dict, table.pop("options", None) or {}, "options")
        for name in _meaningless(replaced):
            table.pop(name, None)
        values = TableReader(path).values(RunConfig, table, "")
        return cls(path, _with_places(path, values), options, replaced)

    def resolve_options(self, algo: str, preset: str, task: str | None, setting: str, **named: Any) -> Any:
        """The method's options: those of preset and task, changed by the file's, then by `named`."""
        if self.path is None:
            return resolve_options(algo, preset, task, setting, **named)
        method = algos.get(algo)
        chosen = {**method.presets.get(preset, {}), **task_options(algo, preset, task, setting)}
        kind = method.config_for({**chosen, **self.options, **named})
        given = method.suited(self.options, {**chosen, **self.options}, named)
        own, fields = self.values.get("algo", algo), {field.name for field in dataclasses.fields(kind)}
        if own != algo and (others := [name for name in given if name not in fields]):
            raise ConfigError(
                f"{self.path}: its options belong to {own}: {algo} has no option {others[0]!r}. Omit --algo {algo}, "
                f"or delete {_TABLE} from a copy of the file and give the options of {algo} with --algo.*"
            )
        values = TableReader(self.path).values(kind, given, "options")
        if "preset" in self.replaced and values.keys() >= fields:
            raise ConfigError(
                f"{self.path} has a value for each option of {algo}: --preset {preset} would have no effect. "
                f"Omit it, or delete {_TABLE} from a copy of the file"
            )
        with naming(str(self.path)):
            return resolve_options(algo, preset, task, setting, **{**values, **named})


def _meaningless(replaced: Collection[str]) -> set[str]:
    """The keys of a file that have no meaning if others are given elsewhere. Another task has its own data."""
    if "task" in replaced:
        return {"task", "env", "data"}
    return {"task", *replaced} if "env" in replaced else set(replaced)


def _with_places(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values with absolute sources. What was given in Python is not in any file."""
    env, buffer = values.get("env"), values.get("buffer")
    for name, gone in (("env", is_function(env or "")), ("buffer", (buffer or "").startswith(ARRAYS))):
        if gone:
            raise ConfigError(
                f"{path}: {name} is {values[name]!r}, which was given in Python: name another with --{name}"
            )
    for name in ("data", "buffer"):
        if values.get(name) is not None:
            with naming(f"{path}: {name}"):
                values[name] = source_from(path.parent, values[name])
    for name in ("data_dir", "init_from", "flow"):
        if values.get(name) is not None:
            values[name] = (path.parent / values[name].expanduser()).absolute()
    return values
