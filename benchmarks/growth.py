"""How time and memory of training grow: `python -m benchmarks.growth [--axes batch_size rows] [--json]`.

One figure is changed at a time: batch size, width, rows of data, action dimensions, and K, the scores of FiDec's
penalty. Each point is a compiled loop that draws batches from the data and updates, like the training loop: of FiDec
with its recommended preset, and of the same with a frozen flow. The points of an axis are measured in turn, round
after round. An exponent is the slope of a line through them, both axes logarithmic: 1 means proportional, 0 that it
does not matter.

The memory of a point is what XLA reserves for the compiled loop: the data, the state and the temporary arrays. The
memory of the process would hide it, because Python, JAX and above all the compiler take more. That memory is in the
last table: real training at the paper's size, each in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.latency import hidden_of, print_markdown
from benchmarks.timing import in_turn, random_batch
from fidec import algos, compilation, fit, rng
from fidec.cli.parsing import parse, print_json
from fidec.data.batches import PLAIN, Source, sample_batch
from fidec.errors import RunError
from fidec.launch import launch
from fidec.types import Spec

ROOT = Path(__file__).resolve().parents[1]
OBSERVATION_DIM = 28
NAMES = JOINT, FROZEN = "joint", "frozen flow"


@dataclass(frozen=True)
class Point:
    """The size of a training."""

    batch_size: int = 256
    width: int = 128
    rows: int = 10_000
    action_dim: int = 5
    samples: int = 4
    layers: int = 3


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure how the time of an update and the memory of training grow, for FiDec."""

    batch_size: tuple[int, ...] = (64, 128, 256, 640)
    """Batch sizes."""
    width: tuple[int, ...] = (64, 128, 256, 640)
    """Widths of the three hidden layers."""
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Rows of data."""
    action_dim: tuple[int, ...] = (2, 5, 10, 20)
    """Dimensions of an action."""
    samples: tuple[int, ...] = (1, 2, 4, 10)
    """K."""
    axes: tuple[str, ...] = ("batch_size", "width", "rows", "action_dim", "samples")
    """The figures to change."""
    repeats: int = 7
    """Interleaved repetitions."""
    seconds: float = 0.3
    """Length of each measurement."""
    peak_rows: tuple[int, ...] = (1_000, 1_000_000)
    """Rows of data of real training whose memory is measured; none if empty."""
    peak_size: str = "4x512"
    """Hidden layers and their width of that training."""
    only_peak: Path | None = None
    """Train on this npz file here and print the memory. The benchmark starts its processes with this."""
    json: bool = False
    """Print as JSON."""


class Loop:
    """A compiled loop that draws batches and updates FiDec, with the bytes that it needs.

    With `frozen` the behaviour flow is frozen, and its proposals are columns of the data.
    """

    def __init__(self, point: Point, frozen: bool):
        spec = Spec((OBSERVATION_DIM,), point.action_dim)
        hidden = (point.width,) * point.layers
        algorithm = algos.make("fidec", spec, preset="recommended", hidden=hidden, samples=point.samples)
        key = rng.stream(0, "update")
        data = random_batch(spec, point.rows)._replace(returns=None)
        self.state = jax.jit(algorithm.init)(rng.stream(0, "init"))
        if frozen:
            assert algorithm.propose is not None
            shapes = jax.eval_shape(algorithm.propose, self.state, data.next_observations, key)
            # Their values do not matter for the time.
            data = data._replace(proposals=jax.tree.map(lambda each: jnp.full(each.shape, 0.5, each.dtype), shapes))

        def steps(state, source: Source, key, count):
            def step(number, state):
                batch = sample_batch(source, rng.at(key, number), point.batch_size, PLAIN)
                return algorithm.update(state, batch, rng.at(key, number))[0]

            return jax.lax.fori_loop(0, count, step, state)

        self.source, self.key = Source(data), key
        lowered = jax.jit(steps, donate_argnums=0).lower(self.state, self.source, key, np.int32(1))
        self.steps = lowered.compile()
        memory: Any = self.steps.memory_analysis()
        self.temporary = memory.temp_size_in_bytes
        fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes  # the state is updated in place
        self.bytes = memory.argument_size_in_bytes + fresh + self.temporary

    def run(self, count: int) -> None:
        self.state = self.steps(self.state, self.source, self.key, np.int32(count))
        jax.block_until_ready(self.state)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.growth")
    if args.only_peak is not None:
        found = _train(args, args.only_peak)
        print_json(found)
        return found
    compilation.enable()
    found = {
        "growth": [_measure(args, axis) for axis in args.axes],
        "peak": [_peak(args, rows) for rows in args.peak_rows],
    }
    print_json(found) if args.json else _print(args, found)
    return found


def _measure(args: BenchmarkArgs, axis: str) -> dict[str, Any]:
    values = getattr(args, axis)
    made = {
        (name, value): Loop(replace(Point(), **{axis: value}), name == FROZEN) for name in NAMES for value in values
    }
    times = in_turn({str(which): each.run for which, each in made.items()}, args.repeats, args.seconds)
    row: dict[str, Any] = {"axis": axis, "values": list(values)}
    for name in NAMES:
        loops = [made[name, value] for value in values]
        ms = np.array([1e3 * times[str((name, value))] for value in values])  # (values, rounds)
        low, exponent, high = np.percentile(_slopes(values, ms), [25, 50, 75]).tolist()
        row[name] = {
            "ms": np.median(ms, axis=1).tolist(),
            "ms_quartiles": np.percentile(ms, [25, 75], axis=1).T.tolist(),
            "bytes": [each.bytes for each in loops],
            "temporary_bytes": [each.temporary for each in loops],
            "time_exponent": exponent,
            "time_exponent_quartiles": [low, high],
            "memory_exponent": float(_slopes(values, np.array([each.bytes for each in loops]))),
        }
    print(f"{axis}: measured", file=sys.stderr)
    return row


def _slopes(values: tuple[int, ...], figures: np.ndarray) -> np.ndarray:
    """The exponent of the figures, which are in the order of the values; of each column if there are several."""
    return np.polyfit(np.log(values), np.log(figures), 1)[0]


def _peak(args: BenchmarkArgs, rows: int) -> dict[str, Any]:
    """The memory of training on this many rows, in a new process."""
    generator, point = np.random.default_rng(0), Point()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data.npz"
        columns = {
            "observations": generator.standard_normal((rows, OBSERVATION_DIM), np.float32),
            "actions": generator.uniform(-1, 1, (rows, point.action_dim)).astype(np.float32),
            "rewards": generator.standard_normal(rows, np.float32),
            "terminals": np.arange(rows) % 100 == 99,
        }
        np.savez(path, **columns)
        words = ["-m", "benchmarks.growth", "--only-peak", str(path), "--peak-size", args.peak_size]
        environ = {"PYTHONPATH": str(ROOT), compilation.VARIABLE: "off"}
        with launch(*words, environ=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, said = process.communicate()
    if process.returncode:
        raise RunError(f"training on {rows} rows failed:\n{said}")
    return {"rows": rows, "data_bytes": sum(column.nbytes for column in columns.values()), **json.loads(out)}


def _train(args: BenchmarkArgs, path: Path) -> dict[str, Any]:
    """Train for a few steps in this process."""
    jnp.zeros(()).block_until_ready()  # JAX has started
    before = _process_memory("VmRSS")
    with tempfile.TemporaryDirectory() as out:
        options = {"hidden": hidden_of(args.peak_size)}
        fit(f"npz:{path}", out, steps=10, batch_size=Point().batch_size, options=options, overwrite=True, quiet=True)
    return {"before_bytes": before, "peak_bytes": _process_memory("VmHWM")}


def _process_memory(name: str) -> int:
    """Bytes that Linux reports of this process: VmRSS is what it has now, VmHWM the most that it ever had."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def _print(args: BenchmarkArgs, found: dict[str, Any]) -> None:
    base = ", ".join(f"{field.name} {field.default}" for field in fields(Point))
    print(
        f"{jax.default_backend()}; FiDec, recommended; observation {OBSERVATION_DIM}, {base}, one of them changed; "
        f"medians (quartiles) of {args.repeats} repeats\n"
    )
    print_markdown(
        (
            "changed",
            "value",
            *(f"{name}: {figure}" for name in NAMES for figure in ("ms/update", "MB", "temporary MB")),
        ),
        [
            (row["axis"], f"{value:,}", *(cell for name in NAMES for cell in _cells(row[name], number)))
            for row in found["growth"]
            for number, value in enumerate(row["values"])
        ],
    )
    print("\nexponents\n")
    print_markdown(
        ("changed", *(f"{name}: {figure}" for name in NAMES for figure in ("time", "memory"))),
        [(row["axis"], *(cell for name in NAMES for cell in _exponents(row[name]))) for row in found["growth"]],
    )
    if found["peak"]:
        print(f"\nreal training, hidden {args.peak_size}, batch {Point().batch_size}: memory of the process in MB\n")
        print_markdown(
            ("rows", "data", "before the data is read", "peak", "peak above before"),
            [
                (
                    f"{row['rows']:,}",
                    *(f"{row[f'{name}_bytes'] / 1e6:.0f}" for name in ("data", "before", "peak")),
                    f"{(row['peak_bytes'] - row['before_bytes']) / 1e6:.0f}",
                )
                for row in found["peak"]
            ],
        )


def _cells(found: dict[str, Any], number: int) -> tuple[str, ...]:
    low, high = found["ms_quartiles"][number]
    time = f"{found['ms'][number]:.2f} ({low:.2f} to {high:.2f})"
    return time, *(f"{found[name][number] / 1e6:.1f}" for name in ("bytes", "temporary_bytes"))


def _exponents(found: dict[str, Any]) -> tuple[str, str]:
    low, high = found["time_exponent_quartiles"]
    return f"{found['time_exponent']:.2f} ({low:.2f} to {high:.2f})", f"{found['memory_exponent']:.2f}"


if __name__ == "__main__":
    main()
