"""What one update costs: `python -m benchmarks.update [--all] [--algo NAME] [--presets ...] [--hidden ...] [--json]`.

Everything is measured inside one run, interleaved and repeated, because machines are noisy: read the ratios. The
FLOPs come from XLA's cost analysis of the compiled update; the machine's peak is its own matrix product at the
size of a hidden layer; the loop's overhead compares the training loop (batches drawn on the device, metrics
summed, dispatches of about a second) with bare updates on a fixed batch. With `--all` every method is measured in
turn, round after round, and each round gives every method's ratio to FQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import algos, rng
from fidec.cli.output import parse, print_json, print_table
from fidec.train import loop
from fidec.types import Batch, Spec


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure the cost of one update, by default at the paper's size."""

    all: bool = False
    """Measure all methods, each with its recommended preset, and their ratios to FQL."""
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


def random_batch(spec: Spec, rows: int, returns: bool = False) -> Batch:
    """Normal observations and uniform actions: the cost does not depend on the values."""
    generator = np.random.default_rng(0)
    observations = generator.standard_normal((2, rows, *spec.observation_shape), np.float32)
    actions = generator.uniform(-1, 1, (2, rows, spec.action_dim)).astype(np.float32)
    rewards, masks = -np.ones(rows, np.float32), np.ones(rows, np.float32)
    batch = Batch(observations[0], actions[0], rewards, masks, observations[1], actions[1])
    return jax.tree.map(jnp.asarray, batch._replace(returns=50.0 * rewards) if returns else batch)


def seconds_of(run: Callable[[int], Any], count: int) -> float:
    """Seconds an iteration of `run(count)`, which makes that many iterations and waits for them."""
    begin = time.perf_counter()
    run(count)
    return (time.perf_counter() - begin) / count


class Peak:
    """This machine's own product (rows x width) @ (width x width), chained as in a network."""

    def __init__(self, width: int, rows: int):
        self.x, self.w, self.gflop = jnp.ones((rows, width)), jnp.eye(width), 20 * 2 * rows * width**2 / 1e9
        self.chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, 20, lambda _, y: y @ w, x))

    def run(self, count: int) -> None:
        for _ in range(count):
            self.chain(self.x, self.w).block_until_ready()


class Update:
    """The compiled update of one method and preset."""

    def __init__(self, args: BenchmarkArgs, algo: str, preset: str):
        self.algo, self.preset = algo, preset
        self.spec = Spec((args.observation_dim,), args.action_dim)
        self.algorithm = algos.make(algo, self.spec, preset=preset, hidden=args.hidden)
        self.batch = random_batch(self.spec, args.batch_size, algos.get(algo).needs_returns)
        self.key = rng.stream(0, "update")
        self.state = loop.start(self.algorithm, 0, self.batch).state
        begin = time.perf_counter()
        update = jax.jit(self.algorithm.update, donate_argnums=0)
        self.update = update.lower(self.state, self.batch, self.key).compile()
        self.compile_seconds = time.perf_counter() - begin
        cost: Any = self.update.cost_analysis()
        self.gflop = cost["flops"] / 1e9

    def run_bare(self, count: int) -> None:
        for _ in range(count):
            self.state, _ = self.update(self.state, self.batch, self.key)
        jax.block_until_ready(self.state)


class Case(Update):
    """The update and the compiled training loop, each on a state of its own."""

    def __init__(self, args: BenchmarkArgs, preset: str):
        super().__init__(args, args.algo, preset)
        self.data = random_batch(self.spec, 100_000, algos.get(args.algo).needs_returns)
        self.carry = loop.start(self.algorithm, 0, self.batch)
        steps = loop.make_steps(self.algorithm, 0, args.batch_size)
        self.steps = steps.lower(self.carry, self.data, np.int32(0), np.int32(1)).compile()
        self.step, self.pace = 0, loop.Pace()

    def run_loop(self, count: int) -> None:
        self.carry, self.step = loop.run_to(
            self.steps,
            self.carry,
            self.data,
            self.step,
            self.step + count,
            self.pace,
            loop.Signals(),
            lambda step: None,
        )
        jax.block_until_ready(self.carry)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    import sys

    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.update")
    if args.all:
        rows = _measure_all(args)
        print_json(rows) if args.json else _print_all(args, rows)
        return rows
    cases = {preset: Case(args, preset) for preset in args.presets}
    peak = Peak(args.hidden[0], args.batch_size)
    rows = [_measure(args, case, peak) for case in cases.values()]
    if args.json:
        print_json(rows)
    else:
        _print(args, rows)
    return rows


