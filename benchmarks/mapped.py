"""Data larger than memory: `python -m benchmarks.mapped DIRECTORY [--gigabytes 20] [--json]`.

It writes random numbers as uncompressed .npz shards to DIRECTORY, trains a small network on them with a low memory
limit in a process of its own, and records the memory of that process. Then it times updates on the shards against the
same updates on a small data set on the device, in turn, in the same process. The shards are deleted at the end.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import tyro

from benchmarks.timing import in_turn
from benchmarks.update import spread
from fidec import algos, load_dataset
from fidec.cli.parsing import parse, print_json
from fidec.data.batches import PLAIN, Data, HostFeed
from fidec.data.npz import write_npz
from fidec.launch import launch
from fidec.train import dispatch, loop
from fidec.train.config import RunConfig
from fidec.train.run import train


@dataclass(frozen=True)
class MappedArgs:
    """Train on a data set that does not fit into memory."""

    directory: Annotated[Path, tyro.conf.Positional]
    """An empty directory for the shards and the run."""
    gigabytes: float = 20.0
    """Size of the data."""
    shards: int = 20
    """Number of files."""
    observation: int = 512
    """Dimensions of an observation."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the networks."""
    steps: int = 300
    """Updates of the run whose memory is recorded."""
    rounds: int = 5
    """Interleaved repetitions of the timing."""
    inside: bool = False
    """Used by the benchmark itself: train and time, in its own process."""
    keep: bool = False
    """Do not delete the shards."""
    json: bool = False
    """Print as JSON."""


class Memory(threading.Thread):
    """The peak memory of this process, from Linux' record of it, twenty times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = {"RssAnon": 0.0, "RssFile": 0.0, "VmRSS": 0.0}
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.05):
            now = status()
            self.peak = {name: max(value, now[name]) for name, value in self.peak.items()}


def status() -> dict[str, float]:
    """Megabytes, by the names in /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith("kB")}


def make(args: MappedArgs) -> int:
    """Write the shards; the result is the number of bytes."""
    generator, actions = np.random.default_rng(0), 16
    rows = int(args.gigabytes * 1e9 / (4 * (args.observation + actions + 1) + 1) / args.shards)
    block = 50_000
    for number in range(args.shards):
        counts = [min(block, rows - first) for first in range(0, rows, block)]

        def parts(*shape: int, counts: list[int] = counts) -> Any:
            return (2 * generator.random((count, *shape), np.float32) - 1 for count in counts)

        members = {
            "observations": (((rows, args.observation), np.dtype(np.float32)), parts(args.observation)),
            "actions": (((rows, actions), np.dtype(np.float32)), parts(actions)),
            "rewards": (((rows,), np.dtype(np.float32)), parts()),
            "truncations": (((rows,), np.dtype(bool)), iter([np.arange(rows) % 1000 == 999])),
        }
        with open(args.directory / f"part{number}.npz", "wb") as file:
            write_npz(file, members)
    return sum(path.stat().st_size for path in args.directory.glob("*.npz"))


def inside(args: MappedArgs) -> dict[str, Any]:
    """Train, and time updates, in a process that does nothing else."""
    memory, begin = Memory(), time.perf_counter()
    memory.start()
    source, before = f"npz:{args.directory}", status()
    dataset = load_dataset(source)
    loaded = time.perf_counter() - begin
    options = algos.get("fidec").configure(hidden=args.hidden)
    config = RunConfig(
        data=source,
        steps=args.steps,
        options=options,
        log_interval=100,
        memory_limit=1.0,
        out=args.directory / "run",
        normalize_observations=True,
    )
    train(config, dataset, overwrite=True, quiet=True)
    found = {"load_seconds": loaded, "train_seconds": time.perf_counter() - begin - loaded}
    found |= {f"peak_{name}_MB": value for name, value in memory.peak.items()}
    found |= {"before_RssAnon_MB": before["RssAnon"], "VmHWM_MB": status()["VmHWM"], "rows": dataset.size}
    found["gigabytes_in_memory"] = dataset.nbytes / 1e9
    memory.stop.set()
    return {**found, **_timing(args, dataset)}


def _timing(args: MappedArgs, dataset: Any) -> dict[str, Any]:
    """Seconds of an update from the shards, and from the first rows of them on the device."""
    small = load_small(args)
    algorithm = algos.make("fidec", dataset.spec, hidden=args.hidden)
    ways, mapped = {}, {}
    for name, data in (
        ("mapped", Data.of([dataset], PLAIN, limit=0)),
        ("memory", Data.of([small], PLAIN, limit=0)),
        ("device", Data.of([small], PLAIN, limit=1e12)),
    ):
        feed = data.feed(0, 256, PLAIN)
        run = dispatch.Run(keys=loop.keys_of(0), feed=feed)
        run.carry = loop.start(algorithm, 0, loop.example_batch(feed.example))
        mapped[name] = run, dispatch.Program(algorithm, PLAIN, dataset.spec, [run]), dispatch.Pace()

        def go(count: int, name: str = name) -> None:
            run, program, pace = mapped[name]
            dispatch.run_for(program, [run], count, pace, loop.Signals(), lambda: None)

        ways[name] = go
    times = in_turn(ways, args.rounds, 5.0)
    found: dict[str, Any] = {f"{name}_ms": 1e3 * float(np.median(each)) for name, each in times.items()}
    for name in ("mapped", "memory"):
        found[f"{name}_over_device"], found[f"{name}_quartiles"] = spread(times[name] / times["device"])
    begin, feed = time.perf_counter(), Data.of([dataset], PLAIN, limit=0).feed(1, 256, PLAIN)
    assert isinstance(feed, HostFeed)
    for step in range(0, 4 * feed.steps, feed.steps):  # the gathering alone, one chunk after another
        jax.block_until_ready(feed.at(step)[0].rows)
    found["gather_ms"] = 1e3 * (time.perf_counter() - begin) / (4 * feed.steps)
    feed.close()
    for run, *_ in mapped.values():
        run.feed.close()
    return found


def load_small(args: MappedArgs) -> Any:
    """The first 50,000 rows, in memory."""
    from fidec import dataset_from_arrays

    whole = load_dataset(f"npz:{args.directory / 'part0.npz'}")
    rows = slice(0, 50_000)
    columns: dict[str, Any] = {
        name: np.asarray(getattr(whole, name)[rows]) for name in ("observations", "actions", "rewards")
    }
    return dataset_from_arrays(**columns, next_observations=np.asarray(whole.next_observations[rows]))


def main(argv: list[str] | None = None) -> dict[str, Any]:
    words = sys.argv[1:] if argv is None else argv
    args = parse(MappedArgs, words, "python -m benchmarks.mapped")
    if args.inside:
        found = inside(args)
        print(json.dumps(found))
        return found
    args.directory.mkdir(parents=True, exist_ok=True)
    try:
        begin = time.perf_counter()
        size = make(args)
        written = time.perf_counter() - begin
        root = str(Path(__file__).parents[1])
        with launch(
            "-m", "benchmarks.mapped", *words, "--inside", environ={"PYTHONPATH": root}, stdout=-1, text=True
        ) as process:
            out, _ = process.communicate()
        if process.returncode:
            raise SystemExit(process.returncode)
        found = {"gigabytes": size / 1e9, "write_seconds": written, **json.loads(out.splitlines()[-1])}
    finally:
        if not args.keep:
            shutil.rmtree(args.directory)
    print_json(found) if args.json else print("\n".join(f"{name:24} {value}" for name, value in found.items()))
    return found


if __name__ == "__main__":
    main()
