"""How long a run compiles when it starts: `python -m benchmarks.startup [--algos fql fidec] [--size 3x128] [--json]`.

Each start is a real run of a few steps in a process of its own. The first start of a method has an empty directory of
compiled programs, the second finds what the first has left, and so does a start with another seed. `compile` is what
the run logs as time/compile: Python traces the training loop and writes it as a program (in every process), and XLA
compiles the program or reads it from the directory. `XLA` is that last part, of all programs of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.latency import hidden_of, print_markdown
from fidec import algos, compilation, fit
from fidec.cli.parsing import parse, print_json
from fidec.errors import RunError
from fidec.launch import launch

ROOT = Path(__file__).resolve().parents[1]
STARTS = {"first": 0, "second": 0, "seed": 1}  # the starts of a method, in this order, and their seeds
TIMEOUT = 900  # seconds of a start
XLA = "/jax/core/compile/backend_compile_duration"  # JAX's name of the time in which XLA compiles or reads a program


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure how long methods compile at their first start, at the second, and with another seed."""

    algos: tuple[str, ...] = ()
    """Methods, each with its recommended preset; by default all. FQL is always measured, for the comparison."""
    size: str = "3x128"
    """Hidden layers and their width."""
    batch_size: int = 256
    """Transitions a step."""
    observation_dim: int = 28
    """Dimensions of an observation."""
    action_dim: int = 5
    """Dimensions of an action."""
    steps: int = 20
    """Steps of each run."""
    repeats: int = 1
    """Repetitions, of which the medians are printed."""
    only: tuple[str, int] | None = None
    """Make one start here: the method and the seed. The benchmark starts its processes with this."""
    work: Path | None = None
    """Directory of that start, which holds data.npz."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    argv = sys.argv[1:] if argv is None else argv
    args = parse(BenchmarkArgs, argv, "python -m benchmarks.startup")
    if args.only is not None and args.work is not None:
        rows = [_start(args, *args.only, args.work)]
        print_json(rows)
        return rows
    names = args.algos or algos.names()
    rows = list(_measure(args, argv, ["fql", *(name for name in names if name != "fql")]))
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _start(args: BenchmarkArgs, algo: str, seed: int, work: Path) -> dict[str, Any]:
    """A run in this process."""
    xla: list[float] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == XLA:
            xla.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    with tempfile.TemporaryDirectory(dir=work) as out:
        fit(
            f"npz:{work / 'data.npz'}",
            out,
            algo=algo,
            seed=seed,
            steps=args.steps,
            batch_size=args.batch_size,
            options={"hidden": hidden_of(args.size)},
            overwrite=True,
            quiet=True,
        )
        logged = [json.loads(line) for line in Path(out, "time.jsonl").read_text().splitlines()]
    return {"compile": sum(row.get("time/compile", 0.0) for row in logged), "xla": sum(xla)}


def _measure(args: BenchmarkArgs, argv: list[str], names: list[str]) -> Iterator[dict[str, Any]]:
    """The figures of the methods, FQL first. One that fails is left out."""
    reference = None
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        _write_data(args, work / "data.npz")
        for name in names:
            try:
                row = _starts(args, argv, name, work)
            except RunError as error:
                if reference is None:
                    raise
                print(error, file=sys.stderr)
                continue
            reference = reference or row["first_compile"]
            row["ratio_to_fql"] = row["first_compile"] / reference
            print(f"{name}: {row['first_compile']:.1f} s, then {row['second_compile']:.1f} s", file=sys.stderr)
            yield {"algo": name, **row}


def _starts(args: BenchmarkArgs, argv: list[str], algo: str, work: Path) -> dict[str, float]:
    figures: dict[str, list[float]] = {}
    for number in range(args.repeats):
        cache = work / f"{algo}-{number}"  # each method compiles all of its programs
        for start, seed in STARTS.items():
            for figure, value in _in_process(argv, algo, seed, work, cache).items():
                figures.setdefault(f"{start}_{figure}", []).append(value)
    row = {name: float(np.median(values)) for name, values in figures.items()}
    return row | {f"{start}_ratio": row[f"{start}_compile"] / row["first_compile"] for start in ("second", "seed")}


def _in_process(argv: list[str], algo: str, seed: int, work: Path, cache: Path) -> dict[str, float]:
    """The figures of a start in a new process, with its whole time."""
    words = ["-m", "benchmarks.startup", *argv, "--only", algo, str(seed), "--work", str(work)]
    environ = {"PYTHONPATH": str(ROOT), compilation.VARIABLE: str(cache)}
    begin = time.perf_counter()
    with launch(*words, environ=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, said = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise RunError(f"the start of {algo} took longer than {TIMEOUT} s") from None
    if process.returncode:
        raise RunError(f"the start of {algo} ended with code {process.returncode}:\n{said}")
    (figures,) = json.loads(out)
    return {**figures, "process": time.perf_counter() - begin}


def _write_data(args: BenchmarkArgs, path: Path) -> None:
    """Rows to train on for a few steps. Which they are does not matter."""
    generator, rows = np.random.default_rng(0), 2000
    np.savez(
        path,
        observations=generator.standard_normal((rows, args.observation_dim), np.float32),
        actions=generator.uniform(-1, 1, (rows, args.action_dim)).astype(np.float32),
        rewards=generator.standard_normal(rows, np.float32),
        terminals=np.arange(rows) % 100 == 99,
    )


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    print(
        f"{jax.default_backend()}; observation {args.observation_dim}, action {args.action_dim}, hidden {args.size}, "
        f"batch {args.batch_size}; seconds, medians of {args.repeats} repeat(s)\n"
    )

    print_markdown(
        (
            "method",
            "first",
            "second",
            "other seed",
            "second / first",
            "other seed / first",
            "first x FQL",
            "XLA first",
            "XLA second",
            "process first",
            "process second",
        ),
        [
            (
                row["algo"],
                *(f"{row[f'{start}_compile']:.2f}" for start in STARTS),
                *(f"{row[f'{start}_ratio']:.3f}" for start in ("second", "seed")),
                f"{row['ratio_to_fql']:.2f}",
                *(f"{row[f'{start}_{part}']:.1f}" for part in ("xla", "process") for start in ("first", "second")),
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
