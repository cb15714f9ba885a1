"""Shared by the commands: subcommands, parsing into dataclasses, tables and JSON on stdout."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from fidec.cli import HELP, choose, options
from fidec.errors import ConfigError
from fidec.register import unknown

Args = TypeVar("Args")


def parse(
    args: type[Args],
    argv: list[str],
    program: str,
    default: Any = None,
    explain: Callable[[str], ConfigError | None] = lambda option: None,
) -> Args:
    """Parse `argv` into the dataclass `args`, whose docstring is the help text.

    Wrong arguments are a `ConfigError`. For an option that does not exist it is that of `explain(option)`, if any.
    """
    keywords = {} if default is None else {"default": default}
    if not HELP.isdisjoint(argv):
        return tyro.cli(args, args=argv, prog=program, config=(tyro.conf.FlagCreatePairsOff,), **keywords)
    usage = f"`{program} --help` explains the arguments."
    known = options.options_of(args)
    missing = lambda option: explain(option) or unknown("option", option, known, usage)  # noqa: E731
    argv = list(options.spell_out(argv, known, missing))
    parsed, rest = _parse_known(args, argv, program, tyro.conf.FlagConversionOff, **keywords)
    if rest:
        raise ConfigError(f"there is no place for the word {rest[0]!r}. {usage}")
    return _with_local_paths(parsed, program)


def _with_local_paths(args: Any, program: str) -> Any:
    """The arguments with local copies of the runs and policies at URLs that a command reads.

    Other paths are on this machine, except for those of `fidec train`, which knows what they are for.
    """
    from fidec.store.remote import as_url
    from fidec.store.staging import local_run

    for name, value in vars(args).items():
        if isinstance(value, Path) and name != "directory" and not hasattr(args, "init_from") and as_url(value):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} {as_url(value)}: `{program}` needs a path of this machine here, not a URL.")
    given = {name: vars(args)[name] for name in ("directory", "runs") if name in vars(args)}
    local = {n: tuple(map(local_run, v)) if isinstance(v, tuple) else local_run(v) for n, v in given.items()}
    return dataclasses.replace(args, **local) if local != given else args


def split_args(args: type[Args], argv: list[str], program: str) -> tuple[Args, list[str]]:
    """Parse the options that `args` has; the other words are returned."""
    if not HELP.isdisjoint(argv):
        config = (tyro.conf.FlagCreatePairsOff,)
        return tyro.cli(args, args=argv, prog=program, config=config, return_unknown_args=True)
    parsed, rest = _parse_known(args, argv, program, tyro.conf.FlagCreatePairsOff)
    return _with_local_paths(parsed, program), rest


def _parse_known(
    args: type[Args], argv: list[str], program: str, switches: Any, **keywords: Any
) -> tuple[Args, list[str]]:
    """tyro's result and the words that it does not know. Its message about wrong arguments becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(args, args=argv, prog=program, config=(switches,), return_unknown_args=True, **keywords)
    except SystemExit:
        message = options.message_of(said.getvalue())
        raise ConfigError(f"{message} `{program} --help` explains the arguments.") from None


Command = tuple[type, Callable[[Any], int], str]  # its arguments, what it does with them, and a line of help


def subcommands(program: str, commands: Mapping[str, Command], argv: list[str]) -> int:
    """Run the command that the first word of `argv` names; the others are its arguments."""
    lines = [f"usage: {program} [-h] COMMAND ...", "", "commands:"]
    width = max(map(len, commands))
    lines += [f"  {name:<{width}}  {text}" for name, (_, _, text) in commands.items()]
    lines += ["", f"`{program} COMMAND --help` explains a command."]
    chosen = choose(commands, argv, program, "\n".join(lines))
    if isinstance(chosen, int):
        return chosen
    name, rest = chosen
    args, run, _ = commands[name]
    return run(parse(args, rest, f"{program} {name}"))


def import_from_here() -> None:
    """Let `--env my_module:MyEnv-v0` find a module in the current directory, as `python -m` does."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, allow_nan=False, default=str)
    print()


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Aligned columns, readable on any terminal and by `awk`."""
    table = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def interval(summary: Mapping[str, Any], name: str) -> str:
    """A mean of an evaluation with its 95 % interval, which a single episode does not have."""
    value, low, high = (summary[f"{name}{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return "-"
    return f"{value:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")