def _measure(args: BenchmarkArgs, case: Case, peak: Peak) -> dict[str, Any]:
    """Short measurements of the peak, the bare update and the loop, one after another, many times over.

    Ratios are taken between neighbours in time, in changing order, and their median is reported: what slows the
    machine down for a second slows both.
    """
    runs = {"peak": peak.run, "bare": case.run_bare, "loop": case.run_loop}
    for run in runs.values():
        run(30)  # warm up; the first dispatches also set the loop's pace
    counts = {name: max(1, round(args.seconds / seconds_of(run, 3))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(args.repeats):
        for name in runs if i % 2 == 0 else reversed(runs):
            times[name].append(seconds_of(runs[name], counts[name]))
    peaks, bare, looped = (np.array(times[name]) for name in runs)
    overheads = looped / bare - 1
    low, high = np.percentile(overheads, [25, 75])
    return {
        "algo": args.algo,
        "preset": case.preset,
        "gflop_per_update": case.gflop,
        "compile_seconds": case.compile_seconds,
        "ms_per_update": float(np.median(bare)) * 1e3,
        "ms_quartiles": (np.percentile(bare, [25, 75]) * 1e3).tolist(),
        "share_of_matmul_peak": float(np.median((case.gflop / bare) / (peak.gflop / peaks))),
        "loop_overhead": float(np.median(overheads)),
        "loop_overhead_quartiles": [float(low), float(high)],
        "matmul_peak_gflops": float(peak.gflop / np.median(peaks)),
    }


def _measure_all(args: BenchmarkArgs) -> list[dict[str, Any]]:
    """Every method once a round, in changing order; the ratios are taken within the rounds."""
    updates = {name: Update(args, name, "recommended") for name in algos.names()}
    counts = {}
    for name, update in updates.items():
        update.run_bare(3)  # warm up
        counts[name] = max(1, round(args.seconds / seconds_of(update.run_bare, 3)))
    times: dict[str, list[float]] = {name: [] for name in updates}
    for i in range(args.repeats):
        for name in updates if i % 2 == 0 else reversed(updates):
            times[name].append(seconds_of(updates[name].run_bare, counts[name]))
    fql = np.array(times["fql"])
    rows = []
    for name, update in updates.items():
        seconds = np.array(times[name])
        ratios = seconds / fql
        rows.append(
            {
                "algo": name,
                "gflop_per_update": update.gflop,
                "gflop_ratio_to_fql": update.gflop / updates["fql"].gflop,
                "compile_seconds": update.compile_seconds,
                "ms_per_update": float(np.median(seconds)) * 1e3,
                "ms_quartiles": (np.percentile(seconds, [25, 75]) * 1e3).tolist(),
                "ratio_to_fql": float(np.median(ratios)),
                "ratio_quartiles": np.percentile(ratios, [25, 75]).tolist(),
            }
        )
    return rows


def _print_all(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    _print_setting(args)
    print_table(
        ("method", "GFLOP/update", "x FQL", "compile s", "ms/update", "x FQL (quartiles)"),
        [
            (
                row["algo"],
                f"{row['gflop_per_update']:.2f}",
                f"{row['gflop_ratio_to_fql']:.2f}",
                f"{row['compile_seconds']:.1f}",
                f"{row['ms_per_update']:.1f} ({row['ms_quartiles'][0]:.1f} to {row['ms_quartiles'][1]:.1f})",
                f"{row['ratio_to_fql']:.2f} ({row['ratio_quartiles'][0]:.2f} to {row['ratio_quartiles'][1]:.2f})",
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
