"""`fidec serve` as a command: its errors, its process, signals, hostile clients, openpi's own client."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import socket as sockets
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import requests

from helpers import some
from helpers.runs import check_error
from helpers.serving import Socket, pack

SMALL = ("--batch-size", 8, "--algo.hidden", 8, "--algo.flow-steps", 2, "--steps", 2)
ASK = {"observation": [0.1, 0.2, 0.3]}


@pytest.fixture(scope="module")
def run(tmp_path_factory, npz):
    from fidec.cli import main

    out = tmp_path_factory.mktemp("runs") / "fidec"
    argv = ("train", "--data", f"npz:{npz}", "--algo", "fidec", *SMALL, "--out", out)
    assert main([str(word) for word in argv]) == 0
    return out


def start(processes, run, *options: object, files: int | None = None) -> tuple[subprocess.Popen, str]:
    """A server and its address; it may open this many files."""
    process = processes.start("serve", run, "--port", 0, *options)
    if files is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))  # it reads it some seconds later
    for line in some(process.stdout):
        if line.startswith("serving at "):
            return process, line.removeprefix("serving at ").strip()
    raise AssertionError(some(process.stderr).read())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "0.0.0.0"), ("0.0.0.0", "other machines", "--token-file", "FIDEC_TOKEN")),
        (("--host", "robot.local"), ("robot.local", "--token-file")),
        (("--token-file", "nowhere"), ("nowhere", "cannot be read")),
        (("--token-file", "short"), ("short", "at least 16", "openssl rand")),
        (("--port", 70000), ("--port", "70000")),
        (("--queue", 0), ("--queue", "at least 1")),
        (("--candidates", 0), ("candidates", "at least 1")),
        (("--batch", 3), ("largest batch", "not 3")),
        (("--strength", -1), ("strength", "-1")),
    ],
)
def test_wrong_options_are_refused_in_words(cli, run, options, words, tmp_path, monkeypatch):
    monkeypatch.delenv("FIDEC_TOKEN", raising=False)
    (tmp_path / "short").write_text("secret\n")
    check_error(cli("serve", run, *options), 2, *words)


def test_a_port_in_use_and_a_missing_policy(cli, run, tmp_path):
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_error(cli("serve", run, "--port", port), 2, str(port), "already in use", "--port")
    check_error(cli("serve", tmp_path / "nowhere"), 1, "nowhere", "no such directory")


@pytest.mark.parametrize("package", ["aiohttp", "msgpack", "prometheus_client"])
def test_a_missing_package_names_the_extra(cli, run, package, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    check_error(cli("serve", run), 2, f"fidec serve needs the package {package}: pip install 'fidec[serve]'")


def test_a_server_serves_and_stops_at_sigterm(processes, run):
    process, url = start(processes, run, "--batch", 2)
    assert url.startswith("http://127.0.0.1:")
    assert requests.get(f"{url}/health", timeout=5).json() == {"status": "ok"}
    answer = requests.post(f"{url}/act", json=ASK, timeout=5).json()
    assert np.shape(answer["actions"]) == (1, 2)

    async def talk() -> int | None:
        async with aiohttp.ClientSession() as session:
            socket = await Socket.open(session, url)
            assert (await socket())["actions"].shape == (1, 2)
            process.send_signal(signal.SIGTERM)
            await socket.socket.receive()
            return socket.socket.close_code

    begin = time.monotonic()
    assert asyncio.run(talk()) == 1001
    assert process.wait(timeout=10) == 0
    assert time.monotonic() - begin < 5
    err = some(process.stderr).read()
    assert err.endswith("stopped\n")
    assert "Traceback" not in err


def test_idle_connections_leave_room_for_clients(processes, run):
    """300 connections never finish their headers, and the process may open 200 files."""
    process, url = start(processes, run, "--batch", 1, files=200)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))

    async def talk() -> None:
        async with aiohttp.ClientSession(url) as session:
            socket = await Socket.open(session, "/")
            await socket()
            with ExitStack() as stack:
                for _ in range(300):
                    stack.enter_context(sockets.create_connection(address, timeout=5)).send(b"GET / HTTP/1.1\r\n")
                answer = await asyncio.to_thread(requests.post, f"{url}/act", json=ASK, timeout=5)
                assert answer.status_code == 200
                assert (await socket())["step"] == 1
                assert (await (await Socket.open(session, "/"))())["step"] == 0
                assert len(os.listdir(f"/proc/{process.pid}/fd")) < 200 - 32

    asyncio.run(talk())
    process.terminate()
    assert process.wait(timeout=10) == 0
    assert "OSError" not in some(process.stderr).read()


@pytest.mark.slow
def test_another_address_with_a_token_stops_at_sigint(processes, run, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    process, url = start(processes, run, "--batch", 1, "--host", "0.0.0.0", "--token-file", tmp_path / "token")
    url = url.replace("0.0.0.0", "127.0.0.1")
    assert requests.post(f"{url}/act", json=ASK, timeout=5).status_code == 401
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    assert requests.post(f"{url}/act", json=ASK, headers=headers, timeout=5).status_code == 200
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0


def megabytes(process: subprocess.Popen) -> float:
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def malformed(chance: random.Random) -> bytes:
    """Random bytes, a good message with a flipped or missing part, or a wrong value."""
    good = pack({"observation/state": np.zeros(3, np.float32), "noise": 1.0})
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(300))
    if kind == 1:
        return good[: chance.randrange(len(good))]
    if kind == 2:
        place = chance.randrange(len(good))
        return good[:place] + chance.randbytes(1) + good[place + 1 :]
    values = [None, [], {}, "x", [1e400] * 3, np.zeros((3, 3)), np.full(3, np.nan), chance.randbytes(50), [[[]]] * 9]
    return pack(
        {chance.choice(["state", "observation", "y"]): chance.choice(values), "seed": chance.choice([0, -1, ""])}
    )


async def disconnect(url: str, chance: random.Random) -> None:
    """Go away in the middle: of a handshake, of a frame, of a body, or before the answer."""
    host, port = url.removeprefix("http://").split(":")
    handshake = (
        f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    body = b"POST /act HTTP/1.1\r\nHost: " + f"{host}:{port}".encode() + b"\r\nContent-Length: 500\r\n\r\n{"
    frame = b"\x82\xfe\x01\x00\x00\x00\x00\x00" + bytes(20)  # 256 bytes are announced
    whole = pack({"state": np.zeros(3, np.float32)})
    masked = bytes([0x82, 0x80 | len(whole)]) + bytes(4) + whole
    reader, writer = await asyncio.open_connection(host, int(port))
    kind = chance.randrange(5)
    writer.write([handshake[:40], body, handshake, handshake, handshake][kind])
    await writer.drain()
    if kind >= 2:
        await reader.readuntil(b"\r\n\r\n")
        writer.write([frame, masked, b"\x82"][kind - 2])
        await writer.drain()
    if chance.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(
            sockets.SOL_SOCKET, sockets.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )  # a reset
    writer.transport.abort()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_malformed_messages_and_abrupt_disconnects_leave_it_serving(processes, run):
    """10,000 messages in four rounds of websockets and HTTP, and 200 disconnects; the memory stays as it is."""
    process, url = start(processes, run, "--batch", 8)
    chance = random.Random(0)

    async def a_round(session: aiohttp.ClientSession) -> None:
        socket = await Socket.open(session, url)
        for _ in range(2000):
            answer = await socket.raw(malformed(chance))
            assert isinstance(answer, dict | str), answer
        for _ in range(500):
            async with session.post(f"{url}/act", data=malformed(chance)) as response:
                assert response.status < 500, await response.text()
        for _ in range(50):
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await disconnect(url, chance)
        assert (await socket(reset=True, seed=0))["step"] == 0
        await socket.socket.close()

    async def attack() -> list[float]:
        memory = []
        async with aiohttp.ClientSession() as session:
            for _ in range(4):
                await a_round(session)
                memory.append(megabytes(process))
            await asyncio.sleep(0.5)
            async with session.get(f"{url}/metadata") as response:
                live = (await response.json())["live"]
        assert live["clients"] == live["queue"] == 0
        assert sum(live["errors"].values()) > 8000  # a flipped bit may leave a good message
        assert "internal" not in live["errors"]
        return memory

    memory = asyncio.run(attack())
    print(f"resident MB after each round: {memory}")
    assert memory[-1] < memory[0] + 10, memory  # the first round fills caches
    assert requests.post(f"{url}/act", json=ASK, timeout=5).status_code == 200
    process.terminate()
    assert process.wait(timeout=10) == 0
    assert "Traceback" not in some(process.stderr).read()


OPENPI = """
import sys
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

client = WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]), api_key="0123456789abcdef")
assert client.get_server_metadata()["actions"]["shape"] == [3, 2]
observation = {"observation/state": np.array([0.1, 0.2, 0.3]), "prompt": "pick up the cube"}
first = [client.infer(observation) for _ in range(3)]
assert all(each["actions"].shape == (3, 2) and each["actions"].dtype == np.float32 for each in first)
assert first[1]["server_timing"]["prev_total_ms"] >= first[0]["server_timing"]["infer_ms"] > 0
try:
    client.infer({"observation/state": np.zeros(4, np.float32)})
    raise SystemExit("no error")
except RuntimeError as error:
    assert "`observation/state` has the shape (4,), expected (3,)" in str(error), error
again = [client.infer({**observation, "reset": step == 0}) for step in range(3)]  # the connection is still open
assert all(np.array_equal(a["actions"], b["actions"]) for a, b in zip(first, again))
try:
    WebsocketClientPolicy("127.0.0.1", int(sys.argv[1]), api_key="wrong")
    raise SystemExit("no error")
except Exception as error:
    assert "401" in str(error), error
print("ok")
"""


@pytest.mark.slow
def test_openpis_own_client(processes, npz, tmp_path):
    """FIDEC_OPENPI_PYTHON names the Python of a virtual environment with openpi-client and typing_extensions."""
    python = os.environ.get("FIDEC_OPENPI_PYTHON")
    if python is None:
        pytest.skip("FIDEC_OPENPI_PYTHON does not name a Python with openpi-client, which needs numpy < 2")
    (tmp_path / "token").write_text("0123456789abcdef")
    trained = processes.run("train", "--data", f"npz:{npz}", *SMALL, "--chunk", 3, "--out", "chunks")
    assert trained.returncode == 0, trained.stderr
    _, url = start(processes, "chunks", "--batch", 1, "--token-file", tmp_path / "token")
    command = [python, "-c", OPENPI, url.rpartition(":")[2]]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
