"""What several environment processes gain: `python -m benchmarks.evaluation [--processes N N ...] [--task ID]`.

An untrained FiDec policy runs the same seeded episodes with one environment process and with several. All are
measured in every round of one run, in alternating order, because machines are noisy: read the ratios of the rounds.
The start of the environments and the compilation of the policy are not part of the time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import numpy as np

from benchmarks.update import spread
from fidec import algos, rng
from fidec.cli.parsing import parse, print_json, print_table
from fidec.envs.evaluation import EnvPool
from fidec.envs.factory import factory_of
from fidec.errors import ConfigError, EnvError
from fidec.train.acting import PUBLISHED, episode_policy
from fidec.types import Spec


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure an evaluation with one environment process and with several."""

    episodes: int = 50
    """Episodes of an evaluation."""
    task: str = "cube-single-play-singletask-task2-v0"
    """Task whose environment is stepped. It must have vector observations."""
    hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the networks."""
    processes: tuple[int, ...] = ()
    """Numbers of environment processes beside one; by default one per core, and one more."""
    rounds: int = 3
    """Interleaved repetitions."""
    json: bool = False
    """Print as JSON."""


class Evaluation:
    """Environments that have started, and a policy that is compiled for their number."""

    def __init__(self, make_env: Callable[[], gymnasium.Env], count: int, hidden: tuple[int, ...]):
        begin = time.perf_counter()
        self.pool = EnvPool(make_env, count)
        self.start_seconds = time.perf_counter() - begin
        spec = Spec(self.pool.observation_shape, self.pool.action_dim)
        if spec.images:
            raise ConfigError("this benchmark needs a task with vector observations, not images")
        algorithm = algos.make("fidec", spec, hidden=hidden)
        state = jax.jit(algorithm.init)(rng.stream(0, "init"))
        self._actor = episode_policy(algorithm, algorithm.policy(state), rng.stream(0, "evaluate"), spec, PUBLISHED)
        self._actor(np.zeros((count, *self.pool.observation_shape), np.float32), *np.zeros((2, count), np.int64))
        self.seconds: list[float] = []
        self.steps = self.calls = 0
        self._act_seconds = 0.0

    def run(self, episodes: int) -> None:
        begin = time.perf_counter()
        found = self.pool.run(self._act, episodes, seed=0)
        self.seconds.append(time.perf_counter() - begin)
        if failed := [episode for episode in found if episode.status != "ok"]:
            raise EnvError(
                f"episode {failed[0].index} failed: {failed[0].detail}. Its time is not that of an episode"
            )
        self.steps = sum(episode.length for episode in found)

    def _act(self, *lanes: np.ndarray) -> np.ndarray:
        begin = time.perf_counter()
        actions = self._actor(*lanes)
        self._act_seconds += time.perf_counter() - begin
        self.calls += 1
        return actions

    def figures(self) -> dict[str, Any]:
        seconds = np.array(self.seconds)
        return {
            "environments": self.pool.num_envs,
            "start_seconds": self.start_seconds,
            "steps": self.steps,
            "seconds": float(np.median(seconds)),
            "seconds_of_rounds": self.seconds,
            "steps_per_second": float(np.median(self.steps / seconds)),
            "act_ms": 1e3 * self._act_seconds / self.calls,
            "calls_per_step": self.calls / (self.steps * len(seconds)),
        }


def measure(
    make_env: Callable[[], gymnasium.Env], counts: Sequence[int], hidden: tuple[int, ...], episodes: int, rounds: int
) -> list[dict[str, Any]]:
    """One row for each number of processes. `speedup` is the time of the first by that of this one."""
    with ExitStack() as stack:
        evaluations = []
        for count in counts:
            evaluations.append(Evaluation(make_env, count, hidden))
            stack.callback(evaluations[-1].pool.close)
        for number in range(rounds):
            for each in evaluations[:: 1 if number % 2 == 0 else -1]:
                each.run(episodes)
    first, rows = np.array(evaluations[0].seconds), []
    for each in evaluations:
        speedups = first / np.array(each.seconds)
        median, quartiles = spread(speedups)
        figures = {"speedup": median, "speedup_quartiles": quartiles, "speedup_of_rounds": speedups.tolist()}
        rows.append({**each.figures(), **figures})
    return rows


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.evaluation")
    factory = factory_of(args.task)
    assert factory is not None  # a task is given
    cores = os.cpu_count() or 1
    counts = sorted({1} | {min(count, args.episodes) for count in args.processes or (cores, cores + 1)})
    rows = measure(factory.function(), counts, args.hidden, args.episodes, args.rounds)
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _print(args: BenchmarkArgs, rows: list[dict[str, Any]]) -> None:
    widths = " x ".join(map(str, args.hidden))
    print(
        f"{args.task}, {args.episodes} episodes ({rows[0]['steps']:,} steps); fidec, hidden {widths}, on "
        f"{jax.default_backend()}; medians of {args.rounds} rounds"
    )
    print_table(
        (
            "processes",
            "start s",
            "seconds",
            "steps/s",
            "act ms",
            "calls/step",
            "speed-up (quartiles)",
            "of each round",
        ),
        [
            (
                row["environments"],
                f"{row['start_seconds']:.1f}",
                f"{row['seconds']:.2f}",
                f"{row['steps_per_second']:.0f}",
                f"{row['act_ms']:.2f}",
                f"{row['calls_per_step']:.2f}",
                f"{row['speedup']:.2f} ({row['speedup_quartiles'][0]:.2f} to {row['speedup_quartiles'][1]:.2f})",
                " ".join(f"{each:.2f}" for each in row["speedup_of_rounds"]),
            )
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
