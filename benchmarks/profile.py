"""Where the time of one update goes: `python -m benchmarks.profile [--algo ...] [--hidden ...] [--json]`.

Updates run in a compiled loop, as in training, and JAX's profiler traces its operations on one core, where they run
one after the other. The text of the compiled program says what each operation computes. Its time is the lower decile
over the updates, because other processes interrupt some of them, and long operations more often.

The same loop is also timed without the profiler, by a process on one core and by a process on all cores, in turn.
XLA's thread pool gets its size when a process starts, so one process cannot measure both.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.latency import print_markdown
from benchmarks.timing import in_turn, random_batch
from benchmarks.update import spread
from fidec import algos, rng
from fidec.cli.parsing import parse, print_json
from fidec.launch import usable_cores
from fidec.types import Spec

# The classes of operations, in order. An operation has the first whose pattern is in "opcodes: names in the code".
CLASSES = {
    "products": r"^[^:]*\b(dot|convolution)\b",
    "random numbers": r"threefry|random_bits|_normal|_uniform|_randint",
    "optimiser": r"\b(optimiser|polyak)\b",
    "copies": r"^(copy|transpose| )+:",
    "layer norm": r"LayerNorm",
    "activations": r"MLP",
    "rest": r"",
}
FROZEN = "-frozen"


@dataclass(frozen=True)
class ProfileArgs:
    """Profile one update on the CPU, by default at the sizes of the demo and of the paper."""

    algo: tuple[str, ...] = ("fidec", "fidec-frozen", "fql")
    """Methods, with their recommended presets. NAME-frozen is the update with a frozen flow."""
    hidden: tuple[int, ...] = ()
    """Widths of the networks; by default 3 x 128, then 4 x 512."""
    observation_dim: int = 28
    """Dimensions of an observation."""
    action_dim: int = 5
    """Dimensions of an action."""
    batch_size: int = 256
    """Transitions a step."""
    updates: int = 50
    """Updates in the trace."""
    repeats: int = 10
    """Interleaved repetitions of the timing."""
    seconds: float = 1.0
    """Length of each measurement."""
    json: bool = False
    """Print as JSON."""


class Case(NamedTuple):
    """What is profiled. Each process compiles it once."""

    algo: str
    hidden: tuple[int, ...]
    spec: Spec
    batch_size: int


class Loop:
    """Updates on one batch in a compiled loop, which allocates its memory once and not for each update."""

    def __init__(self, case: Case):
        algorithm = algos.make(case.algo.removesuffix(FROZEN), case.spec, preset="recommended", hidden=case.hidden)
        batch, key = random_batch(case.spec, case.batch_size), rng.stream(0, "update")
        state, update = jax.jit(algorithm.init)(key), algorithm.update
        if case.algo.endswith(FROZEN):
            assert algorithm.propose is not None
            proposals = jax.jit(algorithm.propose)(state, batch.next_observations, key)
            batch = batch._replace(proposals=proposals)

        def updates(carry: Any, batch: Any, key: Any, count: Any) -> Any:
            # The metrics are carried too: XLA would leave out what only they need.
            return jax.lax.fori_loop(0, count, lambda i, carry: update(carry[0], batch, rng.at(key, i)), carry)

        metrics = jax.eval_shape(update, state, batch, key)[1]
        self.carry = state, jax.tree.map(lambda metric: jnp.zeros(metric.shape, metric.dtype), metrics)
        self.inputs = batch, key
        self.program = jax.jit(updates, donate_argnums=0).lower(self.carry, *self.inputs, np.int32(1)).compile()

    def run(self, count: int) -> None:
        self.carry = self.program(self.carry, *self.inputs, np.int32(count))
        jax.block_until_ready(self.carry)


loop_of = cache(Loop)


def run(case: Case, count: int) -> None:
    loop_of(case).run(count)


# --- the trace, and the program that was traced ----------------------------------------------------------------


def trace(case: Case, updates: int) -> dict[str, Any]:
    """Milliseconds of each class in one update, and how many operations an update has."""
    loop = loop_of(case)
    loop.run(updates)  # warm
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory, profiler_options=options):
            loop.run(updates)
        (path,) = Path(directory).rglob("*.xplane.pb")
        events = own_times(jax.profiler.ProfileData.from_file(str(path)))
    known, ms = classes(loop.program.as_text() or ""), dict.fromkeys(CLASSES, 0.0)
    for name, durations in events.items():
        ms[known[name]] += float(np.percentile(durations, 10)) * len(durations) / updates / 1e6
    return {"ms": ms, "operations": sum(map(len, events.values())) / updates}


def own_times(profile: Any) -> dict[str, list[float]]:
    """The nanoseconds of each execution of each operation, without those of the operations in it (a loop's body)."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in (line for plane in profile.planes for line in plane.lines):
        events = [event for event in line.events if any(name == "hlo_op" for name, _ in event.stats)]
        for name, duration in without_inner((event.start_ns, event.end_ns, event.name) for event in events):
            found[name].append(duration)
    return found


def without_inner(events: Iterable[tuple[float, float, str]]) -> Iterator[tuple[str, float]]:
    """Name and duration of events (begin, end, name) of one thread, less the events that they contain."""
    around: list[tuple[float, str, list[float]]] = []  # end, name and parts of the events that are not over
    for begin, end, name in [*sorted(events, key=lambda event: (event[0], -event[1])), (np.inf, np.inf, "")]:
        while around and around[-1][0] <= begin:
            _, finished, parts = around.pop()
            yield finished, sum(parts)
        if around:
            around[-1][2].append(begin - end)
        around.append((end, name, [end - begin]))


def classes(text: str) -> dict[str, str]:
    """The class of each instruction of a compiled program, by name. A fusion has that of its most expensive part."""
    found: dict[str, tuple[str, str, str]] = {}  # opcode, place in the code, called computation
    bodies: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    computation = ""
    for line in text.splitlines():
        if match := re.match(r" +(?:ROOT )?%(\S+) = (?:\(.*?\)|\S+) ([\w-]+)\(", line):
            place, called = re.search(r'op_name="(.*?)"', line), re.search(r"calls=%([\w.-]+)", line)
            found[match[1]] = match[2], place[1] if place else "", called[1] if called else ""
            bodies[computation].append(found[match[1]])
        elif match := re.match(r"(?:ENTRY )?%(\S+) \(", line):
            computation = match[1]

    def description(opcode: str, place: str, called: str) -> str:
        parts = bodies[called] if opcode == "fusion" else [(opcode, place, "")]
        opcodes = {each[0] for each in parts} - {"parameter", "constant", "bitcast", "broadcast"}
        return f"{' '.join(sorted(opcodes))}: {place or ' '.join(each[1] for each in parts)}"

    described = {name: description(*each) for name, each in found.items()}
    return {name: next(c for c, p in CLASSES.items() if re.search(p, text)) for name, text in described.items()}


# --- one core and all cores ------------------------------------------------------------------------------------


def on_cores(cores: list[int]) -> ProcessPoolExecutor:
    """A process on these cores."""
    return ProcessPoolExecutor(1, get_context("spawn"), _start, (cores,))


def _start(cores: list[int]) -> None:
    """Stay on these cores, and end with the parent process even if it is killed."""
    os.sched_setaffinity(0, cores)

    def follow() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    Thread(target=follow, daemon=True).start()


def measure(args: ProfileArgs, case: Case) -> dict[str, Any]:
    cores = usable_cores()
    with on_cores(cores[-1:]) as one, on_cores(cores) as all_:
        processes = {"one": one, "all": all_}
        runs = {name: partial(_run_in, process, case) for name, process in processes.items()}
        times = in_turn(runs, args.repeats, args.seconds)
        traced = one.submit(trace, case, args.updates).result()
    row: dict[str, Any] = {"algo": case.algo, "hidden": case.hidden, "cores": len(cores)}
    for name, figures in (
        ("ms_on_one_core", 1e3 * times["one"]),
        ("ms_on_all_cores", 1e3 * times["all"]),
        ("gain_of_all_cores", times["one"] / times["all"]),
    ):
        row[name], row[f"{name}_quartiles"] = spread(figures)
    total = sum(traced["ms"].values())
    shares = {name: each / total for name, each in traced["ms"].items()}
    return {**row, "ms_in_operations": total, "operations": traced["operations"], "shares": shares}


def _run_in(process: ProcessPoolExecutor, case: Case, count: int) -> None:
    process.submit(run, case, count).result()


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(ProfileArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.profile")
    sizes = [args.hidden] if args.hidden else [(128,) * 3, (512,) * 4]
    spec = Spec((args.observation_dim,), args.action_dim)
    cases = [Case(algo, hidden, spec, args.batch_size) for hidden in sizes for algo in args.algo]
    rows = [measure(args, case) for case in cases]
    print_json(rows) if args.json else _print(args, rows)
    return rows


def _print(args: ProfileArgs, rows: list[dict[str, Any]]) -> None:
    print(
        f"observation {args.observation_dim}, action {args.action_dim}, batch {args.batch_size}; shares of the time "
        f"in operations, on one core; medians (quartiles) of {args.repeats} repeats"
    )
    cores = rows[0]["cores"]
    print_markdown(
        ("method", "hidden", *CLASSES, "operations", "ms, 1 core", f"ms, {cores} cores", f"gain of {cores} cores"),
        [
            (
                row["algo"],
                f"{len(row['hidden'])} x {row['hidden'][0]}",
                *(f"{share:.1%}" for share in row["shares"].values()),
                f"{row['operations']:.0f} in {row['ms_in_operations']:.1f} ms",
                *(_with_quartiles(row, name, 1) for name in ("ms_on_one_core", "ms_on_all_cores")),
                _with_quartiles(row, "gain_of_all_cores", 2),
            )
            for row in rows
        ],
    )


def _with_quartiles(row: dict[str, Any], name: str, digits: int) -> str:
    low, high = row[f"{name}_quartiles"]
    return f"{row[name]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


if __name__ == "__main__":
    main()
