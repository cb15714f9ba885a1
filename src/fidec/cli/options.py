"""The words of a command line, before and after tyro parses them.

tyro makes a parser from a dataclass. This module adds the message about an unknown option, more than one spelling of
switches and lists of numbers, and tyro's framed messages as one line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile, takewhile
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from fidec.errors import ConfigError
from fidec.register import unknown

_REPLACED = {
    "invalid literal for int() with base 10:": "expected a whole number, not",
    "could not convert string to float:": "expected a number, not",
    " (required)": "",
}


def options_of(config: Any, prefix: str = "--") -> dict[str, Any]:
    """The options that tyro makes of a dataclass, each with its type: --steps, --online.envs."""
    found = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        hint, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if tyro.conf.Positional in marks:
            continue
        option, aliases = prefix + name, []
        for mark in marks:  # what `tyro.conf.arg` returns; a marker has neither
            option = prefix + (getattr(mark, "name", None) or name) if hasattr(mark, "aliases") else option
            aliases += getattr(mark, "aliases", None) or ()
        if dataclasses.is_dataclass(hint):
            found |= options_of(hint, f"{option}.")
        else:
            found |= {word.replace("_", "-"): hint for word in (option, *aliases)}
    return found


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
    if found := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", line):
        value, option, choices = found.groups()
        known = {each.strip("'") for each in choices.split(", ")} - {"None"}
        return f"{unknown(option, value, known)}."
    for python, plain in _REPLACED.items():
        line = line.replace(python, plain)
    return line.rstrip(".") + "."
