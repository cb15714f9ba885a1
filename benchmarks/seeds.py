"""Several seeds in one program: `python -m benchmarks.seeds [--seeds 1 2 4] [--hidden 128 128 128] [--json]`.

The throughput of runs that are trained together against the same runs one after another, in one process and in turn:
updates of all runs a second, through the training loop. `--stacked` measures the program for other devices (vmap).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.timing import Update, in_turn
from benchmarks.update import spread
from fidec import algos
from fidec.cli.parsing import parse, print_json, print_table
from fidec.data.batches import PLAIN, DeviceFeed
from fidec.train import dispatch, loop
from fidec.types import Spec


@dataclass(frozen=True)
class SeedsArgs:
    """Measure the throughput of several seeds in one program."""

    seeds: tuple[int, ...] = (2, 4)
    """Numbers of seeds."""
    hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the networks."""
    frozen: bool = True
    """With a frozen flow (--flow-updates); else joint training."""
    stacked: bool = False
    """Measure the stacked program, which other devices than CPUs use."""
    batch_size: int = 256
    """Transitions a step."""
    rounds: int = 8
    """Interleaved repetitions."""
    seconds: float = 2.0
    """Length of each measurement."""
    json: bool = False
    """Print as JSON."""


class Runs:
    """Runs from a random state, on the same random data, with one program."""

    def __init__(self, update: Update, spec: Spec, args: SeedsArgs, count: int, stacked: bool | None = None):
        rows = jax.tree.map(lambda column: np.resize(np.asarray(column), (50_000, *column.shape[1:])), update.batch)
        data = jax.tree.map(jax.numpy.asarray, rows)
        self.runs = [
            dispatch.Run(
                keys=loop.keys_of(seed),
                feed=DeviceFeed(data, seed, args.batch_size, PLAIN),
                carry=loop.start(update.algorithm, seed, update.batch),
            )
            for seed in range(count)
        ]
        self.program = dispatch.Program(update.algorithm, PLAIN, spec, self.runs, stacked)
        self.pace = dispatch.Pace()

    def together(self, count: int) -> None:
        dispatch.run_for(self.program, self.runs, count, self.pace, loop.Signals(), lambda: None)

    def one_after_another(self, count: int) -> None:
        for run in self.runs:
            dispatch.run_for(self.program, [run], count, self.pace, loop.Signals(), lambda: None)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(SeedsArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.seeds")
    spec = Spec((28,), 5)
    algorithm = algos.make("fidec", spec, hidden=args.hidden)
    update = Update(algorithm, spec, args.batch_size, args.frozen)
    rows = []
    for count in args.seeds:
        serial = Runs(update, spec, args, count, stacked=False)
        together = Runs(update, spec, args, count, stacked=args.stacked)
        ways = {"serial": serial.one_after_another, "together": together.together}
        times = in_turn(ways, args.rounds, args.seconds)
        ratio, quartiles = spread(times["serial"] / times["together"])
        speeds = {f"{name}_updates_per_second": float(count / np.median(times[name])) for name in times}
        rows.append({"seeds": count, **speeds, "speed_up": ratio, "quartiles": quartiles})
        together.program.close()
        serial.program.close()
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _print(args: SeedsArgs, rows: list[dict[str, Any]]) -> None:
    widths, how = " x ".join(map(str, args.hidden)), "frozen flow" if args.frozen else "joint"
    print(
        f"{jax.default_backend()}; FiDec, {how}, hidden {widths}, batch {args.batch_size}; updates of all runs a "
        f"second; medians (quartiles) of {args.rounds} rounds"
    )
    print_table(
        ("seeds", "one after another", "together", "speed-up"),
        [
            (
                row["seeds"],
                f"{row['serial_updates_per_second']:.1f}",
                f"{row['together_updates_per_second']:.1f}",
                f"{row['speed_up']:.2f} ({row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f})",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
