"""The cost of adding, drawing and saving rows of the online phase. Run by `python -m benchmarks.online`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import in_turn, random_batch
from benchmarks.update import spread
from fidec import rng
from fidec.data import replay
from fidec.data.batches import PLAIN, OfflineOnline, Samplable, Sampling, Source, sample_batch
from fidec.data.replay import Replay
from fidec.store.replay import ReplayStore, Rows
from fidec.types import Batch, Spec

Row = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """How each figure is measured."""

    repeats: int
    seconds: float
    offline: int = 100_000
    """Offline rows of the loop."""
    capacity: int = 200_000
    """Capacity of its buffer."""

    def __call__(self, runs: dict[str, Callable[[int], None]]) -> dict[str, np.ndarray]:
        return in_turn(runs, self.repeats, self.seconds)


def figure(name: str, figures: np.ndarray) -> Row:
    """Median and quartiles."""
    median, quartiles = spread(figures)
    return {name: median, f"{name}_quartiles": quartiles}


# --- the buffer ------------------------------------------------------------------------------------------------


class Draws:
    """Batches drawn one after the other inside one compiled loop, as the updates draw them."""

    def __init__(self, source: Samplable, batch_size: int, sampling: Sampling = PLAIN):
        key = rng.stream(0, "batch")

        def draws(source: Samplable, count: jax.Array) -> Batch:
            return jax.lax.fori_loop(
                1, count, lambda step, _: one(source, rng.at(key, step)), one(source, rng.at(key, 0))
            )

        one = partial(sample_batch, count=batch_size, settings=sampling)
        self.source, self.draws = source, jax.jit(draws)

    def run(self, count: int) -> None:
        jax.block_until_ready(self.draws(self.source, np.int32(count)))


class Buffer:
    """A full buffer, to which rows are added one at a time, as in the loop."""

    def __init__(self, spec: Spec, capacity: int):
        rows = random_batch(spec, capacity)._replace(returns=None)
        self.replay = Replay(rows, jnp.zeros((), jnp.int32), jnp.full((), capacity, jnp.int32))
        self.row, self.before = jax.tree.map(lambda column: np.asarray(column[:1]), rows), np.zeros(1, np.int32)
        self.follow = jax.jit(replay.follow, donate_argnums=0)

    @property
    def places(self) -> list[int]:
        """The addresses of its columns."""
        return [column.unsafe_buffer_pointer() for column in jax.tree.leaves(self.replay.rows)]

    def run(self, count: int) -> None:
        for _ in range(count):
            self.replay = self.follow(self.replay, self.row, self.before)
        jax.block_until_ready(self.replay)


def buffers(measure: Measure, spec: Spec, capacities: tuple[int, ...], batch_size: int) -> list[Row]:
    """The time to add one row and to draw one batch, with buffers of several sizes; ratios to the first."""
    made = {capacity: Buffer(spec, capacity) for capacity in capacities}
    draws = {capacity: Draws(buffer.replay, batch_size) for capacity, buffer in made.items()}
    drawing = measure({str(capacity): each.run for capacity, each in draws.items()})
    draws.clear()  # from here on the buffers' memory is reused
    before = {capacity: buffer.places for capacity, buffer in made.items()}
    adding = measure({str(capacity): each.run for capacity, each in made.items()})
    first = str(capacities[0])
    return [
        {
            "capacity": capacity,
            "in_place": made[capacity].places == before[capacity],
            "insertion_us": 1e6 * float(np.median(adding[str(capacity)])),
            **figure("insertion_ratio", adding[str(capacity)] / adding[first]),
            "draw_us": 1e6 * float(np.median(drawing[str(capacity)])),
            **figure("draw_ratio", drawing[str(capacity)] / drawing[first]),
        }
        for capacity in capacities
    ]


def joined(measure: Measure, spec: Spec, rows: int, batch_size: int) -> Row:
    """A batch from offline and collected rows, half of `rows` each, against one from a single array of as many."""
    every = random_batch(spec, rows)._replace(returns=None)
    half = rows // 2
    offline, fresh = (
        jax.tree.map(lambda column, part=part: column[part], every) for part in (slice(half), slice(half, None))
    )
    ring = OfflineOnline(
        Source(offline), Replay(fresh, jnp.zeros((), jnp.int32), jnp.full((), rows - half, jnp.int32))
    )
    runs = {"joined": Draws(ring, batch_size, Sampling(capacity=rows)), "plain": Draws(Source(every), batch_size)}
    times = measure({name: each.run for name, each in runs.items()})
    figures = {f"{name}_us": 1e6 * float(np.median(values)) for name, values in times.items()}
    return {"rows": rows, "batch_size": batch_size, **figures, **figure("ratio", times["joined"] / times["plain"])}


# --- the checkpoint


def checkpoint(measure: Measure, spec: Spec, stored: int, new: int) -> Row:
    """Saving `new` rows, added one by one to `stored` rows that are saved, against writing all of them."""
    rows = _stored(spec, stored + new)
    singles = [jax.tree.map(lambda column, at=at: column[at : at + 1], rows) for at in range(stored, stored + new)]
    seconds, written = {"increment": [], "whole": []}, {}
    for _ in range(measure.repeats):
        with tempfile.TemporaryDirectory() as directory:
            increment, whole = ReplayStore(Path(directory, "increment")), ReplayStore(Path(directory, "whole"))
            increment.append(jax.tree.map(lambda column: column[:stored], rows))
            increment.flush()
            for each in singles:
                increment.append(each)
            whole.append(rows)
            for name, store in (("increment", increment), ("whole", whole)):
                begin = time.perf_counter()
                written[name] = store.flush()[-1]["bytes"]
                seconds[name].append(time.perf_counter() - begin)
    return {
        "stored": stored,
        "new": new,
        **{f"{name}_bytes": size for name, size in written.items()},
        **{f"{name}_seconds": float(np.median(values)) for name, values in seconds.items()},
        "bytes_ratio": written["increment"] / written["whole"],
        **figure("seconds_ratio", np.array(seconds["increment"]) / np.array(seconds["whole"])),
    }


def _stored(spec: Spec, count: int) -> Rows:
    batch = jax.tree.map(np.asarray, random_batch(spec, count)._replace(returns=None))
    numbers = np.arange(count, dtype=np.int32)
    return Rows(batch, numbers // 1000, numbers % 1000, np.zeros(count, np.int32), numbers % 1000 == 999)
