"""`fidec audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fidec.cli.output import parse, print_json
from fidec.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    import numpy as np

    from fidec.data import OfflineDataset
    from fidec.train.policy import Policy


@dataclass(frozen=True)
class AuditArgs:
    """Measure how far a refined policy has moved from its own behaviour flow, in nats, at states of its data.

    Writes audit.png and audit.json, and says in sentences what they show.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory, or a policy directory."""
    states: int = 256
    """States, drawn from the data."""
    samples: int = 64
    """Base actions drawn for each state."""
    seed: int = 0
    """Seed of the states and the actions: the same seed gives the same numbers."""
    data: str | None = None
    """Data source of the states; by default the run's own training data."""
    data_dir: Path | None = None
    """Where OGBench data files lie; by default where the run found them."""
    out: Path | None = None
    """Directory for picture and figures; by default RUN/audit."""
    json: bool = False
    """Print the figures as JSON, and nothing else."""


def main(argv: list[str]) -> int:
    args = parse(AuditArgs, argv, "fidec audit")
    if args.states < 2 or args.samples < 2:
        raise ConfigError("--states and --samples must be at least 2: one alone has no spread")
    if not 0 <= args.seed < 2**32:
        raise ConfigError(f"--seed must lie in [0, 2^32), not {args.seed}")
    result = _audit(args)
    if args.json:
        print_json(result)
    else:
        print("\n".join(result["sentences"]))
        print(f"picture: {result['picture']}")
    return 0


def _audit(args: AuditArgs) -> dict[str, Any]:
    import numpy as np

    from fidec import rng
    from fidec.audit import figures as audit_report
    from fidec.audit import neighbours
    from fidec.audit.measure import measure
    from fidec.audit.summary import summarise
    from fidec.console.progress import Progress
    from fidec.store import files, versions
    from fidec.train.policy import load_policy

    policy = load_policy(args.directory)
    transport = policy.algorithm.transport
    if transport is None:
        raise ConfigError(
            f"{args.directory} is a policy of {policy.algo}, which has no residual map to audit; "
            f"methods that have one: {', '.join(_with_transport(policy))}"
        )
    dataset = _data(args)
    _check_fit(policy, dataset)
    out = args.out or args.directory / "audit"
    with files.writing(out, "the audit"):  # now, not after a minute, is the time to learn that it does not work
        out.mkdir(parents=True, exist_ok=True)

    generator = np.random.default_rng([args.seed, 0])
    rows = np.sort(generator.choice(dataset.size, min(args.states, dataset.size), replace=False))
    with Progress(len(rows)) as progress:
        found = measure(
            transport,
            policy.state,
            _observations(dataset, rows, policy.spec.frame_stack),
            samples=args.samples,
            action_dim=policy.spec.action_dim,
            key=rng.stream(args.seed, "evaluate"),
            report=lambda settled, what: progress.update(settled, solving=what),
        )
    if policy.spec.images:
        near = "observations are images, and pixels do not tell which states are similar"
    elif dataset.size < 2:
        near = "the data has one row"
    else:
        actions, moved = found.moved.actions, found.moved.actions + found.moved.displacement
        near = neighbours.distances(dataset, rows, actions, moved, args.seed)

    summary = summarise(found, near)
    result = {
        "directory": str(args.directory),
        "algo": policy.algo,
        "step": policy.info.get("step"),
        "seed": args.seed,
        "data": {"name": dataset.name, "source": dataset.source, "sha256": dataset.sha256, "rows": rows},
        "packages": {name: versions.version(name) for name in versions.PACKAGES},
        **summary,
        "sentences": audit_report.sentences(summary),
        "picture": str(out / "audit.png"),
    }
    title = f"{policy.algo}, step {policy.info.get('step', 0)}, on {dataset.name}: {len(rows)} states"
    audit_report.draw(found, near, title, out / "audit.png")
    files.write_json(out / "audit.json", result)
    return files.to_builtin(result)


def _with_transport(policy: Policy) -> list[str]:
    """The methods of this package that have a residual map, at the policy's own shapes."""
    from fidec import algos

    found = []
    for name in algos.names():
        try:
            if algos.make(name, policy.spec).transport is not None:
                found.append(name)
        except ConfigError:  # does not take these observations
            continue
    return found


def _data(args: AuditArgs) -> OfflineDataset:
    """The named data, or what the run was trained on, checked to be the same."""
    from fidec.data import load_dataset
    from fidec.store.rundir import RunDirectory
    from fidec.train.config import RunConfig

    offer = "Name the data to take states from with --data (npz:PATH, ogbench:ID, ...)."
    run, config = None, RunConfig()
    if (args.directory / "run.json").exists():
        run = RunDirectory.open(args.directory, read_only=True)
        config = RunConfig.from_json(run.read_config())
    data_dir = args.data_dir or config.data_dir
    if args.data is not None:
        return load_dataset(args.data, cache_dir=data_dir)
    if run is None:
        raise ConfigError(
            f"{args.directory} is a policy without its run, which does not say where its data is. {offer}"
        )
    if config.data is None:
        raise ConfigError(f"{args.directory} was trained on arrays given in Python, which are not stored. {offer}")
    try:
        dataset = load_dataset(config.data, cache_dir=data_dir)
    except DataError as error:
        raise DataError(f"the data that {args.directory} was trained on, {config.data}: {error} {offer}") from error
    recorded = (run.read_environment().get("dataset") or {}).get("sha256") if run.environment.exists() else None
    if recorded is not None and recorded != dataset.sha256:
        raise RunError(
            f"{args.directory} was trained on other data: its SHA-256 was {recorded[:12]}…, that of {config.data} is "
            f"now {dataset.sha256[:12]}…. Restore the data, or say with --data that these are the states to audit."
        )
    return dataset


def _check_fit(policy: Policy, dataset: OfflineDataset) -> None:
    ours, theirs = policy.spec, dataset.spec.stacked(policy.spec.frame_stack)
    for field in ("observation_shape", "observation_dtype", "action_dim", "bounds"):
        if getattr(ours, field) != getattr(theirs, field):
            raise ConfigError(
                f"{dataset.source} does not fit the policy: its {field.replace('_', ' ')} is "
                f"{getattr(theirs, field)}, the policy's {getattr(ours, field)}. Take data of the same task."
            )


def _observations(dataset: OfflineDataset, rows: np.ndarray, frame_stack: int) -> np.ndarray:
    """What the policy sees at these rows: images as stacks of frames of the same trajectory."""
    import numpy as np

    if frame_stack == 1:
        return dataset.observations[rows]
    starts = dataset.episodes[np.searchsorted(dataset.episodes[:, 0], rows, side="right") - 1, 0]
    frames = [dataset.observations[np.maximum(rows - i, starts)] for i in reversed(range(frame_stack))]
    return np.concatenate(frames, axis=-1)
