"""Shared by the commands: their words as dataclasses, and tables and JSON on stdout.

tyro makes a parser from a dataclass. This module adds the message about an unknown option, more than one spelling of
switches and lists of numbers, and tyro's framed messages as one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from fidec.cli import HELP, choose
from fidec.errors import ConfigError
from fidec.register import unknown

if TYPE_CHECKING:
    from fidec.executors import Request

Args = TypeVar("Args")
Command = tuple[type, Callable[[Any], int], str]  # its arguments, what it does with them, and a line of help
_REPLACED = {
    "invalid literal for int() with base 10:": "expected a whole number, not",
    "could not convert string to float:": "expected a number, not",
    " (required)": "",
}


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
    known = options_of(args)
    missing = lambda option: explain(option) or unknown("option", option, known, usage)  # noqa: E731
    argv = list(spell_out(argv, known, missing))
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
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(args, args=argv, prog=program, config=(switches,), return_unknown_args=True, **keywords)
    except SystemExit:
        message = message_of(errors.getvalue())
        raise ConfigError(f"{message} `{program} --help` explains the arguments.") from None


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


# --- the words of a command line ----------------------------------------------------------------------------------


def options_of(config: Any, prefix: str = "--") -> dict[str, Any]:
    """The options that tyro makes of a dataclass, each with its type: --steps, --online.envs."""
    options = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        hint, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if tyro.conf.Positional in marks:
            continue
        option, aliases = prefix + name, []
        for mark in marks:  # what `tyro.conf.arg` returns; a marker has neither
            option = prefix + (getattr(mark, "name", None) or name) if hasattr(mark, "aliases") else option
            aliases += getattr(mark, "aliases", None) or ()
        if dataclasses.is_dataclass(hint):
            options |= options_of(hint, f"{option}.")
        else:
            options |= {word.replace("_", "-"): hint for word in (option, *aliases)}
    return options


def spell_out(argv: list[str], known: Mapping[str, Any], missing: Callable[[str], ConfigError]) -> Iterator[str]:
    """The arguments as tyro expects them; raises `missing(option)` for an option that does not exist.

    A switch may be --x, --no-x, --x True or --x False, and numbers may be separated by commas.
    """
    hint: Any = None  # of the option whose values are read
    for word, following in zip(argv, [*argv[1:], "--"], strict=False):
        if not word.startswith("--"):
            yield from _numbers(word) if _is_numbers(hint) else [word]
            continue
        option, equals, value = word.partition("=")
        option = option.replace("_", "-")
        positive = re.sub(r"^(--|.*\.)no-", r"\1", option)
        if option not in known and _is_switch(known.get(positive)) and not equals:
            yield from (positive, "False")
            continue
        if option not in known:
            raise missing(option)
        hint = known[option]
        yield option
        if equals:
            yield from _numbers(value) if _is_numbers(hint) else [value]
        elif _is_switch(hint) and following not in ("True", "False", "None"):
            yield "True"


def _is_switch(hint: Any) -> bool:
    return bool in (hint, *get_args(hint))


def _is_numbers(hint: Any) -> bool:
    """Whether an option takes several numbers: tuple[int, ...], or that or None."""
    return any(get_origin(kind) is tuple and get_args(kind)[0] in (int, float) for kind in (hint, *get_args(hint)))


def _numbers(word: str) -> list[str]:
    return [number for number in word.split(",") if number]


def message_of(text: str) -> str:
    """The message in tyro's frame, as one line: what stands between the title and the next rule."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│ ") for line in text.splitlines()]
    is_rule = lambda line: not line.strip("─-╰╯ ")  # noqa: E731
    message = takewhile(lambda line: not is_rule(line), dropwhile(is_rule, lines[1:]))
    line = " ".join(" ".join(message).split())
    if choice := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", line):
        value, option, choices = choice.groups()
        known = {each.strip("'") for each in choices.split(", ")} - {"None"}
        return f"{unknown(option, value, known)}."
    for python, plain in _REPLACED.items():
        line = line.replace(python, plain)
    return line.rstrip(".") + "."


# --- where many jobs run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExecutorArgs:
    workers: int = 1
    """Processes in parallel; each gets its share of the cores and GPUs. Seeds of one method share a process."""
    on: str = "local"
    """Where the processes run: local, ray, slurm, or the executor of an installed package."""
    cpus: int | None = None
    """Cores of a process; by default its share of this machine, and 1 on ray and slurm."""
    gpus: float | None = None
    """GPUs of a process. 0.5 lets two processes share one. By default the processes of this machine take turns with
    its GPUs, and those on ray and slurm have none."""
    memory: float | None = None
    """Main memory of a process in GB, on ray and slurm."""
    hours: float | None = None
    """Time limit of a process on slurm. It is then stopped, queued again and continued."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379 or auto; by default one is started on this machine."""
    settings: tuple[str, ...] = ()
    """Other options of the engine as NAME=VALUE, on slurm those of sbatch: --settings partition=gpu account=lab."""


def request(args: ExecutorArgs) -> Request:
    """What the options ask for; ConfigError if they make no sense."""
    if args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {args.workers}")
    from fidec.executors import Request

    names = ("workers", "cpus", "gpus", "memory", "hours", "address")
    return Request(**{name: getattr(args, name) for name in names}, settings=read_settings(args.settings))


def read_settings(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE, ... as a dictionary."""
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--settings {word!r}: expected NAME=VALUE, such as partition=gpu")
        settings[name.replace("-", "_")] = value
    return settings


# --- output -------------------------------------------------------------------------------------------------------


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
