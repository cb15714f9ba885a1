"""Connections: the time for headers and bodies, and their number."""

from __future__ import annotations

import asyncio
import resource

import aiohttp
import pytest

from fidec.errors import ConfigError
from fidec.serve import access, app
from helpers.serving import talk

ASK = {"observation": [0.1, -0.2, 0.3]}
HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


Raw = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(client, content: bytes = b"") -> Raw:
    """A connection without HTTP; it is closed when nothing refers to its writer."""
    base = client.session._base_url
    reader, writer = await asyncio.open_connection(base.host, base.port)
    writer.write(content)
    return reader, writer


async def is_closed(connection: Raw) -> bool:
    """Whether the server closes the connection, without an answer."""
    try:
        return not await connection[0].read(1)
    except ConnectionError:
        return True


async def ask_health(connection: Raw) -> None:
    connection[1].write(HEALTH)
    await connection[0].readuntil(b'{"status": "ok"}')


def test_headers_and_bodies_have_a_deadline_and_clients_that_were_answered_may_be_silent(served, monkeypatch):
    monkeypatch.setattr(access, "HEADERS", 0.5)
    monkeypatch.setattr(app, "PATIENCE", 0.6)

    async def test(client):
        socket, silent = await client.connect(), await connect(client)
        await ask_health(silent)
        never = [await connect(client, content) for content in (b"", HEALTH[:20])]
        body = b"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
        late = await connect(client, body)
        answer = await late[0].readuntil(b"}")
        assert b" 400 " in answer
        assert b"did not arrive within 0.6 s" in answer
        assert await asyncio.gather(*map(is_closed, never)) == [True, True]
        assert (await socket())["step"] == 0
        await ask_health(silent)
        silent[1].write(HEALTH[:20])
        assert await is_closed(silent)

    talk(served, test)


def test_new_connections_take_the_places_of_those_that_wait(served):
    async def test(client):
        places, limit = client.app.connections, 24
        places.limit = limit
        sockets = [await client.connect() for _ in range(limit - access.ROOM)]
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.connect()
        working = await connect(client)
        await ask_health(working)
        idle = [await connect(client, content) for content in [b"", HEALTH[:20]] * limit]
        assert (await client.post(ASK))[0] == 200
        assert len(places.open) <= limit
        await ask_health(working)
        assert [(await socket())["step"] for socket in sockets] == [0] * len(sockets)
        assert await is_closed(idle[0])  # which waited longest
        for _, writer in idle:
            writer.close()
        answered = []
        for _ in range(limit):  # they are silent now
            answered.append(await connect(client))
            await ask_health(answered[-1])
        assert await is_closed(answered[0])
        first, second = await connect(client), await connect(client)
        await ask_health(second)
        await ask_health(first)  # which did not have to make room for the second
        assert (await client.post(ASK))[0] == 200
        assert len(places.open) <= limit
        places.limit = len(sockets)
        for each in [each for each in places.open if not each.keeps]:
            each.close()
        refused = await connect(client)
        assert (await refused[0].read()).startswith(b"HTTP/1.1 503 ")
        assert client.server.metrics.errors["overload"] == 2
        assert [(await socket())["step"] for socket in sockets] == [1] * len(sockets)
        assert client.said == []

    talk(served, test)


def test_the_number_of_connections_follows_from_the_limit_of_open_files(monkeypatch):
    limit = lambda count: monkeypatch.setattr(resource, "getrlimit", lambda kind: (count, count))  # noqa: E731
    limit(resource.RLIM_INFINITY)
    assert access.most_connections() == access.MOST
    limit(1000)
    assert 500 < access.most_connections() < 1000 - access.RESERVED
    limit(70)
    with pytest.raises(ConfigError, match=r"may open 70 files .*are open.*at least \d+.*ulimit -n 1024"):
        access.most_connections()
