"""`fidec serve`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fidec import __version__
from fidec.cli.parsing import parse
from fidec.errors import ConfigError


@dataclass(frozen=True)
class ServeArgs:
    """Serve a policy to robots: openpi's websocket protocol, and JSON over HTTP, on one port.

    POST /act, GET /health, /metadata and /metrics, and a page at /. SIGTERM or Ctrl-C answers what waits and stops.
    docs/serve.md has the protocol, clients and measured times.
    """

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run directory or policy directory; also the URL of one (s3://bucket/runs/x)."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than this machine's own needs a token."""
    port: int = 8000
    """Port; 0 takes a free one. The address is printed when the server is ready."""
    token_file: Path | None = None
    """File with the token that clients have to show; by default the environment variable FIDEC_TOKEN."""
    noise: float = 1.0
    """Factor of the policy's random draws, for requests without one of their own."""
    strength: float = 1.0
    """Factor of the displacement of a refined policy, for requests without one of their own."""
    candidates: int | None = None
    """Actions drawn for each observation, of which the critic picks the best; by default the run's number."""
    batch: int = 64
    """Largest number of requests that are computed together: 1, 2, 4, ... 64. With 1 an action is the same bit for
    bit whatever other clients do."""
    queue: int = 256
    """Requests that may wait. Further ones are refused."""


def main(argv: list[str]) -> int:
    args = parse(ServeArgs, argv, "fidec serve")
    if not 0 <= args.port < 2**16:
        raise ConfigError(f"--port must lie in [0, 65535], not {args.port}")
    for option, count in (("--queue", args.queue), ("--candidates", args.candidates)):
        if count is not None and count < 1:
            raise ConfigError(f"{option} must be at least 1, not {count}")

    from fidec.audit.run import candidates_of
    from fidec.console import Output, Progress
    from fidec.serve.app import App
    from fidec.serve.lanes import Lanes
    from fidec.serve.run import bind, serve
    from fidec.serve.security import Gate, read_token
    from fidec.serve.server import Server
    from fidec.train.loading import load_policy

    token = read_token(args.host, args.token_file)
    policy = load_policy(args.directory)
    candidates = candidates_of(args.directory) if args.candidates is None else args.candidates
    lanes, out = Lanes(policy, candidates, args.batch), Output()
    server = Server(lanes, __version__, out.print, noise=args.noise, strength=args.strength, queue=args.queue)
    app = App(server, Gate(args.host, token))
    bound = bind(args.host, args.port)  # before programs are compiled, so that a port in use fails at once
    with Progress(len(lanes.sizes), unit="batch size") as progress:
        for size in lanes.sizes:
            lanes.warm_up(size)
            progress.advance(compiled=f"{size}")
    if server.monitor is None:
        out.print(f"monitor {server.facts['monitor']}")

    def ready() -> None:
        host, port = bound.getsockname()[:2]
        print(f"{policy}\nserving at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    asyncio.run(serve(app, bound, ready))
    out.print("stopped")
    return 0
