"""`fidec algos [NAME]`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from fidec import algos
from fidec.cli.output import parse, print_json, print_table


@dataclass(frozen=True)
class AlgosArgs:
    """List the methods, or show the options of one under each of its presets."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """A method."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(AlgosArgs, argv, "fidec algos")
    if args.name is None:
        methods = [algos.get(name) for name in algos.names()]
        if args.json:
            print_json([{"name": m.name, "summary": m.summary, "presets": _presets(m)} for m in methods])
        else:
            print_table(("method", "what it is"), [(m.name, m.summary) for m in methods])
        return 0
    method = algos.get(args.name)
    options = {preset: dataclasses.asdict(method.configure(preset)) for preset in _presets(method)}
    if args.json:
        print_json({"name": method.name, "summary": method.summary, "options": options})
        return 0
    print(f"{method.name}: {method.summary}\n")
    names = [field.name for field in dataclasses.fields(method.config)]
    rows = [(name, *(_cell(options[preset][name]) for preset in options)) for name in names]
    print_table(("option", *options), rows)
    print(f"\n`fidec train --algo {method.name} --help` explains each option.")
    return 0


def _presets(method: algos.Method) -> list[str]:
    return ["recommended", *method.presets]


def _cell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
