"""One training over several devices: `python -m benchmarks.devices [--devices 1 2 4 8] [--json]`.

The time of an update that is split over virtual CPU devices against the same update on one device, in turn, in one
process. Virtual devices share the cores, so this shows the overhead of the split and no gain. It also prints an
estimate for GPUs that were not there: a formula from operations, bytes and bandwidths, not a measurement.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

FLAG = "--xla_force_host_platform_device_count=8"
if __name__ == "__main__":  # before JAX is imported
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    os.environ.setdefault("NPROC", "16")

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.timing import Update, in_turn  # noqa: E402
from benchmarks.update import spread  # noqa: E402
from fidec import algos  # noqa: E402
from fidec.cli.parsing import parse, print_json, print_table  # noqa: E402
from fidec.data.batches import PLAIN, DeviceFeed  # noqa: E402
from fidec.train import dispatch, loop  # noqa: E402
from fidec.train.devices import places_of  # noqa: E402
from fidec.types import Spec  # noqa: E402


@dataclass(frozen=True)
class DevicesArgs:
    """Measure the overhead of several devices, and estimate their gain on GPUs."""

    devices: tuple[int, ...] = (1, 2, 4, 8)
    """Numbers of devices. The first is what the others are compared with."""
    hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the networks."""
    batch_size: int = 256
    """Transitions a step, of all devices together."""
    rounds: int = 5
    """Interleaved repetitions."""
    seconds: float = 2.0
    """Length of each measurement."""
    teraflops: float = 20.0
    """Of the estimate: what one GPU reaches in float32 on these networks."""
    bandwidth: float = 100.0
    """Of the estimate: GB a second that each GPU sends and receives in a ring."""
    latency: float = 10.0
    """Of the estimate: microseconds of one hop of the ring."""
    sums: int = 4
    """Of the estimate: sums over devices in an update."""
    json: bool = False
    """Print as JSON."""


def estimate(gflop: float, megabytes: float, devices: int, args: DevicesArgs) -> dict[str, float]:
    """Microseconds of an update, in theory: its operations, divided, and rings that add up the gradients.

    A ring over D devices sends 2 (D - 1) / D of the bytes through each link, in 2 (D - 1) hops. The launch of
    kernels, which limits small networks on GPUs, is not in it.
    """
    compute = gflop / devices / args.teraflops * 1e3
    transfer = 2 * (devices - 1) / devices * megabytes / args.bandwidth * 1e3
    hops = args.sums * 2 * (devices - 1) * args.latency
    return {"compute_us": compute, "transfer_us": transfer, "hops_us": hops, "us": compute + transfer + hops}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(DevicesArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.devices")
    spec = Spec((28,), 5)
    update = Update(algos.make("fidec", spec, hidden=args.hidden), spec, args.batch_size)
    rows = jax.tree.map(lambda column: np.resize(np.asarray(column), (20_000, *column.shape[1:])), update.batch)
    data, ways = jax.tree.map(jax.numpy.asarray, rows), {}
    for count in args.devices:
        run = dispatch.Run(keys=loop.keys_of(0), feed=DeviceFeed(data, 0, args.batch_size, PLAIN))
        run.carry = loop.start(update.algorithm, 0, update.batch)
        program = dispatch.Program(update.algorithm, PLAIN, spec, [run], places=places_of(count, 1))

        def go(steps: int, run: Any = run, program: Any = program, pace: Any = None) -> None:
            dispatch.run_for(program, [run], steps, pace or dispatch.Pace(), loop.Signals(), lambda: None)

        ways[str(count)] = go
    times = in_turn(ways, args.rounds, args.seconds)
    first = times[str(args.devices[0])]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(update.state.params)) / 1e6
    table = []
    for count in args.devices:
        ratio, quartiles = spread(times[str(count)] / first)
        row = {"devices": count, "ms": 1e3 * float(np.median(times[str(count)])), "ratio": ratio}
        table.append({**row, "quartiles": quartiles, "estimate": estimate(update.gflop, size, count, args)})
    found = {"gflop": update.gflop, "megabytes": size, "rows": table}
    print_json(found) if args.json else _print(args, found)
    return found


def _print(args: DevicesArgs, found: dict[str, Any]) -> None:
    widths = " x ".join(map(str, args.hidden))
    print(
        f"FiDec, hidden {widths}, batch {args.batch_size}: {found['gflop']:.2f} GFLOP an update, "
        f"{found['megabytes']:.1f} MB of parameters; virtual CPU devices on {os.cpu_count()} cores, medians of "
        f"{args.rounds} rounds. The last "
        "columns are an estimate for GPUs, not measured."
    )
    print_table(
        ("devices", "ms", "of one device", "GPU us", "compute", "transfer", "hops"),
        [
            (
                row["devices"],
                f"{row['ms']:.1f}",
                f"{row['ratio']:.2f} ({row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f})",
                *(f"{row['estimate'][name]:.0f}" for name in ("us", "compute_us", "transfer_us", "hops_us")),
            )
            for row in found["rows"]
        ],
    )


if __name__ == "__main__":
    main()
