"""What the online phase costs: `python -m benchmarks.online [--task ID] [--method ...] [--seconds S] [--json FILE]`.

Everything is measured inside one run, interleaved and repeated, because machines are noisy: read the ratios. The
loop is the one that trains (`fidec.train.online`), with environments in processes of their own; the offline rows are
random, so no data is needed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.update import spread
from fidec import algos, rng
from fidec.cli.output import parse, print_table
from fidec.data import replay
from fidec.data.replay import Replay
from fidec.data.sampling import PLAIN, Drawable, Joined, Sampling, Source, draw
from fidec.envs.lanes import Lanes
from fidec.envs.make import make
from fidec.errors import ConfigError
from fidec.train import loop
from fidec.train.config import OnlineConfig
from fidec.train.explore import make_explorer
from fidec.train.online import Online
from fidec.train.replay_store import ReplayStore, Rows
from fidec.train.timing import Update, in_turn, random_batch
from fidec.types import Batch, Spec

Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Networks and batches of one size."""

    name: str
    hidden: tuple[int, ...]
    batch_size: int


SMALL, PUBLISHED = Size("small", (128,) * 3, 128), Size("published", (512,) * 4, 256)


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure the online phase against its parts: environment, update, acting, buffer, checkpoint."""

    task: str = "pointmaze-medium-navigate-singletask-task1-v0"
    """Task whose environment is stepped; of vectors, not of images."""
    method: tuple[str, ...] = ("fql", "fidec")
    """Methods of the first table. The overlap is measured with the first of them."""
    repeats: int = 7
    """Interleaved repetitions."""
    seconds: float = 0.25
    """Length of each measurement."""
    json: Path | None = None
    """Also write all figures to this file."""


@dataclass(frozen=True)
class Measure:
    """How each figure is taken."""

    repeats: int
    seconds: float
    offline: int = 100_000
    """Offline rows of the loop."""
    capacity: int = 200_000
    """Rows that its ring holds."""

    def __call__(self, runs: dict[str, Callable[[int], None]]) -> dict[str, np.ndarray]:
        return in_turn(runs, self.repeats, self.seconds)


# --- the loop --------------------------------------------------------------------------------------------------


@contextmanager
def environments(make_env: Callable[[], gymnasium.Env], count: int) -> Iterator[tuple[Lanes, Spec]]:
    """Environments at the start of their episodes, and what they look like."""
    with Lanes(make_env, count) as lanes:
        spec = Spec(lanes.observation_shape, lanes.action_dim)
        if spec.images:
            raise ConfigError("this benchmark measures tasks of vectors, not of images")
        lanes.begin(0)
        yield lanes, spec


class Loop:
    """The online phase of a run. Its store keeps the rows in memory: nothing is saved."""

    def __init__(self, measure: Measure, method: str, size: Size, lanes: Lanes, spec: Spec, **changes: Any):
        algorithm = algos.make(method, spec, hidden=size.hidden)
        # The offline rows and the online ones have the same columns.
        offline = Source(random_batch(spec, measure.offline)._replace(returns=None))
        self.online = Online(
            settings_of(method, capacity=measure.capacity, **changes),
            algorithm,
            spec,
            offline,
            seed=0,
            handover=0,
            steps=loop.NEVER,
            batch_size=size.batch_size,
            sampling=PLAIN,
            discount=None,
            make_lanes=lambda: lanes,
            store=ReplayStore(Path(tempfile.gettempdir()) / "not-written"),
            log=lambda rows: None,
            message=lambda text: print(text, file=sys.stderr),
        )
        self.carry, self.step = loop.start(algorithm, 0, random_batch(spec, size.batch_size)), 0
        self.online.compile(self.carry)

    def run(self, count: int) -> None:
        self.carry, self.step = self.online.run_to(
            self.carry, self.step, self.step + count, loop.Signals(), lambda step: None
        )
        jax.block_until_ready(self.carry)
        if self.online.failure is not None:
            raise self.online.failure


def settings_of(method: str, **changes: Any) -> OnlineConfig:
    settings = OnlineConfig(**{"sampling": "uniform", "collect": "step", **algos.get(method).online, **changes})
    if settings.collect == "episode" or algos.get(method).needs_returns:
        raise ConfigError(f"{method} collects whole episodes, of which there is no cost of one step: take another")
    return settings


def overhead(measure: Measure, method: str, size: Size, lanes: Lanes, spec: Spec) -> Row:
    """One step of the loop against environment, update and acting, each by itself."""
    whole = Loop(measure, method, size, lanes, spec)
    update = Update(algos.make(method, spec, hidden=size.hidden), spec, size.batch_size)
    policy = jax.tree.map(jnp.copy, update.algorithm.policy(update.state))  # the update reuses its state's memory
    explore = make_explorer(update.algorithm, 0, spec.action_dim)
    actions = np.random.default_rng(0).uniform(-1, 1, (64, 1, spec.action_dim)).astype(np.float32)
    seen, episodes, steps = lanes.observations, lanes.episodes, lanes.steps

    def act(count: int) -> None:
        for _ in range(count):
            np.asarray(explore(policy, seen, episodes, steps, np.zeros(1, bool)))

    def environment(count: int) -> None:
        for number in range(count):
            lanes.step(actions[number % len(actions)])

    times = measure({"step": whole.run, "environment": environment, "update": update.run, "act": act})
    parts = times["environment"] + times["update"] + times["act"]
    return {
        "method": method,
        **asdict(size),
        **{f"{name}_ms": 1e3 * float(np.median(found)) for name, found in times.items()},
        **_figure("overhead", times["step"] / parts - 1),
    }


def overlaps(
    measure: Measure, method: str, size: Size, make_env: Callable[[], gymnasium.Env], counts: tuple[int, ...]
) -> list[Row]:
    """Environment steps a second with several environments, and with updates while they step; ratios to the first."""
    loops: dict[tuple[int, bool], Loop] = {}
    with ExitStack() as stack:
        for count in counts:
            lanes, spec = stack.enter_context(environments(make_env, count))
            for overlap in (False, True) if count == 1 else (False,):  # both use the same environments, in turn
                loops[count, overlap] = Loop(measure, method, size, lanes, spec, envs=count, overlap=overlap)
        times = measure({str(key): each.run for key, each in loops.items()})
    first = times[str(next(iter(loops)))]
    return [
        {
            "environments": count,
            "overlap": overlap,
            "steps_per_second": float(np.median(1 / times[str((count, overlap))])),
            **_figure("ratio", first / times[str((count, overlap))]),
        }
        for count, overlap in loops
    ]


# --- the buffer ------------------------------------------------------------------------------------------------


class Draws:
    """Batches drawn one after the other inside one compiled loop, as the updates draw them."""

    def __init__(self, source: Drawable, batch_size: int, sampling: Sampling = PLAIN):
        key = rng.stream(0, "batch")

        def draws(source: Drawable, count: jax.Array) -> Batch:
            return jax.lax.fori_loop(
                1, count, lambda step, _: one(source, rng.at(key, step)), one(source, rng.at(key, 0))
            )

        one = partial(draw, count=batch_size, settings=sampling)
        self.source, self.draws = source, jax.jit(draws)

    def run(self, count: int) -> None:
        jax.block_until_ready(self.draws(self.source, np.int32(count)))


class Buffer:
    """A full buffer, to which one row at a time is added as the loop does it."""

    def __init__(self, spec: Spec, capacity: int):
        rows = random_batch(spec, capacity)._replace(returns=None)
        self.replay = Replay(rows, jnp.zeros((), jnp.int32), jnp.full((), capacity, jnp.int32))
        self.row, self.before = jax.tree.map(lambda column: np.asarray(column[:1]), rows), np.zeros(1, np.int32)
        self.follow = jax.jit(replay.follow, donate_argnums=0)

    @property
    def places(self) -> list[int]:
        """Where its columns lie in memory."""
        return [column.unsafe_buffer_pointer() for column in jax.tree.leaves(self.replay.rows)]

    def run(self, count: int) -> None:
        for _ in range(count):
            self.replay = self.follow(self.replay, self.row, self.before)
        jax.block_until_ready(self.replay)


def buffers(measure: Measure, spec: Spec, capacities: tuple[int, ...], batch_size: int) -> list[Row]:
    """Adding one row, and drawing one batch, with buffers of several sizes; ratios to the first."""
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
            **_figure("insertion_ratio", adding[str(capacity)] / adding[first]),
            "draw_us": 1e6 * float(np.median(drawing[str(capacity)])),
            **_figure("draw_ratio", drawing[str(capacity)] / drawing[first]),
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
    ring = Joined(Source(offline), Replay(fresh, jnp.zeros((), jnp.int32), jnp.full((), rows - half, jnp.int32)))
    runs = {"joined": Draws(ring, batch_size, Sampling(capacity=rows)), "plain": Draws(Source(every), batch_size)}
    times = measure({name: each.run for name, each in runs.items()})
    figures = {f"{name}_us": 1e6 * float(np.median(found)) for name, found in times.items()}
    return {"rows": rows, "batch_size": batch_size, **figures, **_figure("ratio", times["joined"] / times["plain"])}


# --- the checkpoint --------------------------------------------------------------------------------------------


def checkpoint(measure: Measure, spec: Spec, held: int, new: int) -> Row:
    """Saving `new` rows, collected one by one, when `held` are saved already, against writing all of them."""
    rows = _stored(spec, held + new)
    singles = [jax.tree.map(lambda column, at=at: column[at : at + 1], rows) for at in range(held, held + new)]
    seconds, written = {"increment": [], "whole": []}, {}
    for _ in range(measure.repeats):
        with tempfile.TemporaryDirectory() as directory:
            increment, whole = ReplayStore(Path(directory, "increment")), ReplayStore(Path(directory, "whole"))
            increment.append(jax.tree.map(lambda column: column[:held], rows))
            increment.flush()
            for each in singles:
                increment.append(each)
            whole.append(rows)
            for name, store in (("increment", increment), ("whole", whole)):
                begin = time.perf_counter()
                written[name] = store.flush()[-1]["bytes"]
                seconds[name].append(time.perf_counter() - begin)
    return {
        "held": held,
        "new": new,
        **{f"{name}_bytes": size for name, size in written.items()},
        **{f"{name}_seconds": float(np.median(found)) for name, found in seconds.items()},
        "bytes_ratio": written["increment"] / written["whole"],
        **_figure("seconds_ratio", np.array(seconds["increment"]) / np.array(seconds["whole"])),
    }


def _stored(spec: Spec, count: int) -> Rows:
    batch = jax.tree.map(np.asarray, random_batch(spec, count)._replace(returns=None))
    numbers = np.arange(count, dtype=np.int32)
    return Rows(batch, numbers // 1000, numbers % 1000, np.zeros(count, np.int32), numbers % 1000 == 999)


# --- the report ------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.online")
    measure, make_env = Measure(args.repeats, args.seconds), partial(make, args.task)
    for method in args.method:
        settings_of(method)  # what cannot be measured is refused at once
    _say(f"starting {args.task}")
    with environments(make_env, 1) as (lanes, spec):
        rows = []
        for size in (SMALL, PUBLISHED):
            for method in args.method:
                _say(f"the loop against its parts: {method}, {size.name} networks")
                rows.append(overhead(measure, method, size, lanes, spec))
    _say("the buffer")
    found: dict[str, Any] = {
        "task": args.task,
        "backend": jax.default_backend(),
        "repeats": args.repeats,
        "overhead": rows,
        "buffer": buffers(measure, spec, (1_000, 100_000, 1_000_000), SMALL.batch_size),
        "joined": joined(measure, spec, 1_000_000, SMALL.batch_size),
    }
    _say("overlap and several environments")
    found["overlap"] = overlaps(measure, args.method[0], SMALL, make_env, (1, 2, 4))
    _say("the checkpoint")
    found["checkpoint"] = checkpoint(measure, spec, 100_000, 10_000)
    _print(found)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _figure(name: str, figures: np.ndarray) -> Row:
    """Median and quartiles."""
    median, quartiles = spread(figures)
    return {name: median, f"{name}_quartiles": quartiles}


def _shown(row: Row, name: str, form: str = ".2f") -> str:
    low, high = row[f"{name}_quartiles"]
    return f"{row[name]:{form}} ({low:{form}} to {high:{form}})"


def _print(found: dict[str, Any]) -> None:
    print(f"{found['task']}, {found['backend']}; medians (quartiles) of {found['repeats']} repeats\n")
    print("one step of the loop, and its parts by themselves, ms")
    print_table(
        ("method", "hidden", "batch", "step", "environment", "update", "act", "overhead"),
        [
            (
                row["method"],
                " x ".join(map(str, row["hidden"])),
                row["batch_size"],
                *(f"{row[f'{part}_ms']:.3f}" for part in ("step", "environment", "update", "act")),
                _shown(row, "overhead", "+.1%"),
            )
            for row in found["overhead"]
        ],
    )
    print("\nthe buffer on the device: one row added, one batch drawn")
    print_table(
        ("capacity", "in place", "insertion us", "x first", "draw us", "x first"),
        [
            (
                f"{row['capacity']:,}",
                "yes" if row["in_place"] else "NO",
                f"{row['insertion_us']:.1f}",
                _shown(row, "insertion_ratio"),
                f"{row['draw_us']:.1f}",
                _shown(row, "draw_ratio"),
            )
            for row in found["buffer"]
        ],
    )
    row = found["joined"]
    print(f"\na batch of {row['batch_size']} from {row['rows']:,} rows, offline and online halves against one array")
    print_table(
        ("joined us", "plain us", "ratio"),
        [(f"{row['joined_us']:.1f}", f"{row['plain_us']:.1f}", _shown(row, "ratio"))],
    )
    print("\nenvironments in parallel, and updates while they step (small networks)")
    print_table(
        ("environments", "overlap", "steps/s", "x first"),
        [
            (
                row["environments"],
                "on" if row["overlap"] else "off",
                f"{row['steps_per_second']:.0f}",
                _shown(row, "ratio"),
            )
            for row in found["overlap"]
        ],
    )
    row = found["checkpoint"]
    print(f"\na checkpoint's new {row['new']:,} rows, with {row['held']:,} saved before, against writing all")
    print_table(
        ("", "MB", "seconds"),
        [
            (name, f"{row[f'{name}_bytes'] / 1e6:.2f}", f"{row[f'{name}_seconds']:.3f}")
            for name in ("increment", "whole")
        ]
        + [("ratio", f"{row['bytes_ratio']:.3f}", _shown(row, "seconds_ratio", ".3f"))],
    )


if __name__ == "__main__":
    main()
