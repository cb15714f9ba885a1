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
    repeats: int = 5
    """Interleaved repetitions."""
    seconds: float = 2.0
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


def measure(run: Callable[[int], Any], seconds: float) -> float:
    """Seconds an iteration of `run(n)`, which makes n iterations and waits for them."""
    begin = time.perf_counter()
    run(1)
    count = max(1, int(seconds / max(time.perf_counter() - begin, 1e-5)))
    begin = time.perf_counter()
    run(count)
    return (time.perf_counter() - begin) / count


def matmul_peak(width: int, rows: int, seconds: float) -> float:
    """GFLOP/s of this machine's own product (rows x width) @ (width x width), chained as in a network."""
    x, w = jnp.ones((rows, width)), jnp.eye(width)
    chain = jax.jit(lambda x, w: jax.lax.fori_loop(0, 50, lambda _, y: y @ w, x))
    chain(x, w).block_until_ready()

    def run(count: int) -> None:
        for _ in range(count):
            chain(x, w).block_until_ready()

    return 50 * 2 * rows * width**2 / measure(run, seconds) / 1e9


class Case:
    """One preset: its compiled bare update and its compiled training loop, each on a state of its own."""

    def __init__(self, args: BenchmarkArgs, preset: str):
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
    peaks: list[float] = []
    bare: dict[str, list[float]] = {preset: [] for preset in cases}
    looped: dict[str, list[float]] = {preset: [] for preset in cases}
    for case in cases.values():  # warm up; the first dispatches also set the loop's pace
        case.run_bare(2)
        case.run_loop(30)
    for _ in range(args.repeats):
        peaks.append(matmul_peak(args.hidden[0], args.batch_size, args.seconds / 2))
        for preset, case in cases.items():
            bare[preset].append(measure(case.run_bare, args.seconds))
            looped[preset].append(measure(case.run_loop, args.seconds))
    peak = float(np.median(peaks))
    rows = []
    for preset, case in cases.items():
        ms = float(np.median(bare[preset])) * 1e3
        # Ratios of neighbours in time: what slows both down cancels.
        overheads = np.array(looped[preset]) / np.array(bare[preset]) - 1
        rows.append(
            {
                "algo": args.algo,
                "preset": preset,
                "gflop_per_update": case.gflop,
                "compile_seconds": case.compile_seconds,
                "ms_per_update": ms,
                "ms_spread": float(np.ptp(bare[preset])) * 1e3,
                "share_of_matmul_peak": case.gflop / (ms / 1e3) / peak,
                "loop_overhead": float(np.median(overheads)),
                "loop_overhead_range": [float(overheads.min()), float(overheads.max())],
                "matmul_peak_gflops": peak,
            }
        )
    if args.json:
        print_json(rows)
    else:
        _print(args, rows, peaks)
    return rows


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]], peaks: list[float]) -> None:
    widths = " x ".join(map(str, args.hidden))
    print(
        f"{jax.default_backend()}, {len(jax.devices())} device(s); observation {args.observation_dim}, action "
        f"{args.action_dim}, hidden {widths}, batch {args.batch_size}; matmul peak "
        f"{np.median(peaks):.0f} GFLOP/s (from {min(peaks):.0f} to {max(peaks):.0f} over {len(peaks)} repeats)"
    )
    print_table(
        ("method", "preset", "GFLOP/update", "compile s", "ms/update", "of peak", "loop overhead"),
        [
            (
                row["algo"],
                row["preset"],
                f"{row['gflop_per_update']:.2f}",
                f"{row['compile_seconds']:.1f}",
                f"{row['ms_per_update']:.1f} (spread {row['ms_spread']:.1f})",
                f"{row['share_of_matmul_peak']:.0%}",
                f"{row['loop_overhead']:+.1%} ({row['loop_overhead_range'][0]:+.1%} to "
                f"{row['loop_overhead_range'][1]:+.1%})",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
