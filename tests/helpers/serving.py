"""A policy server inside a test: small policies, clients, and the wire format as openpi's client reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import jax
import msgpack
import numpy as np

import fidec
from fidec import algos, rng
from fidec.data.statistics import data_statistics
from fidec.serve.access import Gate
from fidec.serve.app import App, bind, listening
from fidec.serve.batching import ServedPolicy
from fidec.serve.server import Server
from fidec.train.policy import Policy
from fidec.types import Spec
from helpers import some
from helpers.runs import random_columns

SPEC = Spec((3,), 2, action_low=(-2.0, 0.0), action_high=(2.0, 1.0))
OBSERVATION = np.array([0.1, -0.2, 0.3], np.float32)


def make_policy(spec: Spec = SPEC, algo: str = "fidec", statistics: bool = True, **options: Any) -> Policy:
    """An untrained policy with small networks, and the statistics of random data."""
    method = algos.get(algo)
    small = {"hidden": (8,), "flow_steps": 2} | options
    small = {name: value for name, value in small.items() if name in method.config.__dataclass_fields__}
    chosen = replace(method.configure("recommended"), **small)
    state = jax.jit(method.build(chosen, spec).init)(rng.stream(0, "init"))
    # At its start the residual is zero. Other numbers make `strength` matter.
    state = jax.tree.map(lambda x: x + 0.1 if x.dtype == np.float32 else x, state)
    info: dict[str, Any] = {"step": 7, "dataset": "<b>random</b>"}
    if statistics:
        columns = random_columns()
        columns["actions"] = spec.to_user_units(columns["actions"])
        low, high = spec.bounds
        dataset = fidec.dataset_from_arrays(**columns, action_low=low, action_high=high)
        info["data_statistics"] = data_statistics([dataset])
    return Policy(algo, chosen, spec, state, info)


class Client:
    """A websocket, and HTTP, of one server in the same process."""

    def __init__(self, session: aiohttp.ClientSession, server: Server, app: App, said: list[str]):
        self.session, self.server, self.app, self.said = session, server, app, said

    async def post(self, message: Any, path: str = "/act", **how: Any) -> tuple[int, Any]:
        content = {"data": message} if isinstance(message, bytes) else {"json": message}
        async with self.session.post(path, **content, **how) as response:
            return response.status, await response.json()

    async def get(self, path: str, **how: Any) -> tuple[int, str]:
        async with self.session.get(path, **how) as response:
            return response.status, await response.text()

    async def connect(self, **how: Any) -> Socket:
        return await Socket.open(self.session, "/", **how)


class Socket:
    """A websocket that speaks openpi's protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, metadata: dict[str, Any]):
        self.socket, self.metadata = socket, metadata

    @classmethod
    async def open(cls, session: aiohttp.ClientSession, url: str, **how: Any) -> Socket:
        socket = await session.ws_connect(url, compress=0, max_msg_size=0, **how)
        return cls(socket, unpack(await socket.receive_bytes()))

    async def __call__(self, observation: Any = OBSERVATION, **fields: Any) -> Any:
        """The answer; a text if it is an error."""
        return await self.raw(pack({"observation/state": observation, **fields}))

    async def raw(self, content: bytes | str) -> Any:
        await (self.socket.send_str(content) if isinstance(content, str) else self.socket.send_bytes(content))
        answer = await self.socket.receive()
        return unpack(answer.data) if answer.type == aiohttp.WSMsgType.BINARY else answer.data

    async def actions(self, *observation: Any, **fields: Any) -> np.ndarray:
        answer = await self(*observation, **fields)
        assert isinstance(answer, dict), answer
        return answer["actions"]


def pack(value: Any) -> bytes:
    """As openpi's client does."""

    def array(each: Any) -> Any:
        if isinstance(each, np.ndarray):
            return {b"__ndarray__": True, b"data": each.tobytes(), b"dtype": each.dtype.str, b"shape": each.shape}
        return {b"__npgeneric__": True, b"data": each.item(), b"dtype": each.dtype.str}

    return some(msgpack.packb(value, default=array))


def unpack(content: bytes) -> Any:
    def array(each: Any) -> Any:
        if b"__ndarray__" in each:
            return np.ndarray(buffer=each[b"data"], dtype=np.dtype(each[b"dtype"]), shape=each[b"shape"])
        return each

    return msgpack.unpackb(content, object_hook=array)


@asynccontextmanager
async def serving(served: ServedPolicy, token: str | None = None, **options: Any):
    """A server of this policy at a free port, and a client of it."""
    said: list[str] = []
    server = Server(served, "0", said.append, **options)
    app = App(server, Gate("127.0.0.1", token))
    bound = bind("127.0.0.1", 0)
    async with (
        listening(app, bound, shutdown_timeout=0.2),
        aiohttp.ClientSession(f"http://127.0.0.1:{bound.getsockname()[1]}") as session,
    ):
        yield Client(session, server, app, said)


def talk(served: ServedPolicy, test: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    """Run `test(client)` against a server of its own."""

    async def run() -> Any:
        async with serving(served, **options) as client:
            async with asyncio.timeout(60):
                return await test(client)

    return asyncio.run(run())
