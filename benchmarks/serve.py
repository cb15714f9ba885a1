"""What a policy server adds to a call of the policy: `python -m benchmarks.serve [--clients 1 8 64] [--json]`.

The server is `fidec serve` in a process of its own. So are its clients: each sends an observation over a websocket,
waits for the actions and sends the next. Every round measures `policy(observation)` in this process while nothing
asks the server, then each number of clients. Ratios are taken within a round.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import requests

from benchmarks.latency import BenchmarkArgs as Sizes
from benchmarks.latency import policy_of, print_markdown
from fidec import compilation
from fidec.cli.parsing import parse, print_json
from fidec.launch import launch
from fidec.serve.serialization import write_msgpack


@dataclass(frozen=True)
class BenchmarkArgs:
    """Measure latency and requests per second of `fidec serve` on this machine."""

    algo: str = "fidec"
    """Method, with its recommended preset."""
    size: str = "3x128"
    """Hidden layers and their width."""
    observation_dim: int = 28
    """Dimensions of an observation."""
    action_dim: int = 5
    """Dimensions of an action."""
    clients: tuple[int, ...] = (1, 8, 64)
    """Numbers of clients that ask at the same time."""
    rounds: int = 5
    """Rounds; figures are medians over them."""
    seconds: float = 4.0
    """Duration of each measurement."""
    json: bool = False
    """Print as JSON."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(BenchmarkArgs, sys.argv[1:] if argv is None else argv, "python -m benchmarks.serve")
    compilation.enable()
    sizes = Sizes(observation_dim=args.observation_dim, action_dim=args.action_dim)
    policy = policy_of(sizes, args.algo, args.size)
    policy.warm_up()
    observation = np.random.default_rng(0).standard_normal(args.observation_dim).astype(np.float32)
    rounds: dict[str, list[dict[str, float]]] = {str(count): [] for count in args.clients}
    calls = []
    with tempfile.TemporaryDirectory() as directory:
        policy.save(Path(directory) / "policy")
        with serving(Path(directory) / "policy") as url:
            for count in args.clients:
                ask(url, count, args.observation_dim, 0.5)  # warm up
            for _ in range(args.rounds):
                calls.append(bare(policy, observation, args.seconds / 4))
                for count in args.clients:
                    found = ask(url, count, args.observation_dim, args.seconds)
                    rounds[str(count)].append(found | {"ratio": found["p50_ms"] / calls[-1]["p50_ms"]})
    rows = [{"clients": int(count), **medians(found)} for count, found in rounds.items()]
    result = {"algo": args.algo, "size": args.size, "policy": medians(calls), "served": rows}
    print_json(result) if args.json else _print(args, result)
    return result


def bare(policy: Any, observation: np.ndarray, seconds: float) -> dict[str, float]:
    """The policy's own call."""
    times, end = [], time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        policy(observation)
        times.append(time.perf_counter() - begin)
    return summary(times, seconds)


def summary(times: list[float], seconds: float) -> dict[str, float]:
    p50, p99 = np.quantile(np.array(times) * 1e3, (0.5, 0.99)).tolist()
    return {"p50_ms": p50, "p99_ms": p99, "per_second": len(times) / seconds}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([each[name] for each in rounds])) for name in rounds[0]}


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """A server in a process of its own; its address."""
    words = ("-m", "fidec", "serve", str(directory), "--port", "0")
    with launch(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(line.split()[-1] for line in process.stdout if line.startswith("serving at"))
        finally:
            process.terminate()


def ask(url: str, clients: int, dimensions: int, seconds: float) -> dict[str, float]:
    """Clients in a process of their own; their latency, and the mean size of the batches they were computed in."""
    before = batches(url)
    script = "import sys; from benchmarks.serve import clients_main; clients_main(*sys.argv[1:])"
    words = ("-c", script, url, str(clients), str(dimensions), str(seconds))
    environ = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with launch(*words, stdout=subprocess.PIPE, text=True, environ=environ) as process:
        found = json.loads(process.communicate()[0])
    total, count = (after - first for after, first in zip(batches(url), before, strict=True))
    return found | {"batch": total / count}


def batches(url: str) -> tuple[float, float]:
    """Requests and batches so far."""
    text = requests.get(f"{url}/metrics", timeout=10).text
    total, count = (re.search(rf"fidec_batch_size_{name} (\S+)", text) for name in ("sum", "count"))
    assert total is not None
    assert count is not None
    return float(total[1]), float(count[1])


def clients_main(url: str, clients: str, dimensions: str, seconds: str) -> None:
    """The process of the clients."""
    random = np.random.default_rng(0).standard_normal((int(clients), int(dimensions))).astype(np.float32)
    times: list[float] = []

    async def client(session: aiohttp.ClientSession, observation: np.ndarray, start: asyncio.Event) -> None:
        async with session.ws_connect(url, compress=0) as socket:
            await socket.receive_bytes()
            message = write_msgpack({"observation/state": observation})
            await start.wait()
            end = time.perf_counter() + float(seconds)
            while (begin := time.perf_counter()) < end:
                await socket.send_bytes(message)
                await socket.receive_bytes()
                times.append(time.perf_counter() - begin)

    async def run() -> None:
        start = asyncio.Event()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            tasks = [asyncio.create_task(client(session, each, start)) for each in random]
            await asyncio.sleep(0.3)  # until all are connected
            start.set()
            await asyncio.gather(*tasks)

    asyncio.run(run())
    print(json.dumps(summary(times, float(seconds))))


def _print(args: BenchmarkArgs, result: dict[str, Any]) -> None:
    policy = result["policy"]
    print(
        f"{args.algo} {args.size}, observation {args.observation_dim}, action {args.action_dim}; medians of "
        f"{args.rounds} rounds of {args.seconds:g} s; the policy's own call: p50 {policy['p50_ms']:.2f} ms, p99 "
        f"{policy['p99_ms']:.2f} ms, {policy['per_second']:.0f} calls/s\n"
    )
    print_markdown(
        ("clients", "p50", "p99", "requests/s", "mean batch", "p50 / policy's own call"),
        [
            (
                str(row["clients"]),
                f"{row['p50_ms']:.2f} ms",
                f"{row['p99_ms']:.2f} ms",
                f"{row['per_second']:.0f}",
                f"{row['batch']:.1f}",
                f"{row['ratio']:.1f}",
            )
            for row in result["served"]
        ],
    )


if __name__ == "__main__":
    main()
