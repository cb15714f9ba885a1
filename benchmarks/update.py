"""What one update costs: `python -m benchmarks.update [--all | --flow-first | --algo NAME --presets ...] [--json]`.

Everything is measured inside one run, interleaved and repeated, because machines are noisy: read the ratios. The
FLOPs come from XLA's cost analysis of the compiled update; the machine's peak is its own matrix product at the
size of a hidden layer; the loop's overhead compares the training loop (batches drawn on the device, metrics
summed, dispatches of about a second) with bare updates on a fixed batch. With `--all` every method is measured in
turn, round after round, and each round gives every method's ratios to FQL and to FiDec.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import Update, in_turn, random_batch
from fidec import algos
from fidec.cli.parsing import parse, print_json, print_table
from fidec.data.batches import PLAIN, DeviceFeed
from fidec.train import dispatch, loop
from fidec.types import Spec


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure the cost of one update, by default at the paper's size."""

    all: bool = False
    """Measure all methods, each with its recommended preset, and their ratios to FQL."""
    flow_first: bool = False
    """Measure FQL, FiDec and DeFlow jointly, with the residual map at the next states, and with a frozen flow."""
    algo: str = "fidec"
    """Method, if not all."""
    presets: tuple[str, ...] = ("recommended", "paper", "released")
    """Presets to measure."""
    observation_dim: int = 28
    """Dimensions of an observation."""
    action_dim: int = 5
    """Dimensions of an action."""
    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Widths of the networks."""
    batch_size: int = 256
    """Transitions a step."""
    repeats: int = 20
    """Interleaved repetitions."""
    seconds: float = 0.5
    """Length of each measurement."""
    json: bool = False
    """Print as JSON."""


class Peak:
    """This machine's own product (rows x width) @ (width x width), chained as in a network."""

    def __init__(self, width: int, rows: int):
        self.x, self.w, self.gflop = jnp.ones((rows, width)), jnp.eye(width), 20 * 2 * rows * width**2 / 1e9
        self.chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, 20, lambda _, y: y @ w, x))

    def run(self, count: int) -> None:
        for _ in range(count):
            self.chain(self.x, self.w).block_until_ready()


def update_of(
    args: BenchmarkArgs, algo: str, preset: str, frozen: bool = False, next_states: bool = False, **options: Any
) -> Update:
    """The compiled update of one method and preset, at the asked size.

    With `next_states` the residual map learns at the next states alone, which saves a flow solve.
    """
    method, spec = algos.get(algo), Spec((args.observation_dim,), args.action_dim)
    make: Any = method.make
    if next_states:
        make = partial(make, solve_at=("next_observations",))
    algorithm = make(method.configure(preset, hidden=args.hidden, **options), spec)
    return Update(algorithm, spec, args.batch_size, frozen)


class Loop:
    """The compiled training loop around an update, on a state of its own."""

    def __init__(self, args: BenchmarkArgs, update: Update):
        spec = Spec((args.observation_dim,), args.action_dim)
        feed = DeviceFeed(random_batch(spec, 100_000), 0, args.batch_size, PLAIN)
        carry = loop.start(update.algorithm, 0, update.batch)
        self.at = dispatch.Run(keys=loop.keys_of(0), feed=feed, carry=carry)
        self.program = dispatch.Program(update.algorithm, PLAIN, spec, [self.at])
        self.pace = dispatch.Pace()

    def run(self, count: int) -> None:
        dispatch.run_for(self.program, [self.at], count, self.pace, loop.Signals(), lambda: None)
        jax.block_until_ready(self.at.carry)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    import sys

    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.update")
    if args.all or args.flow_first:
        rows = _measure_all(args)
        print_json(rows) if args.json else _print_all(args, rows)
        return rows
    peak = Peak(args.hidden[0], args.batch_size)
    rows = [_measure(args, preset, peak) for preset in args.presets]
    if args.json:
        print_json(rows)
    else:
        _print(args, rows)
    return rows


def _measure(args: BenchmarkArgs, preset: str, peak: Peak) -> dict[str, Any]:
    """The peak, the bare update and the loop in turn; ratios are taken within the rounds."""
    update = update_of(args, args.algo, preset)
    whole = Loop(args, update)
    whole.run(30)  # the first dispatches set its pace
    times = in_turn({"peak": peak.run, "bare": update.run, "loop": whole.run}, args.repeats, args.seconds)
    peaks, bare = times["peak"], times["bare"]
    overhead, overhead_quartiles = spread(times["loop"] / bare - 1)
    return {
        "algo": args.algo,
        "preset": preset,
        **_cost(update, bare),
        "share_of_matmul_peak": float(np.median((update.gflop / bare) / (peak.gflop / peaks))),
        "loop_overhead": overhead,
        "loop_overhead_quartiles": overhead_quartiles,
        "matmul_peak_gflops": float(peak.gflop / np.median(peaks)),
    }


