"""`fidec compare`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fidec.cli.parsing import parse, print_json, print_table

if TYPE_CHECKING:
    from fidec.report.compare import Compared


@dataclass(frozen=True)
class CompareArgs:
    """Compare finished runs: scores with intervals, paired differences, and the options in which they differ.

    Runs for the same environment, on the same data and evaluated in the same way, are compared with each other. Runs
    that differ in their seeds only are replicates. Runs that cannot be compared are named on stderr.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run directories, or directories that hold runs, or URLs of runs (s3://bucket/runs/x)."""
    baseline: str = ""
    """The method that the others are compared with, by its name in the table; by default the first."""
    curves: Path | None = None
    """Also write a PNG of the learning curves."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    args = parse(CompareArgs, argv, "fidec compare")
    from fidec.report.compare import compare, draw, to_json

    compared = compare(args.runs, args.baseline)
    if args.json:
        print_json(to_json(compared))
    else:
        print_compared(compared)
    print_left_out(compared)
    if args.curves is not None:
        print(f"curves: {draw(compared, args.curves)}", file=sys.stderr)
    return 0


def print_left_out(compared: Compared) -> None:
    """The runs that are in no comparison, on stderr."""
    for path, reason in compared.left_out.items():
        print(f"left out: {path}: {reason}", file=sys.stderr)


def print_compared(compared: Compared) -> None:
    """The tables of all comparisons."""
    from fidec.report.compare import note, options_table, table, title

    for comparison in compared.comparisons:
        print(title(comparison))
        header, *rows = table(comparison)
        print_table(header, rows)
        if options := options_table(comparison):
            print("\nthey differ in:")
            print_table(options[0], options[1:])
        print()
    print(note(compared))
