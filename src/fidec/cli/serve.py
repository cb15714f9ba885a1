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
from fidec.train.acting import ActOptions


@dataclass(frozen=True, kw_only=True)
class ServeArgs(ActOptions):
    """Serve a policy to robots: openpi's websocket protocol, and JSON over HTTP, on one port.

    A request may have its own noise and strength. POST /act, GET /health, /metadata and /metrics, and a page at /.
    SIGTERM or Ctrl-C answers what waits and stops.
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
    batch: int = 64
    """Largest number of requests that are computed together: 1, 2, 4, ... 64. With 1 an action is the same bit for
    bit whatever other clients do."""
    queue: int = 256
    """Requests that may wait. Further ones are refused."""


def main(argv: list[str]) -> int:
    args = parse(ServeArgs, argv, "fidec serve")
    if not 0 <= args.port < 2**16:
        raise ConfigError(f"--port must lie in [0, 65535], not {args.port}")
    if args.queue < 1:
        raise ConfigError(f"--queue must be at least 1, not {args.queue}")

    from fidec.console import Output, Progress
    from fidec.serve.access import Gate, read_token
    from fidec.serve.app import App, bind, serve
    from fidec.serve.batching import ServedPolicy
    from fidec.serve.server import Server
    from fidec.train.policy import load_policy

    token = read_token(args.host, args.token_file)
    policy = load_policy(args.directory)
    served, out = ServedPolicy(policy, ActOptions.of(args), args.batch), Output()
    server = Server(served, __version__, out.print, args.queue)
    app = App(server, Gate(args.host, token))
    bound = bind(args.host, args.port)  # before programs are compiled, so that a port in use fails at once
    with Progress(len(served.sizes), unit="batch size") as progress:
        for size in served.sizes:
            served.warm_up(size)
            progress.advance(compiled=f"{size}")
    if server.monitor is None:
        out.print(f"monitor {server.facts['monitor']}")

    def ready() -> None:
        host, port = bound.getsockname()[:2]
        print(f"{policy}\nserving at http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    asyncio.run(serve(app, bound, ready))
    out.print("stopped")
    return 0