def _measure_all(args: BenchmarkArgs) -> list[dict[str, Any]]:
    """Every method once a round; the ratios are taken within the rounds."""
    if args.flow_first:
        updates = {"fql": update_of(args, "fql", "recommended"), "flow_bc": update_of(args, "flow_bc", "recommended")}
        updates["fql, frozen flow"] = update_of(args, "fql", "recommended", frozen=True)
        for name in ("fidec", "deflow"):
            updates[name] = update_of(args, name, "recommended")
            following = partial(update_of, args, name, "recommended", next_states=True)
            updates[f"{name}, next states"] = following()
            if name == "fidec":  # the cost of its constraint
                updates["fidec, next states, 2 samples"] = following(samples=2)
            updates[f"{name}, frozen flow"] = update_of(args, name, "recommended", frozen=True)
    else:
        updates = {name: update_of(args, name, "recommended") for name in algos.names()}
    times = in_turn({name: update.run for name, update in updates.items()}, args.repeats, args.seconds)
    rows = []
    for name, update in updates.items():
        ratio, quartiles = spread(times[name] / times["fql"])
        ratios = {"gflop_ratio_to_fql": update.gflop / updates["fql"].gflop}
        ratios |= {"ratio_to_fql": ratio, "ratio_quartiles": quartiles}
        speed, quartiles = spread(times["fidec"] / times[name])
        ratios |= {"speed_to_fidec": speed, "speed_quartiles": quartiles}
        rows.append({"algo": name, **_cost(update, times[name]), **ratios})
    return rows


def _cost(update: Update, seconds: np.ndarray) -> dict[str, Any]:
    """What one update costs, by the seconds of each repetition."""
    median, quartiles = spread(1e3 * seconds)
    figures = {"gflop_per_update": update.gflop, "compile_seconds": update.compile_seconds}
    return {**figures, "ms_per_update": median, "ms_quartiles": quartiles}


def spread(figures: np.ndarray) -> tuple[float, list[float]]:
    """Median and quartiles."""
    low, median, high = np.percentile(figures, [25, 50, 75]).tolist()
    return median, [low, high]


def _print_all(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    _print_setting(args)
    print_table(
        ("method", "GFLOP/update", "x FQL", "compile s", "ms/update", "x FQL (quartiles)", "updates/s, x FiDec"),
        [
            (
                row["algo"],
                f"{row['gflop_per_update']:.2f}",
                f"{row['gflop_ratio_to_fql']:.2f}",
                f"{row['compile_seconds']:.1f}",
                f"{row['ms_per_update']:.1f} ({row['ms_quartiles'][0]:.1f} to {row['ms_quartiles'][1]:.1f})",
                f"{row['ratio_to_fql']:.2f} ({row['ratio_quartiles'][0]:.2f} to {row['ratio_quartiles'][1]:.2f})",
                f"{row['speed_to_fidec']:.2f} ({row['speed_quartiles'][0]:.2f} to {row['speed_quartiles'][1]:.2f})",
            )
            for row in rows
        ],
    )


def _print_setting(args: BenchmarkArgs) -> None:
    widths = " x ".join(map(str, args.hidden))
    print(
        f"{jax.default_backend()}, {len(jax.devices())} device(s); observation {args.observation_dim}, action "
        f"{args.action_dim}, hidden {widths}, batch {args.batch_size}; medians (quartiles) of {args.repeats} repeats"
    )


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    _print_setting(args)
    print_table(
        ("method", "preset", "GFLOP/update", "compile s", "ms/update", "of matmul peak", "loop overhead"),
        [
            (
                row["algo"],
                row["preset"],
                f"{row['gflop_per_update']:.2f}",
                f"{row['compile_seconds']:.1f}",
                f"{row['ms_per_update']:.1f} ({row['ms_quartiles'][0]:.1f} to {row['ms_quartiles'][1]:.1f})",
                f"{row['share_of_matmul_peak']:.0%} of {row['matmul_peak_gflops']:.0f} GFLOP/s",
                f"{row['loop_overhead']:+.1%} ({row['loop_overhead_quartiles'][0]:+.1%} to "
                f"{row['loop_overhead_quartiles'][1]:+.1%})",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
