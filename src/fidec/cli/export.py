"""`fidec export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fidec.cli.parsing import parse, print_json
from fidec.train.acting import ActOptions


@dataclass(frozen=True, kw_only=True)
class ExportArgs(ActOptions):
    """Write a policy as files that need no fidec: ONNX, StableHLO, or NumPy source with safetensors.

    Normalisation of observations and units of actions are inside. Random numbers are an input, `noise`. The export is
    compared with the policy before it is kept. metadata.json and README.md describe it, with hashes of the files. How
    the policy acts is fixed in the files, but for --replan and --ensemble: the caller plays its chunks.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory or policy directory; also the URL of one (s3://bucket/runs/x)."""
    to: str
    """Target: onnx, stablehlo or numpy."""
    out: Path | None = None
    """New or empty directory for the files; by default RUN/export/TARGET."""
    license: str | None = None
    """Licence of the files, for their metadata; by default none is stated."""
    data: str | None = None
    """Data source of the real observations to compare at; by default the run's own training data."""
    tolerance: float = 1e-5
    """Largest difference from the policy, as a part of half the action range."""
    seed: int = 0
    """Seed of the observations and the noise of the comparison."""
    json: bool = False
    """Print only the metadata, as JSON."""


def main(argv: list[str]) -> int:
    args = parse(ExportArgs, argv, "fidec export")

    from fidec.export.model_card import FILES, METADATA
    from fidec.export.run import export_policy

    others = ("directory", "to", "out", "json")
    options = {name: value for name, value in vars(args).items() if name not in others}
    result = export_policy(args.directory, args.to, args.out, **options)
    if args.json:
        print_json(result)
        return 0
    checked = result["verification"]
    print(f"{result['directory']}: {', '.join((*FILES[args.to], METADATA, 'README.md'))}")
    for entry in (*result["inputs"], *result["outputs"]):
        print(f"  {entry['name']:<13} ({', '.join(map(str, entry['shape']))}) {entry['dtype']}")
    ties = f"; {checked['ties']} in which two candidates had equal values left out" if checked["ties"] else ""
    print(
        f"compared with the policy at {checked['random']} random and {checked['real']} real observations{ties}: "
        f"largest difference {checked['largest_difference']:.1e} of half the action range"
    )
    if not checked["real"]:
        print(f"only random observations were compared: {result['without_data']}")
    return 0
