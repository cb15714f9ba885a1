"""Latency of exported policies: `python -m benchmarks.export [--sizes 3x128 ...] [--json]`.

For one observation: `policy(observation)` of fidec, the ONNX file in onnxruntime, and the NumPy program, side by side
in one process. Each call draws its own noise. The calls are interleaved, in alternating order. A ratio is that of the
medians, taken within each round.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import latency
from fidec import compilation
from fidec.cli.parsing import parse, print_json
from fidec.export.run import export_policy
from fidec.train.policy import Policy


@dataclass(frozen=True)
class BenchmarkArgs(latency.BenchmarkArgs):
    """Measure the time of a call for one observation: fidec's policy, ONNX and NumPy."""

    algos: tuple[str, ...] = ("fidec", "fql", "ifql")
    """Methods, each with its recommended preset."""
    threads: int = 1
    """Threads of onnxruntime."""


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.export")
    compilation.enable()
    rows = [_measure(args, algo, size) for size in args.sizes for algo in args.algos]
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _onnx(policy: Policy, directory: Path, threads: int) -> Callable[[np.ndarray], Any]:
    import onnxruntime

    width = _width(export_policy(policy, "onnx", directory))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(directory / "policy.onnx", options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)

    def call(observation: np.ndarray) -> Any:
        noise = {"noise": rng.standard_normal((1, width), np.float32)} if width else {}
        return session.run(["actions"], {"observations": observation[None], **noise})

    return call


def _numpy(policy: Policy, directory: Path) -> Callable[[np.ndarray], Any]:
    width = _width(export_policy(policy, "numpy", directory))
    spec = importlib.util.spec_from_file_location("exported", directory / "policy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rng = np.random.default_rng(0)

    def call(observation: np.ndarray) -> np.ndarray:
        noise = (rng.standard_normal((1, width), np.float32),) if width else ()
        return module.act(observation[None], *noise)[0]

    return call


def _width(metadata: dict[str, Any]) -> int:
    return metadata["inputs"][1]["shape"][1] if len(metadata["inputs"]) > 1 else 0


def _measure(args: BenchmarkArgs, algo: str, size: str) -> dict[str, Any]:
    policy = latency.policy_of(args, algo, size)
    with tempfile.TemporaryDirectory() as place:
        calls: dict[str, Callable[[np.ndarray], Any]] = {
            "policy": policy,
            "onnx": _onnx(policy, Path(place) / "onnx", args.threads),
            "numpy": _numpy(policy, Path(place) / "numpy"),
        }
    observations = np.random.default_rng(0).standard_normal((args.calls, args.observation_dim)).astype(np.float32)
    for call in calls.values():
        for observation in observations[:20]:
            call(observation)
    seconds = np.array([latency.interleaved(list(calls.values()), observations) for _ in range(args.rounds)])
    figures: dict[str, Any] = {"algo": algo, "size": size}
    medians = np.median(seconds, axis=1)
    for number, name in enumerate(calls):
        for percent in (50, 99):
            figures[f"{name}_us_p{percent}"] = float(1e6 * np.percentile(seconds[..., number], percent))
        figures[f"{name}_ratio"] = float(np.median(medians[:, number] / medians[:, 0]))
    return figures


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    print(
        f"{jax.default_backend()}; one observation of {args.observation_dim} numbers, action {args.action_dim}; "
        f"{args.rounds * args.calls} calls of each, in microseconds; onnxruntime with {args.threads} thread(s); "
        f"ratio of the medians to that of fidec's policy: median of {args.rounds} rounds\n"
    )
    names = ("policy", "onnx", "numpy")
    header = ("method", "hidden", *(f"{name} p50 (p99)" for name in names), "onnx / policy", "numpy / policy")
    latency.print_markdown(
        header,
        [
            (
                row["algo"],
                row["size"].replace("x", " x "),
                *(f"{row[f'{name}_us_p50']:.0f} ({row[f'{name}_us_p99']:.0f})" for name in names),
                *(f"{row[f'{name}_ratio']:.2f}" for name in names[1:]),
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
