"""Dispatch the compiled steps of one or more runs, about once a second.

Runs that differ only in their seeds share one program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fidec.algos import Algorithm
from fidec.data.feed import Chunk, Feed
from fidec.data.sampling import Sampling
from fidec.train.loop import Keys, Signals, is_finite, make_stacked_steps, make_steps, one_by_one, step_by_step
from fidec.types import Spec

DISPATCH_SECONDS = 1.0  # length of a dispatch; signals and the progress bar wait for its end


@dataclass(kw_only=True, eq=False)
class Run:
    """Where a run is: its step and its carry, and what its next steps are made from."""

    keys: Keys
    feed: Feed
    carry: Any = None
    step: int = 0


class Program:
    """The compiled steps of runs that differ only in their seeds: program(runs, chunks, count) moves them on.

    On a CPU each run calls the program of a single run, all at the same time, in threads. So the results are those of
    single runs, bit for bit. Networks of 3 x 128 hardly use a second core alone; two runs together use both. On other
    devices one call updates all runs (`stacked`): equal to single runs up to rounding.
    """

    def __init__(
        self, algorithm: Algorithm, sampling: Sampling, spec: Spec, runs: Sequence[Run], stacked: bool | None = None
    ):
        default = len(runs) > 1 and jax.default_backend() != "cpu"
        self._stacked = default if stacked is None else stacked
        self._threads = ThreadPoolExecutor(len(runs), "fidec-run") if len(runs) > 1 and not self._stacked else None
        if self._stacked:
            self._steps = make_stacked_steps(algorithm, sampling)  # compiled again if a run leaves
            return
        looped, run = not step_by_step(spec), runs[0]
        jitted = make_steps(algorithm, sampling, looped=looped)
        compiled = jitted.lower(run.keys, run.carry, run.feed.example, np.int32(0), np.int32(1)).compile()
        self._steps = compiled if looped else one_by_one(compiled)

    def __call__(self, runs: Sequence[Run], chunks: Sequence[Chunk], count: int) -> None:
        if self._stacked:
            self._call_stacked(runs, chunks, count)
        elif self._threads is None:
            for run, chunk in zip(runs, chunks, strict=True):
                self._call_one(run, chunk, count)
        else:
            calls = [self._threads.submit(self._call_one, *each, count) for each in zip(runs, chunks, strict=True)]
            for call in calls:
                call.result()
        for run in runs:
            run.step += count

    def _call_one(self, run: Run, chunk: Chunk, count: int) -> None:
        run.carry = self._steps(run.keys, run.carry, chunk, np.int32(run.step), np.int32(run.step + count))
        jax.block_until_ready(run.carry)  # in its thread, so that all runs work at the same time

    def _call_stacked(self, runs: Sequence[Run], chunks: Sequence[Chunk], count: int) -> None:
        def stack(trees: Any) -> Any:
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

        keys, carry, chunk = (stack(each) for each in ([r.keys for r in runs], [r.carry for r in runs], chunks))
        first = jnp.asarray([run.step for run in runs], jnp.int32)
        carry = self._steps(keys, carry, chunk, first, np.int32(count))
        for number, run in enumerate(runs):
            run.carry = jax.tree.map(lambda leaf, number=number: leaf[number], carry)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def run_for(
    program: Callable[[Sequence[Run], Sequence[Chunk], int], None],
    runs: Sequence[Run],
    count: int,
    pace: Pace,
    signals: Signals,
    on_dispatch: Callable[[], None],
) -> None:
    """Move the runs on by `count` steps, or fewer if a signal arrives. It stops where a metric is not finite."""
    while count and signals.received is None:
        before = time.perf_counter()
        chunks, stops = zip(*(run.feed.at(run.step) for run in runs), strict=True)
        number = pace.next(min(count, *(stop - run.step for run, stop in zip(runs, stops, strict=True))))
        program(runs, chunks, number)
        if not all(is_finite(run.carry) for run in runs):  # waits for the device
            return
        count -= number
        pace.record(number, time.perf_counter() - before)
        on_dispatch()


class Pace:
    """How many steps to dispatch at once, so that a dispatch takes about `DISPATCH_SECONDS`."""

    def __init__(self) -> None:
        self.rate: float | None = None  # steps a second

    def next(self, left: int) -> int:
        return min(left, 10 if self.rate is None else max(1, int(self.rate * DISPATCH_SECONDS)))

    def record(self, steps: int, seconds: float) -> None:
        rate = steps / max(seconds, 1e-6)
        self.rate = rate if self.rate is None else 0.5 * (self.rate + rate)
