"""Time several things in turn, in one process, so that the times can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.algos import Algorithm
from fidec.train import loop
from fidec.types import Batch, Spec


def in_turn(runs: Mapping[str, Callable[[int], None]], rounds: int, seconds: float) -> dict[str, np.ndarray]:
    """Seconds per iteration of each `run(count)`, one value per round. A measurement takes about `seconds`.

    Each round measures all of them, in alternating order. A slow period of the machine therefore slows all of them,
    and ratios within a round are fair. `run(count)` does `count` iterations and waits for them.
    """

    def once(name: str, count: int) -> float:
        begin = time.perf_counter()
        runs[name](count)
        return (time.perf_counter() - begin) / count

    for run in runs.values():
        run(3)  # warm up
    counts = {name: max(1, round(seconds / once(name, 3))) for name in runs}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs)[:: 1 if number % 2 == 0 else -1]:
            times[name].append(once(name, counts[name]))
    return {name: np.array(each) for name, each in times.items()}


def random_batch(spec: Spec, rows: int) -> Batch:
    """Normal observations and uniform actions. The time of an update does not depend on the values."""
    generator = np.random.default_rng(0)
    seen = generator.standard_normal((2, rows, *spec.observation_shape))
    actions = generator.uniform(-1, 1, (2, rows, spec.action_dim))
    rewards, masks = -np.ones(rows), np.ones(rows)
    columns = (seen[0], actions[0], rewards, masks, seen[1], actions[1], 50.0 * rewards)
    return Batch(*(jnp.asarray(column, jnp.float32) for column in columns))


class Update:
    """A compiled update with its state, its FLOPs (from XLA's cost analysis) and its compile time.

    With `frozen` the batch has the proposals of a frozen flow.
    """

    def __init__(self, algorithm: Algorithm, spec: Spec, batch_size: int, frozen: bool = False):
        self.batch, self.key = random_batch(spec, batch_size), rng.stream(0, "update")
        if frozen:
            assert algorithm.propose is not None
            state = jax.jit(algorithm.init)(rng.stream(0, "init"))
            proposals = jax.jit(algorithm.propose)(state, self.batch.next_observations, self.key)
            self.batch = self.batch._replace(proposals=proposals)
        self.algorithm = algorithm
        self.state = loop.start(algorithm, 0, self.batch).state
        begin = time.perf_counter()
        self.update = jax.jit(algorithm.update, donate_argnums=0).lower(self.state, self.batch, self.key).compile()
        self.compile_seconds = time.perf_counter() - begin
        cost: Any = self.update.cost_analysis()
        self.gflop = cost["flops"] / 1e9

    def run(self, count: int) -> None:
        """Do this many updates and wait for them."""
        for _ in range(count):
            self.state, _ = self.update(self.state, self.batch, self.key)
        jax.block_until_ready(self.state)
