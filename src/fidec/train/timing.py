"""What an update costs, for several methods in one process: comparable, which the speeds of single runs are not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec import algos, rng
from fidec.train import loop
from fidec.types import Batch, Spec


def milliseconds(
    methods: Mapping[str, Any], spec: Spec, batch_size: int = 256, rounds: int = 7, seconds: float = 0.3
) -> dict[str, float]:
    """Median milliseconds an update of each method (name -> options), measured in turn, round after round."""
    runs = {name: _Run(name, options, spec, batch_size) for name, options in methods.items()}
    counts = {name: max(1, round(seconds / run(3))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in runs if number % 2 == 0 else reversed(runs):
            times[name].append(runs[name](counts[name]))
    return {name: 1e3 * median(found) for name, found in times.items()}


class _Run:
    """A compiled update with its state; calling it makes updates and gives the seconds of one."""

    def __init__(self, name: str, options: Any, spec: Spec, batch_size: int):
        algorithm = algos.get(name).make(options, spec)
        generator = np.random.default_rng(0)
        seen = generator.standard_normal((2, batch_size, *spec.observation_shape))
        actions = generator.uniform(-1, 1, (2, batch_size, spec.action_dim))
        rewards = np.full(batch_size, -1.0)
        columns = (seen[0], actions[0], rewards, np.ones(batch_size), seen[1], actions[1], rewards)
        self.batch = Batch(*(jnp.asarray(column, jnp.float32) for column in columns))
        self.key = rng.stream(0, "update")
        self.state = loop.start(algorithm, 0, self.batch).state
        self.update = jax.jit(algorithm.update, donate_argnums=0)
        self(3)  # compiles

    def __call__(self, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            self.state, _ = self.update(self.state, self.batch, self.key)
        jax.block_until_ready(self.state)
        return (time.perf_counter() - begin) / count
