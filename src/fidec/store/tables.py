"""TOML and JSON files that users write. Keys and types are checked; every error names the file and the key."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fidec.errors import ConfigError, naming
from fidec.register import unknown
from fidec.store.schema import check


def read_table(path: Path) -> dict[str, Any]:
    """The content of a JSON file (by its suffix) or a TOML file."""
    kind, parse = ("JSON", json.loads) if path.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        table = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of the decoding
        raise ConfigError(f"{path}: is not valid {kind}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: is a {type(table).__name__}, expected a table of keys and values")
    return table


class TableReader:
    """Turns the tables of one file into values of the types that dataclasses declare."""

    def __init__(self, path: Path):
        self.path = path

    def error(self, key: str, value: Any, allowed: str) -> ConfigError:
        return ConfigError(f"{self.path}: {key} is {value!r}, expected {allowed}")

    def check_keys(self, key: str, table: Any, known: Collection[str]) -> None:
        if not isinstance(table, dict):
            raise self.error(key, table, "a table")
        for name in table:
            if name not in known:
                raise ConfigError(f"{self.path}: {unknown(f'key in {key}', name, known)}")

    def values(self, kind: type, table: Any, where: str, also: Collection[str] = ()) -> dict[str, Any]:
        """The values of a table whose keys are fields of a dataclass. Keys in `also` are allowed and left out."""
        hints, prefix = get_type_hints(kind), f"{where}." if where else ""
        self.check_keys(where or "the file", table, (*hints, *also))
        return {name: self.value(hints[name], table[name], f"{prefix}{name}") for name in hints if name in table}

    def build(self, kind: type, table: Any, where: str, also: Collection[str] = ()) -> Any:
        """A dataclass whose fields are the keys of a table."""
        values = self.values(kind, table, where, also)
        missing = [f.name for f in dataclasses.fields(kind) if _is_required(f) and f.name not in values]
        if missing:
            raise ConfigError(f"{self.path}: {where} has no `{missing[0]}`")
        with naming(str(self.path)):
            return kind(**values)

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """A value that has the type of its field, with tuples for lists and paths for text."""
        if dataclasses.is_dataclass(hint):
            return self.build(hint, value, where)  # type: ignore[arg-type]
        try:
            check(value, hint, where)
        except ValueError as error:
            raise ConfigError(f"{self.path}: {error}") from error
        is_path = isinstance(value, str) and Path in (hint, *get_args(hint))
        return Path(value) if is_path else _with_tuples(value)


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _with_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
