"""`fidec audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fidec.cli.parsing import parse, print_json
from fidec.errors import ConfigError


@dataclass(frozen=True)
class AuditArgs:
    """Measure how far a refined policy has moved from its own behaviour flow, in nats, at states of its data.

    Writes audit.png and audit.json, and prints the result in sentences.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory or policy directory; also the URL of one (s3://bucket/runs/x)."""
    states: int = 256
    """Number of states, drawn from the data."""
    samples: int = 64
    """Base actions drawn for each state."""
    seed: int = 0
    """Seed of the states and the actions. The same seed gives the same numbers."""
    data: str | None = None
    """Data source of the states; by default the run's own training data."""
    data_dir: Path | None = None
    """Directory with OGBench data files; by default the run's."""
    candidates: int | None = None
    """Moved actions among which the policy chooses. By default as it acts."""
    noise: float | None = None
    """Factor of the policy's random draws. By default as it acts."""
    out: Path | None = None
    """Directory for audit.png and audit.json; by default RUN/audit."""
    json: bool = False
    """Print only the result, as JSON."""


def main(argv: list[str]) -> int:
    args = parse(AuditArgs, argv, "fidec audit")
    if args.states < 2 or args.samples < 2:
        raise ConfigError("--states and --samples must be at least 2: one value has no spread")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")

    from fidec.audit.figures import draw
    from fidec.audit.run import audit, check_transport
    from fidec.audit.text import sentences
    from fidec.console import Progress
    from fidec.store import files
    from fidec.store.rundir import check_links
    from fidec.train.acting import ActOptions
    from fidec.train.policy import load_policy
    from fidec.train.training_data import check_fits, data_of

    policy = load_policy(args.directory)
    check_transport(policy)
    dataset = data_of(args.directory, args.data, args.data_dir)
    check_fits(policy, dataset)
    out = args.out or args.directory / "audit"
    if args.out is None:
        check_links(args.directory)
    with files.writing(out, "the audit"):  # before the computation, so that a bad directory fails at once
        out.mkdir(parents=True, exist_ok=True)
    with Progress(min(args.states, dataset.size)) as progress:
        measured = audit(
            policy,
            dataset,
            states=args.states,
            samples=args.samples,
            seed=args.seed,
            act=ActOptions(candidates=args.candidates, noise=args.noise),
            report=lambda settled, text: progress.update(settled, solving=text),
        )
    text, picture = sentences(measured), out / "audit.png"
    draw(measured, f"{policy.algo}, step {measured['step']}, on {dataset.name}: {measured['states']} states", picture)
    result = {"directory": args.directory, **measured, "picture": picture, "sentences": text}
    result = files.to_builtin(result)
    files.write_json(out / "audit.json", result)
    if args.json:
        print_json(result)
    else:
        print(*text, f"picture: {result['picture']}", sep="\n")
    return 0
