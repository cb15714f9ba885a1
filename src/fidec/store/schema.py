"""JSON or TOML that was read from a file, checked before it is used.

A schema is a type: `int`, `str | None`, `list[float]`, `dict[str, int]`, a `Literal`, a `TypedDict` or a dataclass.
An object may have more keys than its schema names, so that files of newer versions can be read. Files that users
write are read with `read_table` and `TableReader`: every error names the file and the key.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fidec.errors import ConfigError, naming
from fidec.register import unknown

# Types of a single value: those that it may have in a file, and words for them.
_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    types.NoneType: ((types.NoneType,), "null"),
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    str: ((str,), "text"),
    bool: ((bool,), "true or false"),
    Path: ((str,), "a path as text"),
}
DEPTH = 32  # of nested JSON; fidec's own files have less than ten levels


def parse_json(text: str | bytes) -> Any:
    """A value from JSON; ValueError unless all of its numbers are finite and below 2^63, and it is not too deep."""
    try:
        value = json.loads(text, parse_int=_whole, parse_float=_real, parse_constant=_real)
        level, depth = [value], 0
        while level and depth <= DEPTH:
            level, depth = [item for each in level for item in _items(each)], depth + 1
    except RecursionError:
        depth = DEPTH + 1
    if depth > DEPTH:
        raise ValueError(f"it is nested deeper than {DEPTH} levels")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**63:
        raise ValueError(f"the number {digits[:20]}... is too large")
    return value


def _real(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:20]} is not a finite number")
    return value


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check(value: Any, schema: Any, name: str = "") -> None:
    """Raise a ValueError, which names the entry, what it is and what was expected, unless `value` fits the schema."""
    origin, arguments = get_origin(schema), get_args(schema)
    if origin in (Annotated, Required, NotRequired):
        check(value, arguments[0], name)
    elif origin in (Union, types.UnionType):
        _check_any(value, arguments, schema, name)
    elif origin is Literal:
        _expect(value in arguments, value, schema, name)
    elif is_typeddict(schema) or dataclasses.is_dataclass(schema):
        _expect(isinstance(value, dict), value, schema, name)
        required = getattr(
            schema, "__required_keys__", ()
        )  # those of a dataclass have defaults, or the caller checks
        for key, entry in _fields(schema).items():
            if key in value:
                check(value[key], entry, f"{name}.{key}" if name else key)
            elif key in required and get_origin(entry) is not NotRequired:
                raise ValueError(f"{f'{name}.{key}' if name else key} is missing")
    elif (origin or schema) in (list, tuple):
        _expect(isinstance(value, list | tuple), value, schema, name)
        if origin is tuple and ... not in arguments and len(arguments) != len(value):
            raise ValueError(f"{name} has {len(value)} entries, expected {len(arguments)}")
        kinds = arguments if origin is tuple and ... not in arguments else arguments[:1] * len(value)
        for number, (item, kind) in enumerate(zip(value, kinds, strict=False)):
            check(item, kind, f"{name}[{number}]")
    elif (origin or schema) in (dict, Mapping):
        _expect(isinstance(value, dict), value, schema, name)
        for key, item in value.items() if arguments else ():
            check(item, arguments[1], f"{name}.{key}" if name else key)
    elif schema in _PLAIN:  # any other type, such as one of a plug-in's options, is left to its owner
        _expect(type(value) in _PLAIN[schema][0], value, schema, name)


def _check_any(value: Any, schemas: tuple[Any, ...], schema: Any, name: str) -> None:
    inside: ValueError | None = None  # names the entry of an object or a list
    for each in schemas:
        try:
            check(value, each, name)
            return
        except ValueError as error:
            inside = error if isinstance(value, dict | list) and each is not type(None) else inside
    if inside is not None:
        raise inside
    _expect(False, value, schema, name)


def _expect(true: bool, value: Any, schema: Any, name: str) -> None:
    if not true:
        found = json.dumps(value, default=str)[:60]  # TOML has dates, too
        raise ValueError(f"{name or 'the value'} is {found}, expected {_words(schema)}")


def _words(schema: Any) -> str:
    """What a schema allows."""
    origin, arguments = get_origin(schema), get_args(schema)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(each) for each in arguments if each is not types.NoneType)
    if origin is Literal:
        return " or ".join(map(json.dumps, arguments))
    if (origin or schema) in (list, tuple):
        return "a list"
    return _PLAIN[schema][1] if schema in _PLAIN else "a table of keys and values"


@cache
def _fields(schema: Any) -> dict[str, Any]:
    try:
        return get_type_hints(schema, include_extras=True)
    except (NameError, TypeError):  # names that exist only for a type checker
        return {}


# --- files that users write ------------------------------------------------------------------------------------


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
