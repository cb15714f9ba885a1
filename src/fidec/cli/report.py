"""`fidec report`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fidec.cli.parsing import parse
from fidec.errors import ConfigError


@dataclass(frozen=True)
class ReportArgs:
    """Write one HTML file about one run or several: curves, comparisons, warnings, options, episodes, commands.

    The file needs no network and no other file; a browser opens it by double-click. Runs may still be going on.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Run directories, or directories that hold some, or URLs of runs (s3://bucket/runs/x)."""
    out: Path | None = None
    """The file to write; by default report.html in the first directory."""
    title: str = ""
    """Title of the page."""
    embed_videos: bool = False
    """Put the videos of the runs (*.mp4 in their directories) into the file. By default it refers to them."""
    data: bool = False
    """Also load the data of the runs from their sources, and draw it: episodes, histograms, frames, findings."""


def main(argv: list[str]) -> int:
    args = parse(ReportArgs, argv, "fidec report")
    from fidec.report.page import report_runs

    if not args.runs:
        raise ConfigError("name the directory of a run, or several")
    out = args.out or args.runs[0] / "report.html"
    path, left_out = report_runs(args.runs, out, title=args.title, embed_videos=args.embed_videos, data=args.data)
    for each, reason in left_out.items():
        print(f"left out: {each}: {reason}", file=sys.stderr)
    print(f"report: {path}")
    return 0
