"""The network: HTTP and websockets on one port, by aiohttp, until a signal comes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from typing import Any

from fidec.errors import ConfigError
from fidec.extras import require
from fidec.serve import serialization
from fidec.serve.access import BURST, Connection, Connections, Gate, most_connections
from fidec.serve.requests import NoiseStream
from fidec.serve.serialization import Refused
from fidec.serve.server import Server

PURPOSE = "fidec serve"
PATIENCE = 20.0  # seconds for a client to send its request, or to take its answer
SIGNALS = (signal.SIGTERM, signal.SIGINT)
BACKLOG = 512  # connections that wait to be accepted
_OPEN = ("/health", "/healthz")  # for load balancers and for openpi, without a token
_HEADERS = {
    "Server": "fidec",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
# The page at /: shapes, latency, the monitor, and a form that asks the policy. It is one static file. All that it
# shows comes from /metadata and /act and is set as text, never as HTML. Its script and its style are allowed by their
# hashes, and it may reach nothing but this server.
WEB_PAGE = files("fidec.serve").joinpath("page.html").read_text(encoding="utf-8")


def _hash(tag: str) -> str:
    match = re.search(rf"<{tag}>(.*?)</{tag}>", WEB_PAGE, re.DOTALL)
    assert match is not None
    return "'sha256-" + base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode() + "'"


_PAGE_POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class App:
    """The handlers of one server."""

    def __init__(self, server: Server, gate: Gate):
        self._web = require("aiohttp.web", "serve", PURPOSE)
        self._types = require("aiohttp", "serve", PURPOSE).WSMsgType
        require("msgpack", "serve", PURPOSE)
        self.server, self._gate = server, gate
        self._active, self._stopping = 0, False
        self.connections = Connections(most_connections(), lambda: self._count(Refused("overload", "")))

    def application(self) -> Any:
        web = self._web

        @web.middleware
        async def guard(request: Any, handler: Any) -> Any:
            connection = _connection(request)
            with connection.request():
                response = await self._guard(request, handler)
                connection.answered |= response.status < 400
                return response

        app = web.Application(
            middlewares=[guard],
            client_max_size=self.server.largest_message,
            handler_args={"auto_decompress": False},  # aiohttp would inflate each body, also one that nobody reads
        )
        app.router.add_get("/", self._root)
        app.router.add_post("/act", self._act)
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/metrics", self._metrics)
        return app

    # --- HTTP -------------------------------------------------------------------------------------------------

    async def _guard(self, request: Any, handler: Any) -> Any:
        """Check who asks, and turn errors into answers."""
        web = self._web
        try:
            _check_encoding(request.headers)
            if request.path not in _OPEN:
                self._gate.check_site(request.headers)
                if request.path != "/" or self._is_upgrade(request):
                    self._gate.check_token(request.headers)
            response = await handler(request)
        except Refused as error:
            response = self._refusal(error)
        except web.HTTPRequestEntityTooLarge:
            limit = self.server.largest_message
            response = self._refusal(Refused("too_large", f"the message is larger than {limit} bytes"))
            response.force_close()  # what it still sends is not read
        except web.HTTPException as error:
            response = self._json({"error": f"{request.method} {request.path[:80]}: {error.reason}"}, error.status)
            response.headers.update({k: v for k, v in error.headers.items() if k == "Allow"})
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            self.server.say(traceback.format_exc().rstrip())
            response = self._refusal(Refused("internal", f"the server failed: {type(error).__name__}"))
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    def _is_upgrade(self, request: Any) -> bool:
        return request.headers.get("Upgrade", "").lower() == "websocket"

    def _json(self, value: Any, status: int = 200) -> Any:
        return self._web.Response(
            body=serialization.write_json(value), status=status, content_type="application/json"
        )

    def _count(self, error: Refused) -> Refused:
        self.server.metrics.errors[error.reason] += 1
        return error

    def _refusal(self, error: Refused) -> Any:
        response = self._json({"error": str(error), "reason": self._count(error).reason}, error.status)
        if error.status == 503:
            response.headers["Retry-After"] = "1"
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def _root(self, request: Any) -> Any:
        if self._is_upgrade(request):
            return await self._socket(request)
        response = self._web.Response(text=WEB_PAGE, content_type="text/html")
        response.headers["Content-Security-Policy"] = _PAGE_POLICY
        return response

    async def _act(self, request: Any) -> Any:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(PATIENCE):
                body = await request.read()
        except TimeoutError:
            raise Refused("malformed", f"the message did not arrive within {PATIENCE:g} s") from None
        message = serialization.read_json(body)
        _connection(request).keeps = True
        client = message.get("client") or request.transport
        self._active += 1
        try:
            answer = await self.server.answer(message, self.server.http_stream(message), _name(client))
        finally:
            self._active -= 1
        self.server.metrics.answered("http", time.perf_counter() - begin)
        return self._json(answer)

    async def _health(self, request: Any) -> Any:
        text, status = ("stopping", 503) if self._stopping else ("ok", 200)
        if request.path == "/healthz":  # which openpi's clients ask
            return self._web.Response(text="OK\n" if status == 200 else "stopping\n", status=status)
        return self._json({"status": text}, status)

    async def _metadata(self, request: Any) -> Any:
        return self._json(self.server.describe())

    async def _metrics(self, request: Any) -> Any:
        text = self.server.metrics_text().encode()
        return self._web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    # --- openpi's websockets ----------------------------------------------------------------------------------

    async def _socket(self, request: Any) -> Any:
        if self._stopping:
            raise Refused("stopping", "the server stops")
        if len(self.server.clients) >= self.connections.most_websockets:
            raise Refused("overload", f"{len(self.server.clients)} websockets are open. Try again later")
        limit = self.server.largest_message
        socket = self._web.WebSocketResponse(compress=False, max_msg_size=limit, timeout=1.0)
        _connection(request).keeps = True
        await socket.prepare(request)
        self.server.clients.add(socket)
        try:
            await self._send(socket, serialization.write_msgpack(self.server.facts))
            await self._converse(socket, NoiseStream(self.server.spec))
        except (ConnectionError, TimeoutError):  # the client has gone, or does not take its answers
            pass
        finally:
            self.server.clients.discard(socket)
        return socket

    async def _converse(self, socket: Any, stream: NoiseStream) -> None:
        """Answer one message after the other. An error is a text, which openpi's client raises; then it goes on."""
        types, previous = self._types, None
        while not socket.closed:
            message = await socket.receive()
            begin = time.perf_counter()
            if message.type not in (types.BINARY, types.TEXT):
                if message.type == types.ERROR:
                    large = getattr(message.data, "code", None) == 1009
                    self._count(Refused("too_large" if large else "malformed", ""))
                return
            self._active += 1
            try:
                if message.type == types.TEXT:
                    raise Refused(
                        "malformed", "the frame is text: send binary frames of msgpack, or JSON to POST /act"
                    )
                answer = await self.server.answer(serialization.read_msgpack(message.data), stream, socket)
                if previous is not None:
                    answer["server_timing"]["prev_total_ms"] = previous
                await self._send(socket, serialization.write_msgpack(answer))
                previous = 1e3 * (time.perf_counter() - begin)
                self.server.metrics.answered("websocket", previous / 1e3)
            except Refused as error:
                await self._send(socket, f"{self._count(error).reason}: {error}")
            finally:
                self._active -= 1

    async def _send(self, socket: Any, content: bytes | str) -> None:
        async with asyncio.timeout(PATIENCE):
            await (socket.send_str(content) if isinstance(content, str) else socket.send_bytes(content))

    # --- the end ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer what waits, then close the websockets with 1001, "going away"."""
        self._stopping = True
        await self.server.batcher.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(3.0):  # for clients that do not take their answers
                while self._active:
                    await asyncio.sleep(0.005)
        closing = [socket.close(code=1001, message=b"the server stops") for socket in list(self.server.clients)]
        await asyncio.gather(*closing, return_exceptions=True)


def _check_encoding(headers: Any) -> None:
    """Refuse compressed bodies: a small one may hold gigabytes."""
    encodings = ",".join(headers.getall("Content-Encoding", ())).split(",")
    for name in map(str.strip, encodings):
        if name.lower() not in ("", "identity"):
            raise Refused("encoding", f"the body has the Content-Encoding {name[:40]!r}: send it without one")


def _connection(request: Any) -> Connection:
    """The connection of a request; ConnectionError if its client has gone."""
    if request.transport is None:
        raise ConnectionResetError("the client has gone")
    return request.transport.get_protocol()


def _name(client: Any) -> Any:
    """What tells clients apart, for the size of batches only."""
    return client if isinstance(client, str) else id(client)


# --- from the port to the signal ------------------------------------------------------------------------------


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
