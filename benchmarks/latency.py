"""What a policy adds to the time of its computation: `python -m benchmarks.latency [--sizes 3x128 ...] [--json]`.

`policy(observation)` for one observation is compared with the bare compiled function: `jax.jit(act)` with the key
given, its result converted by `np.asarray`. The policy also checks the observation, derives the key of the call and
looks up its compiled function. The calls are interleaved, in alternating order. The ratio is that of the medians,
taken within each round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fidec import algos, compilation, rng
from fidec.cli.parsing import parse, print_json, print_table
from fidec.errors import ConfigError
from fidec.train.policy import Policy
from fidec.types import Spec


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure the time of a policy's call for one observation, against the bare compiled function."""

    algos: tuple[str, ...] = ("fidec", "fql")
    """Methods, each with its recommended preset."""
    sizes: tuple[str, ...] = ("2x32", "3x128", "4x512")
    """Hidden layers and their width."""
    observation_dim: int = 28
    """Dimensions of an observation."""
    action_dim: int = 5
    """Dimensions of an action."""
    bounds: bool = False
    """Give the actions units of their own, to which the policy maps them."""
    rounds: int = 20
    """Rounds; each gives one ratio."""
    calls: int = 250
    """Calls of each in a round."""
    json: bool = False
    """Print as JSON."""


def hidden_of(size: str) -> tuple[int, ...]:
    """The widths of "3x128": 128, 128, 128."""
    layers, _, width = size.partition("x")
    if not (layers.isdecimal() and width.isdecimal()):
        raise ConfigError(f"a size is LAYERSxWIDTH, 3x128 for example, not {size!r}")
    return (int(width),) * int(layers)


def print_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table that can be pasted into a page of the documentation, and read here."""
    print_table(
        [f"| {name}" for name in header] + ["|"],
        [["|---" for _ in header] + ["|"], *([*(f"| {cell}" for cell in row), "|"] for row in rows)],
    )


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.latency")
    compilation.enable()
    rows = [_measure(args, algo, size) for size in args.sizes for algo in args.algos]
    print_json(rows) if args.json else _print(args, rows)
    return rows


def policy_of(args: BenchmarkArgs, algo: str, size: str) -> Policy:
    """An untrained policy: the time of a call does not depend on the numbers."""
    low, high = ((0.0,) * args.action_dim, (2.0,) * args.action_dim) if args.bounds else (None, None)
    spec = Spec((args.observation_dim,), args.action_dim, action_low=low, action_high=high)
    method = algos.get(algo)
    options = replace(method.configure("recommended"), hidden=hidden_of(size))
    return Policy(algo, options, spec, jax.jit(method.build(options, spec).init)(rng.stream(0, "init")))


def _measure(args: BenchmarkArgs, algo: str, size: str) -> dict[str, Any]:
    policy = policy_of(args, algo, size)
    act, state, key = jax.jit(policy.algorithm.act), policy.state, rng.stream(0, "act")
    calls: dict[str, Callable[[np.ndarray], Any]] = {
        "bare": lambda observation: np.asarray(act(state, observation, key)),
        "policy": policy,
    }
    observations = np.random.default_rng(0).standard_normal((args.calls, args.observation_dim)).astype(np.float32)
    for call in calls.values():
        for observation in observations[:20]:
            call(observation)
    seconds = np.array([interleaved(list(calls.values()), observations) for _ in range(args.rounds)])
    figures: dict[str, Any] = {"algo": algo, "size": size}
    for name, times in zip(calls, 1e6 * np.moveaxis(seconds, -1, 0), strict=True):
        figures |= {f"{name}_us_p{percent}": float(np.percentile(times, percent)) for percent in (50, 99)}
    medians = np.median(seconds, axis=1)
    low, ratio, high = np.percentile(medians[:, 1] / medians[:, 0], [25, 50, 75]).tolist()
    return {**figures, "ratio": ratio, "ratio_quartiles": [low, high]}


def interleaved(calls: Sequence[Callable[[np.ndarray], Any]], observations: np.ndarray) -> np.ndarray:
    """Seconds of each call for each observation, (observations, calls)."""
    seconds = np.empty((len(observations), len(calls)))
    for number, observation in enumerate(observations):
        for which in range(len(calls))[:: 1 if number % 2 == 0 else -1]:
            call = calls[which]
            begin = time.perf_counter()
            call(observation)
            seconds[number, which] = time.perf_counter() - begin
    return seconds


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    print(
        f"{jax.default_backend()}; one observation of {args.observation_dim} numbers, action {args.action_dim}"
        f"{' in units of its own' if args.bounds else ''}; {args.rounds * args.calls} calls, times in microseconds; "
        f"ratio of the medians: median (quartiles) of {args.rounds} rounds\n"
    )
    print_markdown(
        ("method", "hidden", "bare p50", "bare p99", "policy p50", "policy p99", "policy / bare"),
        [
            (
                row["algo"],
                row["size"].replace("x", " x "),
                *(f"{row[f'{name}_us_p{percent}']:.0f}" for name in ("bare", "policy") for percent in (50, 99)),
                f"{row['ratio']:.2f} ({row['ratio_quartiles'][0]:.2f} to {row['ratio_quartiles'][1]:.2f})",
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
