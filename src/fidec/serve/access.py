"""Who may ask a server: tokens and sites, how many connections it holds, and how long each may take to ask.

A token is needed for every address but this machine's own, and no page of another site gets an answer.

The process may open a limited number of files (`ulimit -n`). A new connection for which there is no place takes that
of one that the server waits for. Websockets, and requests that are computed, keep theirs.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fidec.errors import ConfigError
from fidec.serve.serialization import Refused

VARIABLE = "FIDEC_TOKEN"
SHORTEST = 16  # characters of a token
HEADERS = 10.0  # seconds for the headers of a request: from the connection, or from their first byte
MOST = 2048  # connections, whatever the limit of open files
MOST_WEBSOCKETS = 1024
ROOM = 16  # connections that websockets leave to others
RESERVED = 64  # files for everything else
BURST = 16  # connections accepted at once, before their number is checked
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


# --- tokens and sites


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host == "localhost" or _is_address(host, loopback=True)


def read_token(host: str, file: Path | None) -> str | None:
    """The token from the file or the environment. ConfigError if an address needs one and there is none."""
    if file is not None:
        try:
            token, source = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {file} cannot be read: {error}") from error
    else:
        token, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
    if token or file is not None:
        if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"the token of {source} has to be one word of at least {SHORTEST} ASCII characters, for example "
                "that of `openssl rand -hex 24`"
            )
        return token
    if not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so clients have to show a token: give --token-file "
            f"FILE or set {VARIABLE}. Without one the server binds to 127.0.0.1 only"
        )
    return None


class Gate:
    """Checks the headers of a request; raises `Refused`."""

    def __init__(self, host: str, token: str | None):
        self._host, self._token = host, None if token is None else token.encode()

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Refuse pages of other sites.

        A browser sends a page's `Origin`, which has to be this server. A site may let its own name resolve to this
        machine (DNS rebinding); so without a token the `Host` has to be an address or `localhost`, never such a name.
        """
        host = headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname if _plain(host) else None
        if self._token is None and not (name in ("localhost", self._host) or _is_address(name or "")):
            raise Refused("origin", "the header Host is neither an address nor localhost: use the server's address")
        origin = headers.get("Origin")
        if origin is not None and (not _plain(origin) or urlsplit(origin).netloc.lower() != host.lower()):
            raise Refused("origin", "the header Origin names another site: pages of other sites get no actions")

    def check_token(self, headers: Mapping[str, str]) -> None:
        """`Authorization: Bearer TOKEN`, or openpi's `Authorization: Api-Key TOKEN`."""
        if self._token is None:
            return
        kind, _, given = headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(shown, self._token) or kind.lower() not in ("bearer", "api-key"):
            raise Refused("token", "this server needs a token: send the header Authorization: Bearer TOKEN")


def _plain(text: str) -> bool:
    """Whether `urlsplit` understands it."""
    try:
        return bool(urlsplit(text if "//" in text else f"//{text}").hostname)
    except ValueError:
        return False


def _is_address(name: str, loopback: bool = False) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not loopback


# --- connections


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
        waiting = [place for place in self.open if place.transport is not None and not place.keeps]
        known, new = ([place for place in waiting if place.answered is answered] for answered in (True, False))
        group = new if len(new) >= self.limit // 2 else known or new
        if group:
            min(group, key=lambda place: place.since).close()
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
