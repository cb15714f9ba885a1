"""`fidec algos [NAME]`: the methods, or the essence of one, all read from its code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import tyro

from fidec import algos
from fidec.algos.common import options as common
from fidec.algos.common.base import COMMON_LOGS, METHODS
from fidec.cli.parsing import parse, print_json, print_table

TASK = "cube-single-play-singletask-task2-v0"  # of the one command; its data can be made anywhere
NARROW = 36  # columns that the last column of a table needs to be worth reading


@dataclass(frozen=True)
class AlgosArgs:
    """List the methods, or show one: its equations, its options under each preset, what it logs, its command."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """A method."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(AlgosArgs, argv, "fidec algos")
    if args.name is not None:
        description = describe(args.name)
        if args.json:
            print_json(description)
        else:
            _print(description, shutil.get_terminal_size().columns)
        return 0
    methods = dict(sorted(METHODS.entries()))
    if args.json:
        print_json([{"name": n, "summary": m.summary, "presets": _presets(m)} for n, m in methods.items()])
    else:
        print_table(("method", "what it is"), [(name, method.summary) for name, method in methods.items()])
    return 0


def describe(name: str) -> dict[str, Any]:
    """All that is known of a method, as plain values."""
    method = algos.get(name)
    module, *bases = _modules(method)
    configs, known = {preset: method.configure(preset) for preset in _presets(method)}, {}
    for config in configs.values():  # their constraints may have other options
        known |= meanings(type(config), *method.parts_of(vars(config)).values())
    return {
        "name": name,
        "summary": method.summary,
        "docstring": _docstring(module),
        # The nearest one only: it says itself what it takes from others.
        "builds_on": {base: _docstring(base) for base in bases[:1] if _docstring(base)},
        "options": {preset: dataclasses.asdict(config) for preset, config in configs.items()},
        "meanings": known,
        "logs": dict(method.logs),
        "common_logs": COMMON_LOGS,
        "runs": {preset: dict(fields) for preset, fields in method.runs.items()},
        "online": dict(method.online),
        "offline_only": method.offline_only or None,
        "command": f"fidec train --task {TASK} --algo {name}",
    }


def meanings(config: type, *parts: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, "" where there is none; a class speaks before its bases.

    `parts` are classes whose fields it also has.
    """
    docstrings: dict[str, str] = {}
    for cls in (each for kind in (*parts, config) for each in reversed(kind.__mro__)):
        docstrings |= _docstrings_under_fields(cls)
    return {field.name: docstrings.get(field.name, "") for field in dataclasses.fields(config)}


def _docstrings_under_fields(cls: type) -> dict[str, str]:
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):  # built in, or made where no source is kept
        return {}
    docstrings = {}
    for field, after in pairwise(definition.body if isinstance(definition, ast.ClassDef) else ()):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = " ".join(text.split())
    return docstrings


def _modules(method: algos.Method) -> list[str]:
    """The module of the method, then those whose options it inherits. Common options go without saying."""
    make: Any = method.make
    while isinstance(make, functools.partial):
        make = make.func
    names = [cls.__module__ for cls in method.config.__mro__]
    names = names if make.__module__ in names else [make.__module__, *names]
    return [name for name in dict.fromkeys(names) if name not in ("builtins", common.__name__)]


def _docstring(module: str) -> str:
    return inspect.cleandoc(getattr(sys.modules.get(module), "__doc__", None) or "")


def _print(description: dict[str, Any], width: int) -> None:
    _print_prose(f"{description['name']}: {description['summary']}", width)
    if description["docstring"]:
        print()
        _print_prose(description["docstring"], width)
    for module, text in description["builds_on"].items():
        print(f"\nBuilt on {module}:\n")
        _print_prose(text, width)
    options = description["options"]
    rows = [
        (option, *(_cell(fields.get(option, "-")) for fields in options.values()), meaning)
        for option, meaning in description["meanings"].items()
    ]
    print()
    _print_wrapped(("option", *options, "meaning"), rows, width)
    print()
    logs, common_logs = description["logs"], description["common_logs"]
    _print_wrapped(("logged", "meaning"), (logs | common_logs | logs).items(), width)
    print()
    for preset, fields in description["runs"].items():
        set_up = " ".join(f"--{name.replace('_', '-')} {_cell(value)}" for name, value in fields.items())
        _print_prose(f"The preset {preset} sets up a run with {set_up}, and has no options by task.", width)
    _print_prose(_online(description), width)
    print(f"\n$ {description['command']}")


def _online(description: dict[str, Any]) -> str:
    if description["offline_only"]:
        return f"{description['name']} is not trained online: {description['offline_only']}."
    online = description["online"].items()
    words = " ".join(f"--online.{option.replace('_', '-')} {_cell(value)}" for option, value in online)
    return (
        f"Trained online with {words} unless told otherwise." if words else "Trained online with the common settings."
    )


def _print_prose(text: str, width: int) -> None:
    """Paragraphs filled anew; lines that are laid out, such as equations, only broken where they must be."""
    for i, block in enumerate(text.split("\n\n")):
        if i:
            print()
        lines = block.strip("\n").splitlines()
        if not any("  " in line for line in lines):
            lines = [" ".join(lines)]
        for line in lines:
            margin = len(line) - len(line.lstrip())
            hanging = " " * (margin + 4 if margin else 0)
            print(*textwrap.wrap(line, width, subsequent_indent=hanging), sep="\n")


def _print_wrapped(header: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> None:
    """A table whose last column is wrapped, or stands under the others where there is no room beside them."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header) - 1)]
    margin = sum(widths) + 2 * len(widths)
    beneath = width - margin < NARROW
    for number, (*cells, last) in enumerate(table):
        line = "".join(cell.ljust(size + 2) for cell, size in zip(cells, widths, strict=True))
        if beneath:
            print(line.rstrip())
            if last and number:  # what stands under the others needs no title
                print(textwrap.fill(last, width, initial_indent=" " * 4, subsequent_indent=" " * 4))
        else:
            print(textwrap.fill(last, width, initial_indent=line, subsequent_indent=" " * margin) or line.rstrip())


def _presets(method: algos.Method) -> list[str]:
    return ["recommended", *method.presets]


def _cell(value: Any) -> str:
    if not isinstance(value, tuple | list):
        return str(value)
    return f"{len(value)} x {value[0]}" if len(value) > 2 and len(set(value)) == 1 else " ".join(map(str, value))
