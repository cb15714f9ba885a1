"""The places of a server: how many connections it holds, and how long one may take to send the headers of a request.

The process may open a limited number of files (`ulimit -n`). A new connection for which there is no place takes that
of one that the server waits for. Websockets, and requests that are computed, keep theirs.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fidec.errors import ConfigError

HEADERS = 10.0  # seconds for the headers of a request: from the connection, or from their first byte
MOST = 2048  # connections, whatever the limit of open files
MOST_WEBSOCKETS = 1024
ROOM = 16  # connections that websockets leave to others
RESERVED = 64  # files for everything else
BURST = 16  # connections accepted at once, before their number is checked
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def most_connections() -> int:
    """The number of connections for which this process has files; ConfigError if it has too few."""
    limit, opened = resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(os.listdir("/dev/fd"))
    if limit == resource.RLIM_INFINITY:
        return MOST
    least = opened + RESERVED + 2 * ROOM
    if limit < least:
        raise ConfigError(
            f"this process may open {limit} files (`ulimit -n`), and {opened} are open: a server needs at least "
            f"{least}. Raise the limit, for example with `ulimit -n 1024`"
        )
    return min(MOST, limit - opened - RESERVED)


class Connections:
    """Makes the protocols of connections. `refused()` is called for each that finds no place."""

    def __init__(self, limit: int, refused: Callable[[], object]):
        self.limit, self._refused = limit, refused
        self.open: set[Connection] = set()

    @property
    def most_websockets(self) -> int:
        return min(MOST_WEBSOCKETS, self.limit - ROOM)

    def protocol(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a connection that was just accepted; `make()` gives that of aiohttp."""
        if len(self.open) >= self.limit and not self._make_room():
            self._refused()
            return _Full()
        return Connection(self, make())

    def _make_room(self) -> bool:
        """Close the connection that the server waits for longest; false if there is none.

        It is one that was never answered, if these have half of the places. So neither they nor clients that were
        answered and are silent now can take all of them.
        """
        waiting = [each for each in self.open if each.transport is not None and not each.keeps]
        known, new = ([each for each in waiting if each.answered is answered] for answered in (True, False))
        group = new if len(new) >= self.limit // 2 else known or new
        if group:
            min(group, key=lambda each: each.since).close()
        return bool(group)


class _Full(asyncio.Protocol):
    """Of a connection for which there is no place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(_FULL)
        transport.close()


class Connection(asyncio.Protocol):
    """Passes everything to aiohttp's protocol of a connection, and knows whether the server waits for its client."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol):
        self._connections, self._inner = connections, inner
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.since = self._loop.time()  # when the server began to wait for a request
        self.answered = False  # before
        self.keeps = False  # its place: it is a websocket, or its request is computed
        self._requested = False  # the headers are complete, and the answer is not
        self._deadline: asyncio.TimerHandle | None = None
        connections.open.add(self)

    @contextmanager
    def request(self) -> Iterator[None]:
        """From the end of the headers to the answer."""
        self._requested, self.since = True, self._loop.time()
        self._stop_timer()
        try:
            yield
        finally:
            self._requested, self.keeps, self.since = False, False, self._loop.time()

    def close(self) -> None:
        """Close at once, without an answer."""
        self._connections.open.discard(self)
        if self.transport is not None:
            self.transport.abort()

    def _start_timer(self) -> None:
        self._deadline = self._loop.call_later(HEADERS, self.close)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # --- what the transport calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._start_timer()
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.open.discard(self)
        self._stop_timer()
        self.transport = None
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and not self._requested:
            self._start_timer()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
