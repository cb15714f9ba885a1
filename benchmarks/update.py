"""What one update costs: `python -m benchmarks.update [--algo NAME] [--preset NAME] [--hidden ...] [--json]`.

Everything is measured inside one run, interleaved and repeated, because machines are noisy: read the ratios. The
FLOPs come from XLA's cost analysis of the compiled update; the machine's peak is its own matrix product at the
size of a hidden layer; the loop's overhead compares the training loop (batches drawn on the device, metrics
summed, dispatches of about a second) with bare updates on a fixed batch.
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

    algo: str = "fidec"
    """Method."""
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


def random_batch(spec: Spec, rows: int) -> Batch:
    """Normal observations and uniform actions: the cost does not depend on the values."""
    generator = np.random.default_rng(0)
    observations = generator.standard_normal((2, rows, *spec.observation_shape), np.float32)
    actions = generator.uniform(-1, 1, (2, rows, spec.action_dim)).astype(np.float32)
    rewards, masks = -np.ones(rows, np.float32), np.ones(rows, np.float32)
    return jax.tree.map(jnp.asarray, Batch(observations[0], actions[0], rewards, masks, observations[1], actions[1]))


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


class Case:
    """One preset: its compiled bare update and its compiled training loop, each on a state of its own."""

    def __init__(self, args: BenchmarkArgs, preset: str):
        self.preset = preset
        spec = Spec((args.observation_dim,), args.action_dim)
        algorithm = algos.make(args.algo, spec, preset=preset, hidden=args.hidden)
        self.batch, self.key = random_batch(spec, args.batch_size), rng.stream(0, "update")
        self.data = random_batch(spec, 100_000)
        self.carry = loop.start(algorithm, 0, self.batch)
        self.state = jax.tree.map(jnp.copy, self.carry.state)
        begin = time.perf_counter()
        update = jax.jit(algorithm.update, donate_argnums=0)
        self.update = update.lower(self.state, self.batch, self.key).compile()
        self.compile_seconds = time.perf_counter() - begin
        steps = loop.make_steps(algorithm, 0, args.batch_size)
        self.steps = steps.lower(self.carry, self.data, np.int32(0), np.int32(1)).compile()
        self.step, self.pace = 0, loop.Pace()
        cost: Any = self.update.cost_analysis()
        self.gflop = cost["flops"] / 1e9

    def run_bare(self, count: int) -> None:
        for _ in range(count):
            self.state, _ = self.update(self.state, self.batch, self.key)
        jax.block_until_ready(self.state)

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


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    widths = " x ".join(map(str, args.hidden))
    print(
        f"{jax.default_backend()}, {len(jax.devices())} device(s); observation {args.observation_dim}, action "
        f"{args.action_dim}, hidden {widths}, batch {args.batch_size}; medians (quartiles) of {args.repeats} repeats"
    )
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
