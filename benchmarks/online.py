"""The cost of the online phase: `python -m benchmarks.online [--task ID] [--method ...] [--seconds S] [--json FILE]`.

All measurements are made in one process, interleaved and repeated, because machines are noisy. Compare ratios. The
loop is the one that trains (`fidec.train.online`), with environments in their own processes. The offline rows are
random, so no data is needed.
"""

from __future__ import annotations

import sys
import tempfile
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

from benchmarks.buffer import Measure, Row, buffers, checkpoint, figure, joined
from benchmarks.timing import Update, random_batch
from fidec import algos
from fidec.cli.parsing import parse, print_table
from fidec.data.batches import PLAIN, Source
from fidec.envs.exploration import Lanes
from fidec.envs.factory import make
from fidec.errors import ConfigError
from fidec.store.files import write_json
from fidec.store.replay import ReplayStore
from fidec.train import loop
from fidec.train.collect import make_explorer
from fidec.train.config import OnlineConfig
from fidec.train.online import Online
from fidec.types import Spec


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
    """Task whose environment is stepped. It must have vector observations."""
    method: tuple[str, ...] = ("fql", "fidec")
    """Methods of the first table. Overlap is measured with the first one."""
    repeats: int = 7
    """Interleaved repetitions."""
    seconds: float = 0.25
    """Length of each measurement."""
    json: Path | None = None
    """Also write all figures to this file."""


# --- the loop --------------------------------------------------------------------------------------------------


@contextmanager
def environments(make_env: Callable[[], gymnasium.Env], count: int) -> Iterator[tuple[Lanes, Spec]]:
    """Environments at the start of their episodes, and their specification."""
    with Lanes(make_env, count) as lanes:
        spec = Spec(lanes.observation_shape, lanes.action_dim)
        if spec.images:
            raise ConfigError("this benchmark needs a task with vector observations, not images")
        lanes.begin(0)
        yield lanes, spec


class Loop:
    """The online phase of a run. Nothing is saved: the store keeps the rows in memory."""

    def __init__(self, measure: Measure, method: str, size: Size, lanes: Lanes, spec: Spec, **changes: Any):
        algorithm = algos.make(method, spec, hidden=size.hidden)
        # The offline rows and the online ones have the same columns.
        offline = Source(random_batch(spec, measure.offline)._replace(returns=None))
        self.online = Online(
            options_of(method, capacity=measure.capacity, **changes),
            algorithm,
            spec,
            offline,
            seed=0,
            first_step=0,
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


def options_of(method: str, **changes: Any) -> OnlineConfig:
    options = OnlineConfig(**{"sampling": "uniform", "collect": "step", **algos.get(method).online, **changes})
    if options.collect == "episode" or algos.get(method).needs_returns:
        raise ConfigError(f"{method} collects whole episodes, so a single step has no cost: choose another method")
    return options


def overhead(measure: Measure, method: str, size: Size, lanes: Lanes, spec: Spec) -> Row:
    """One step of the loop against environment step, update and action, each measured alone."""
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
        **{f"{name}_ms": 1e3 * float(np.median(values)) for name, values in times.items()},
        **figure("overhead", times["step"] / parts - 1),
    }


def overlaps(
    measure: Measure, method: str, size: Size, make_env: Callable[[], gymnasium.Env], counts: tuple[int, ...]
) -> list[Row]:
    """Environment steps per second with several environments, and with overlap; ratios to the first."""
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
            **figure("ratio", first / times[str((count, overlap))]),
        }
        for count, overlap in loops
    ]


# --- the report ------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.online")
    measure, make_env = Measure(args.repeats, args.seconds), partial(make, args.task)
    for method in args.method:
        options_of(method)  # raises before the first measurement
    _print_line(f"starting {args.task}")
    with environments(make_env, 1) as (lanes, spec):
        rows = []
        for size in (SMALL, PUBLISHED):
            for method in args.method:
                _print_line(f"the loop and its parts: {method}, {size.name} networks")
                rows.append(overhead(measure, method, size, lanes, spec))
    _print_line("the buffer")
    found: dict[str, Any] = {
        "task": args.task,
        "backend": jax.default_backend(),
        "repeats": args.repeats,
        "overhead": rows,
        "buffer": buffers(measure, spec, (1_000, 100_000, 1_000_000), SMALL.batch_size),
        "joined": joined(measure, spec, 1_000_000, SMALL.batch_size),
    }
    _print_line("overlap and several environments")
    found["overlap"] = overlaps(measure, args.method[0], SMALL, make_env, (1, 2, 4))
    _print_line("the checkpoint")
    found["checkpoint"] = checkpoint(measure, spec, 100_000, 10_000)
    _print(found)
    if args.json is not None:
        write_json(args.json, found)
    return found


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(row: Row, name: str, form: str = ".2f") -> str:
    low, high = row[f"{name}_quartiles"]
    return f"{row[name]:{form}} ({low:{form}} to {high:{form}})"


def _print(found: dict[str, Any]) -> None:
    print(f"{found['task']}, {found['backend']}; medians (quartiles) of {found['repeats']} repeats\n")
    print("one step of the loop, and its parts alone, ms")
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
    print(f"\na checkpoint's new {row['new']:,} rows, with {row['stored']:,} saved before, against writing all")
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
