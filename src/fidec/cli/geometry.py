"""`fidec geometry run | theorems | calibration | list`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fidec.cli.parsing import print_json, print_table, subcommands
from fidec.console import Progress
from fidec.errors import ConfigError


@dataclass(frozen=True)
class RunArgs:
    """Fit a flow to each landscape, train every method at its budgets, and measure value against true KL.

    Writes the results as JSON, two figures for each landscape and a table. Results that are already in the directory
    are not computed again. All six landscapes take half an hour on two cores, one takes five minutes.
    """

    out: Path
    """Directory for results, figures and table."""
    landscape: tuple[str, ...] = ()
    """Landscapes; by default all six. `fidec geometry list` lists them."""
    methods: tuple[str, ...] = ()
    """Methods; by default all."""
    seeds: int = 5
    """Number of flows, each with its own maps."""
    steps: int = 0
    """Updates of each map; 0 takes the default 1,000. The flow's 6,000 updates change in the same proportion."""
    workers: int = 0
    """Worker processes; 0 takes one for each core."""
    json: bool = False
    """Print the summary as JSON."""


@dataclass(frozen=True)
class TheoremArgs:
    """Check the paper's theorems numerically, where the answer is known: a table and a plot for each.

    (a) the KL of a displacement; (b) the bias of the score; (c) the best distance from t = 1; (d) the optimality gap.
    """

    which: tuple[str, ...] = ("a", "b", "c", "d")
    """Which of a, b, c, d."""
    out: Path | None = None
    """Directory for the plots; by default none are drawn."""
    json: bool = False
    """Print everything as JSON."""


@dataclass(frozen=True)
class CalibrationArgs:
    """Compare the time that `t_eps auto` chooses with fixed times: value at one nat of true KL."""

    out: Path
    """Directory for the figure and the numbers."""
    landscape: tuple[str, ...] = ()
    """Landscapes; by default all six."""
    seeds: int = 3
    """Number of flows, each with its own maps."""
    steps: int = 0
    """As for `run`."""
    json: bool = False
    """Print as JSON."""


@dataclass(frozen=True)
class ListArgs:
    """List the landscapes and the methods."""

    json: bool = False
    """Print as JSON."""


def main(argv: list[str]) -> int:
    commands = {
        "run": (RunArgs, _run, "compare all constraints on landscapes of known density"),
        "theorems": (TheoremArgs, _theorems, "check the paper's theorems numerically"),
        "calibration": (CalibrationArgs, _calibration, "compare `t_eps auto` with fixed times"),
        "list": (ListArgs, _list, "list the landscapes and the methods"),
    }
    return subcommands("fidec geometry", commands, argv)


def _names(asked: tuple[str, ...]) -> list[str]:
    from fidec.geometry import landscapes

    return [landscapes.get(name).name for name in dict.fromkeys(asked)] or list(landscapes.LANDSCAPES)


def _sizes(steps: int, seeds: int):
    from fidec.geometry.lab import Sizes

    if seeds < 1 or steps < 0:
        raise ConfigError("--seeds must be at least 1, --steps not negative")
    usual = Sizes()
    steps = steps or usual.map_steps
    return Sizes(map_steps=steps, flow_steps=max(1, usual.flow_steps * steps // usual.map_steps))


def _reporter(progress: Progress) -> Callable[[str], None]:
    """Print each finished job and count it."""

    def report(text: str) -> None:
        progress.message(text)
        progress.advance()

    return report


def _run(args: RunArgs) -> int:
    if args.workers < 0:
        raise ConfigError("--workers must not be negative")
    from fidec.geometry import experiment

    names, methods = _names(args.landscape), args.methods or tuple(experiment.METHODS)
    options = {"seeds": args.seeds, "sizes": _sizes(args.steps, args.seeds), "workers": args.workers}
    with Progress(experiment.pending(names, methods, args.out), unit="job") as progress:
        summary = experiment.run(names, args.out, methods=methods, report=_reporter(progress), **options)
    if args.json:
        print_json(summary)
    else:
        print(experiment.markdown(summary))
        print(f"figures and table: {args.out}")
    return 0


def _theorems(args: TheoremArgs) -> int:
    from fidec.geometry import theorems
    from fidec.geometry.theorems.result import formatted

    with Progress(len(args.which), unit="theorem") as progress:
        results = theorems.run(args.which, out=args.out, report=lambda name: progress.advance())
    if args.json:
        print_json(results)
        return 0
    for result in results.values():
        print(f"({result['name']}) {result['title']}\n")
        print_table(result["columns"], formatted(result["rows"]))
        print("", *(f"- {note}" for note in result["notes"]), sep="\n")
        if "picture" in result:
            print(f"picture: {result['picture']}")
        print()
    return 0


def _calibration(args: CalibrationArgs) -> int:
    from fidec.geometry import calibration
    from fidec.store import files

    names, sizes = _names(args.landscape), _sizes(args.steps, args.seeds)
    with Progress(len(names) * len(calibration.NAMES), unit="job") as progress:
        rows = calibration.run(names, seeds=args.seeds, sizes=sizes, report=_reporter(progress))
    picture = calibration.draw(rows, args.out / "calibration.png")
    files.write_json(args.out / "calibration.json", rows)
    if args.json:
        print_json(rows)
        return 0
    header = ["landscape", "constraint", "chosen t", "value", "best fixed t", "value", "share", "of the gain"]
    print_table(header, [_calibration_row(row) for row in rows])
    print(f"picture: {picture}")
    return 0


def _calibration_row(row: dict) -> list[str]:
    number = lambda value, form=".3f": "-" if value is None else format(value, form)  # noqa: E731
    chosen = sorted(row["chosen"])[len(row["chosen"]) // 2]
    best = row["value"][row["best"]] if row["best"] else None
    shares = [number(row[name], ".0%") for name in ("share_of_value", "share_of_gain")]
    value = number(row["value"]["auto"])
    return [row["landscape"], row["constraint"], f"{chosen:.3f}", value, str(row["best"]), number(best), *shares]


def _list(args: ListArgs) -> int:
    from fidec.geometry.landscapes import LANDSCAPES
    from fidec.geometry.methods import METHODS

    titles = {name: landscape.title for name, landscape in LANDSCAPES.items()}
    if args.json:
        print_json({"landscapes": titles, "methods": list(METHODS)})
        return 0
    print_table(["landscape", "title"], titles.items())
    print(f"\nmethods: {', '.join(METHODS)}")
    return 0
