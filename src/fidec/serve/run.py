"""Serve until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fidec.errors import ConfigError
from fidec.extras import require
from fidec.serve.app import PURPOSE, App
from fidec.serve.connections import BURST

SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 512  # connections that wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address. It refuses connections until the server listens on it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}. Give another --port or --host"
        ) from error
    return bound


@asynccontextmanager
async def listening(app: App, bound: socket.socket, shutdown_timeout: float = 1.0) -> AsyncIterator[None]:
    """Answer at this socket. At the end requests that wait are answered, and new ones refused."""
    web: Any = require("aiohttp.web", "serve", PURPOSE)
    silent = logging.Logger("fidec.serve")  # errors of requests are counted, and the server's own are reported
    silent.addHandler(logging.NullHandler())
    app.server.start()
    runner = web.AppRunner(app.application(), access_log=None, logger=silent, shutdown_timeout=shutdown_timeout)
    await runner.setup()
    make, loop = partial(app.connections.protocol, runner.server), asyncio.get_running_loop()
    try:
        listener = await loop.create_server(make, sock=bound, backlog=BURST)
        try:
            bound.listen(BACKLOG)  # more may wait than are accepted at once
            yield
        finally:
            listener.close()
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await app.stop()
        await runner.cleanup()


async def serve(app: App, bound: socket.socket, ready: Callable[[], object]) -> None:
    """Open the port, call `ready`, and stop at SIGTERM or SIGINT; a second signal ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    async with listening(app, bound):
        for number in SIGNALS:
            loop.add_signal_handler(number, stop.set)
        try:
            ready()
            await stop.wait()
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
