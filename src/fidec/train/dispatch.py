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
from fidec.data.batches import Feed, Sampling, StepBatches
from fidec.train.devices import HERE, Place
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

    The runs are spread over the `places`. On a CPU each run calls the program of a single run, all at the same time,
    in threads. So the results are those of single runs, bit for bit. Networks of 3 x 128 hardly use a second core
    alone; two runs together use both. On other devices it is the same as long as each run has a device of its own.
    With more runs than devices one call updates all runs of a device (`stacked`): single runs up to rounding.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        sampling: Sampling,
        spec: Spec,
        runs: Sequence[Run],
        stacked: bool | None = None,
        places: Sequence[Place] = (HERE,),
        single: Callable[..., Single] | None = None,
    ):
        default = len(runs) > len(places) and jax.default_backend() != "cpu"
        self._stacked = default if stacked is None else stacked
        self._places = {run: number % len(places) for number, run in enumerate(runs)}
        count = len(places) if self._stacked else len(runs)
        self._threads = ThreadPoolExecutor(count, "fidec-run") if count > 1 else None

        def make(place: Place) -> Any:
            if self._stacked:
                return Stacked(algorithm, sampling, place)
            return (single or Single)(algorithm, sampling, spec, runs[0], place)

        # JAX traces in this thread first, and compiles for the other devices at the same time.
        first = make(places[0])
        self._steps = [first, *(self._threads.map(make, places[1:]) if self._threads else ())]

    def __call__(self, runs: Sequence[Run], chunks: Sequence[StepBatches], count: int) -> None:
        groups: dict[Any, list[tuple[Run, StepBatches]]] = {}
        for run, chunk in zip(runs, chunks, strict=True):
            groups.setdefault(self._place(run) if self._stacked else run, []).append((run, chunk))
        work = [(self._steps[self._place(group[0][0])], group) for group in groups.values()]
        if self._threads is None or len(work) == 1:
            for steps, group in work:
                steps(group, count)
        else:
            calls = [self._threads.submit(steps, group, count) for steps, group in work]
            for call in calls:
                call.result()
        for run in runs:
            run.step += count

    def _place(self, run: Run) -> int:
        return self._places.get(run, 0)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


class Single:
    """The compiled steps of one run, at a place. Several runs may call it at the same time."""

    def __init__(self, algorithm: Algorithm, sampling: Sampling, spec: Spec, run: Run, place: Place):
        looped = not step_by_step(spec)
        jitted = make_steps(algorithm, sampling, looped=looped, place=place)
        keys, carry = place.put((run.keys, run.carry))
        compiled = jitted.lower(keys, carry, place.example(run.feed.example), np.int32(0), np.int32(1)).compile()
        self._steps, self._place = compiled if looped else one_by_one(compiled), place
        # The last batches of each run, and the same where they were put.
        self._chunks: dict[Run, tuple[StepBatches, StepBatches]] = {}

    def __call__(self, group: list[tuple[Run, StepBatches]], count: int) -> None:
        for run, chunk in group:
            keys, carry = self._place.put((run.keys, run.carry))
            placed = self._placed(run, chunk)
            carry = self._steps(keys, carry, placed, np.int32(run.step), np.int32(run.step + count))
            run.carry = self._place.take(carry)
            jax.block_until_ready(run.carry)  # in its thread, so that all runs work at the same time

    def _placed(self, run: Run, chunk: StepBatches) -> StepBatches:
        known = self._chunks.get(run)
        if known is None or known[0] is not chunk:
            self._chunks.pop(run, None)  # free its memory for the next
            known = self._chunks[run] = chunk, self._place.put_chunk(chunk)
        return known[1]


class Stacked:
    """The steps of several runs as one program on one device. It is compiled again if a run leaves."""

    def __init__(self, algorithm: Algorithm, sampling: Sampling, place: Place):
        self._steps, self._place = make_stacked_steps(algorithm, sampling), place

    def __call__(self, group: list[tuple[Run, StepBatches]], count: int) -> None:
        def stack(trees: Any) -> Any:
            return self._place.put(jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees))

        runs, chunks = zip(*group, strict=True)
        keys, carry, chunk = (stack(each) for each in ([r.keys for r in runs], [r.carry for r in runs], chunks))
        first = jnp.asarray([run.step for run in runs], jnp.int32)
        carry = self._place.take(self._steps(keys, carry, chunk, first, np.int32(count)))
        for number, run in enumerate(runs):
            run.carry = jax.tree.map(lambda leaf, number=number: leaf[number], carry)


def run_for(
    program: Callable[[Sequence[Run], Sequence[StepBatches], int], None],
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
