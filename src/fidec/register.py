"""Registers: objects found by name, built in or added by an installed package.

A built-in entry is one module of one package: the module's name is the entry's name, and a fixed attribute of the
module is the entry. Nothing lists them, so a new file is a new entry. Another package adds an entry through an
entry-point group. A built-in entry cannot be replaced by a plug-in.
"""

from __future__ import annotations

import difflib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module, metadata
from numbers import Real
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fidec.errors import ConfigError

T = TypeVar("T")
# Names that other packages use for the same option.
SYNONYMS = {
    "lr": "learning_rate",
    "gamma": "discount",
    "tau": "target_rate",
    "polyak": "target_rate",
    "hidden_dims": "hidden",
    "hidden_sizes": "hidden",
    "layers": "hidden",
    "num_steps": "steps",
    "iterations": "steps",
}


def unknown(kind: str, name: str, known: Iterable[str], advice: str = "") -> ConfigError:
    """The error for a name that does not exist, with the closest known name if there is one.

    `advice` replaces the list of known names where that is long.
    """
    known = sorted(known)
    close = _closest(name, known)
    hint = f"; did you mean {close}?" if close else "."
    return ConfigError(f"there is no {kind} {name!r}{hint} {advice or 'Known: ' + ', '.join(known)}")


def check_choices(config: Any, prefix: str = "") -> None:
    """Raise ConfigError for a value that the type of its field does not list; else some branch would silently run.

    It looks at every field with a Literal, alone or in a union. `prefix` goes before the names in messages.
    """
    for name, choices, others in _choices_of(type(config)):
        value = getattr(config, name)
        if value not in choices and not _is_of(value, others):
            advice = f"Known: {', '.join(choices)}, or a number" if float in others else ""
            raise unknown(f"{prefix}{name}", str(value), choices, advice)


@lru_cache(maxsize=128)
def _choices_of(config: type) -> list[tuple[str, list[Any], set[Any]]]:
    """The fields with a Literal: the values that it lists, and the other types of the field."""
    found = []
    for name, hint in get_type_hints(config).items():
        kinds = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
        literals = {kind for kind in kinds if get_origin(kind) is Literal}
        if literals:
            found.append((name, [value for kind in literals for value in get_args(kind)], kinds - literals))
    return found


def _is_of(value: Any, kinds: set[Any]) -> bool:
    """Whether a value has one of these types; a whole number, also NumPy's, is a number, and a switch is none."""
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(Real if kind is float else get_origin(kind) or kind for kind in kinds))


def _closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is probably meant. Options are compared by their last part: --gamma, --algo.discount."""

    def core(word: str) -> str:
        return word.rpartition(".")[2].removeprefix("--").replace("-", "_") if word.startswith("--") else word

    by_core = {core(word): word for word in known}
    wanted = SYNONYMS.get(core(name), core(name))
    close = [wanted] if wanted in by_core else difflib.get_close_matches(wanted, by_core, n=1)
    return by_core[close[0]] if close else None


def _source(point: metadata.EntryPoint) -> str:
    return f"{point.value} of package {point.dist.name}" if point.dist else point.value


class Register(Generic[T]):
    """The entries of one kind, imported when first asked for."""

    def __init__(self, kind: str, package: str, attribute: str, entry: type[T], group: str):
        self.kind, self.package, self.attribute, self.entry, self.group = kind, package, attribute, entry, group
        self._warned: set[str] = set()
        self._checked = False  # whether the names of plug-ins were compared with the built-in ones

    def builtin(self) -> list[str]:
        """The entries of this package: the modules that lie directly in `package`."""
        path = import_module(self.package).__path__
        return sorted(m.name for m in pkgutil.iter_modules(path) if not m.ispkg and not m.name.startswith("_"))

    def plugins(self) -> dict[str, metadata.EntryPoint]:
        """The entries of other installed packages. One whose name is taken is left out, with a warning."""
        builtin, found = set(self.builtin()), {}
        for point in metadata.entry_points(group=self.group):
            if point.name in builtin:
                self._warn(f"{self._describe(point)}: fidec has a {self.kind} of this name. Rename the entry point.")
            elif (first := found.setdefault(point.name, point)) is not point:
                self._warn(f"{self._describe(point)}: {_source(first)} has this name too. Rename one of them.")
        self._checked = True
        return found

    def check_names(self) -> None:
        """Warn of plug-ins with the name of a built-in entry, which somebody may expect instead of it."""
        if not self._checked:
            self.plugins()

    def _describe(self, point: metadata.EntryPoint) -> str:
        return f"{self.kind} {point.name!r} ({_source(point)})"

    def _warn(self, message: str) -> None:
        """Say once what was left out, and why."""
        if message not in self._warned:
            self._warned.add(message)
            print(f"left out: {message}", file=sys.stderr)

    def names(self) -> list[str]:
        return sorted({*self.builtin(), *self.plugins()})

    def __contains__(self, name: str) -> bool:
        return name in self.builtin() or name in self.plugins()

    def entries(self) -> Iterator[tuple[str, T]]:
        """All entries, the built-in ones first. A plug-in that cannot be loaded is left out, with a warning."""
        for name in self.builtin():
            yield name, self.get(name)
        for name in sorted(self.plugins()):
            try:
                entry = self.get(name)
            except ConfigError as error:
                self._warn(str(error))
                continue
            yield name, entry

    def get(self, name: str) -> T:
        if name in self.builtin():
            self.check_names()
            return getattr(import_module(f"{self.package}.{name}"), self.attribute)
        point = self.plugins().get(name)
        if point is None:
            raise unknown(self.kind, name, self.names())
        try:
            entry = point.load()
        except Exception as error:  # a plug-in may raise anything
            raise ConfigError(
                f"{self._describe(point)} cannot be loaded: {type(error).__name__}: {error}. "
                "Repair or uninstall that package."
            ) from error
        if not isinstance(entry, self.entry):
            raise ConfigError(
                f"{self._describe(point)} is a {type(entry).__name__}, not a {self.entry.__name__}. "
                "Repair or uninstall that package."
            )
        return entry
