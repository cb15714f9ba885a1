"""The suites: TOML files of this directory, entry points of other packages, and TOML files of users.

The name of a file is the name of the suite. docs/suites.md explains the keys. Another package adds a suite with an
entry point in the group `fidec.suites` that names a `Suite`, for which it can call `read_suite`.
"""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fidec import tasks
from fidec.bench.suite import Scale, Suite, SuiteTask, Variant
from fidec.data.source import source_from
from fidec.errors import ConfigError
from fidec.register import Register
from fidec.store.tables import TableReader, read_table

DIRECTORY = Path(__file__).parent
KEYS = ("summary", "setting", "tasks", "methods", "scale", "seeds")


class SuiteRegister(Register[Suite]):
    """Built-in suites are the TOML files of a package."""

    def builtin(self) -> list[str]:
        return sorted(path.stem for path in DIRECTORY.glob("*.toml"))

    def get(self, name: str) -> Suite:
        if name not in self.builtin():
            return super().get(name)
        self.check_names()
        return read_suite(DIRECTORY / f"{name}.toml")


SUITES = SuiteRegister("suite", "fidec.bench.suites", "SUITE", Suite, "fidec.suites")


def find_suite(name: str) -> Suite:
    """A suite by its name, or by the path of a TOML file."""
    return read_suite(Path(name)) if name.endswith(".toml") else SUITES.get(name)


def read_suite(path: Path) -> Suite:
    """Read a TOML file. Relative data paths start at the file's directory."""
    return _Reader(path).suite(read_table(path))


class _Reader(TableReader):
    """Turns the tables of one file into a suite."""

    def suite(self, table: dict[str, Any]) -> Suite:
        self.check_keys("the suite", table, KEYS)
        setting = table.get("setting", "offline")
        if setting not in ("offline", "online"):
            raise self.error("setting", setting, '"offline" or "online"')
        chosen = [task for task in self.entries(table, "tasks", SuiteTask) for task in self.expand(task, setting)]
        chosen = [self.with_data(task) for task in chosen]
        variants = [self.split_preset(variant) for variant in self.entries(table, "methods", Variant)]
        for key, names in (("tasks", [t.name for t in chosen]), ("methods", [v.name for v in variants])):
            if twice := [name for name in names if names.count(name) > 1]:
                raise self.error(key, twice[0], "each entry once; `suffix` tells two variants of a method apart")
        scale = self.build(Scale, table["scale"], "scale") if "scale" in table else None
        if scale is not None:
            scale = dataclasses.replace(scale, name=self.path.stem)
        elif own := [task.name for task in chosen if tasks.find(task.name, setting) is None]:
            raise self.error("scale", None, f"a table: there is no published protocol for {own[0]}")
        return Suite(
            self.path.stem,
            self.value(str, table.get("summary", ""), "summary"),
            tuple(chosen),
            tuple(variants),
            setting,
            scale,
            self.value(tuple[int, ...], table.get("seeds", [0]), "seeds"),
            "" if self.path.parent == DIRECTORY else str(self.path),
        )

    def entries(self, table: dict[str, Any], key: str, kind: type) -> list[Any]:
        """A list of names and tables, as objects of `kind`, whose first field is the name."""
        listed = table.get(key)
        if not isinstance(listed, list) or not listed:
            raise self.error(key, listed, "a list with at least one entry")
        first = dataclasses.fields(kind)[0].name
        made = []
        for number, entry in enumerate(listed):
            where = f"{key}[{number}]"
            entry = {"name": entry} if isinstance(entry, str) else entry
            if not isinstance(entry, dict) or "name" not in entry:
                raise self.error(where, entry, "a name, or a table with a `name`")
            made.append(self.build(kind, {first: entry["name"], **entry}, where, also=("name",)))
        return made

    def expand(self, task: SuiteTask, setting: str) -> list[SuiteTask]:
        """The benchmark's tasks that a pattern matches; a name without * stays as it is."""
        if "*" not in task.name:
            return [task]
        names = [row.id for row in tasks.TASKS if row.setting == setting and fnmatchcase(row.id, task.name)]
        if not names:
            raise self.error("tasks", task.name, f"a pattern that matches a task of the {setting} benchmark")
        return [dataclasses.replace(task, name=name) for name in names]

    def with_data(self, task: SuiteTask) -> SuiteTask:
        """The same task with a data path that does not depend on the directory."""
        if task.env is not None and task.data is None:
            raise self.error(f"data of task {task.name!r}", None, "a data source: an environment has no data")
        if task.data is None:
            return task
        try:
            return dataclasses.replace(task, data=source_from(self.path.parent, task.data))
        except ConfigError as error:
            raise ConfigError(f"{self.path}: data of task {task.name!r}: {error}") from error

    def split_preset(self, variant: Variant) -> Variant:
        """NAME:PRESET as two fields."""
        method, colon, preset = variant.method.partition(":")
        return dataclasses.replace(variant, method=method, preset=preset) if colon else variant

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """A value that has the type of its field. No number of a suite is negative."""
        if hint is int and type(value) is int and value < 0:
            raise self.error(where, value, "a whole number, at least 0")
        return super().value(hint, value, where)
