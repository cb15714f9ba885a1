"""`fidec audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fidec.cli.output import parse, print_json
from fidec.errors import ConfigError


@dataclass(frozen=True)
class AuditArgs:
    """Measure how far a refined policy has moved from its own behaviour flow, in nats, at states of its data.

    Writes audit.png and audit.json, and prints the result in sentences. With --values it also estimates the values of
    the policy and its base policy. They are a diagnostic: fitted Q evaluation ranked four policies of door-expert in
    exactly the wrong order, so choose with real episodes (fidec select).
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
    out: Path | None = None
    """Directory for audit.png and audit.json; by default RUN/audit."""
    values: bool = False
    """Also estimate values by fitted Q evaluation on the data. A method without a residual map gets only these."""
    discount: float | None = None
    """Discount of the values; by default the method's, or 0.99."""
    updates: int | None = None
    """Updates of the fitted Q evaluation; by default 10,000."""
    json: bool = False
    """Print only the result, as JSON."""


def main(argv: list[str]) -> int:
    args = parse(AuditArgs, argv, "fidec audit")
    if args.states < 2 or args.samples < 2:
        raise ConfigError("--states and --samples must be at least 2: one value has no spread")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    if not args.values and (args.discount is not None or args.updates is not None):
        raise ConfigError("--discount and --updates are options of the estimated values: give --values too")

    from fidec.audit.run import candidates_of, check_transport, describe
    from fidec.audit.values import UPDATES, check_values, estimate_values, value_sentences
    from fidec.store import files
    from fidec.store.rundir import check_links
    from fidec.train.origin import check_data, data_of
    from fidec.train.policy import load_policy

    policy = load_policy(args.directory)
    moves = policy.algorithm.transport is not None
    if not args.values:
        check_transport(policy)
    dataset = data_of(args.directory, args.data, args.data_dir)
    check_data(policy, dataset)
    if args.values:
        updates = UPDATES if args.updates is None else args.updates
        discount = check_values(policy, dataset, discount=args.discount, updates=updates)
    out = args.out or args.directory / "audit"
    if args.out is None:
        check_links(args.directory)
    with files.writing(out, "the audit"):  # before the computation, so that a bad directory fails at once
        out.mkdir(parents=True, exist_ok=True)
    result, text = _distance(args, policy, dataset, out) if moves else (describe(policy, dataset, args.seed), [])
    if args.values:
        result["values"] = estimate_values(
            policy,
            dataset,
            discount=discount,
            updates=updates,
            candidates=candidates_of(args.directory),
            seed=args.seed,
            quiet=False,
        )
        text += value_sentences(result["values"])
    result = files.to_builtin({"directory": args.directory, **result, "sentences": text})
    files.write_json(out / "audit.json", result)
    if args.json:
        print_json(result)
    else:
        print("\n".join([*text, *([f"picture: {result['picture']}"] if moves else [])]))
    return 0


def _distance(args: AuditArgs, policy: Any, dataset: Any, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Measure the distance from the behaviour flow and draw it; the numbers, and what they say."""
    from fidec.audit.figures import draw
    from fidec.audit.run import audit
    from fidec.audit.sentences import sentences
    from fidec.console import Progress

    with Progress(min(args.states, dataset.size)) as progress:
        result = audit(
            policy,
            dataset,
            states=args.states,
            samples=args.samples,
            seed=args.seed,
            report=lambda settled, text: progress.update(settled, solving=text),
        )
    picture = out / "audit.png"
    draw(result, f"{policy.algo}, step {result['step']}, on {dataset.name}: {result['states']} states", picture)
    return {**result, "picture": picture}, sentences(result)
