"""JSON over HTTP: actions, errors, tokens, other sites, metrics, the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import re

import aiohttp
import numpy as np
import pytest
from aiohttp.compression_utils import ZLibDecompressor

from fidec.serve.access import Gate
from fidec.serve.app import WEB_PAGE
from fidec.serve.requests import NoiseStreams
from helpers.serving import talk

TOKEN = "0123456789abcdef"
ASK = {"observation": [0.1, -0.2, 0.3]}


def test_actions_by_client_by_place_and_without_either(served):
    async def test(client):
        async def act(**fields):
            status, answer = await client.post(ASK | fields)
            assert status == 200, answer
            return answer

        first = await act(client="a")
        assert np.shape(first["actions"]) == (1, 2)
        assert (first["seed"], first["step"], (await act(client="a"))["step"]) == (0, 0, 1)
        assert (await act(client="b"))["actions"] == first["actions"]
        assert (await act(client="a", reset=True))["actions"] == first["actions"]
        assert (await act(seed=0, step=0))["actions"] == first["actions"]
        assert (await act(client="a", seed=4))["step"] == 0
        nameless = [await act() for _ in range(2)]  # one stream for all of them
        assert [each["step"] for each in nameless] == [0, 1]
        assert (await act(seed=0, step=0, noise=0))["actions"] == (await act(seed=1, step=5, noise=0))["actions"]
        assert client.server.metrics.requests["http"] == 10

    talk(served, test)


def test_streams_of_clients_are_bounded(served):
    async def test(client):
        client.server.streams = NoiseStreams(client.server.spec, limit=2)
        for name in ("a", "b", "a", "c"):
            await client.post(ASK | {"client": name})
        assert len(client.server.streams) == 2
        found = {name: (await client.post(ASK | {"client": name}))[1]["step"] for name in ("a", "b")}
        assert found == {"a": 2, "b": 0}  # b was forgotten

    talk(served, test)


BAD = [
    (b"", 400, "malformed", "not JSON"),
    (b'{"observation": [1, 2', 400, "malformed", "not JSON"),
    (b"[]", 400, "malformed", "a list of 0 in JSON, expected an object"),
    (b"\xff", 400, "malformed", "not JSON"),
    (b"[" * 100_000, 400, "malformed", "not JSON"),
    (b'{"observation": [0, NaN, 0]}', 400, "not_finite", "`observation` at index 1 is nan"),
    (b'{"observation": [0, 1e999, 0]}', 400, "not_finite", "`observation` at index 1 is inf"),
    ({"observation": [[0, 0, 0]]}, 400, "shape", "(1, 3), expected (3,)"),
    ({"observation": [0, [0], 0]}, 400, "field", "`observation` is no array of numbers"),
    ({"observation": ["a", 0, 0]}, 400, "dtype", "`observation`"),
    ({"observation": None}, 400, "dtype", "None"),
    ({}, 400, "field", "there is no observation"),
    (ASK | {"client": 3}, 400, "field", "`client`"),
    (ASK | {"client": "x" * 129}, 400, "field", "`client`"),
    (ASK | {"seed": 3}, 400, "field", "`seed` and `reset` need a `client` name"),
    (ASK | {"reset": True}, 400, "field", "`seed` and `reset` need a `client` name"),
    (ASK | {"seed": 1, "step": 2**32}, 400, "field", "`step` is 4294967296"),
    (ASK | {"seed": True, "step": 0}, 400, "field", "`seed` is True"),
    (ASK | {"noise": None}, 400, "dtype", "`noise`"),
]


def test_bad_requests_get_a_reason(served):
    async def test(client):
        for message, status, reason, words in BAD:
            found, answer = await client.post(message)
            assert (found, answer["reason"]) == (status, reason), (message, answer)
            assert words in answer["error"], answer
        big = b'{"observation": "' + b"x" * client.server.largest_message + b'"}'
        found, answer = await client.post(big)
        assert (found, answer["reason"]) == (413, "too_large")
        assert (await client.get("/nothing"))[0] == 404
        assert (await client.get("/act"))[0] == 405
        assert (await client.post(ASK))[0] == 200
        assert sum(client.server.metrics.errors.values()) == len(BAD) + 1
        assert client.said == []

    talk(served, test)


@pytest.mark.parametrize("shown", [None, TOKEN, "wrong"])
def test_compressed_bodies_are_refused_and_never_inflated(served, shown, monkeypatch):
    inflated = []

    def inflate(*words, **options):
        inflated.append(words)
        return ZLibDecompressor(*words, **options)

    monkeypatch.setattr("aiohttp.http_parser.ZLibDecompressor", inflate)
    bomb = gzip.compress(bytes(2**20)) * 900  # of 1 MB, that inflates to 1 GB
    assert 5e5 < len(bomb) < 2e6
    headers = {} if shown is None else {"Authorization": f"Bearer {shown}"}
    refused = [("gzip", bomb)] * 4
    refused += [(name, b"garbage") for name in ("gzip", "deflate", "br", "zstd", "GZip", "other", "identity, gzip")]

    async def test(client):
        sent = [
            client.post(body, path, headers=headers | {"Content-Encoding": name})
            for path in ("/", "/act", "/health", "/nothing")
            for name, body in refused
        ]
        *answers, own = await asyncio.gather(*sent, client.post(ASK, headers={"Authorization": f"Bearer {TOKEN}"}))
        for (status, answer), (name, _) in zip(answers, refused * 4, strict=True):
            assert (status, answer["reason"]) == (415, "encoding")
            assert repr(name.rpartition(" ")[2]) in answer["error"]
        assert own[0] == 200
        for name in ("identity", "Identity", ""):
            how = {"Authorization": f"Bearer {TOKEN}", "Content-Encoding": name}
            assert (await client.post(ASK, headers=how))[0] == 200
        assert client.server.metrics.errors["encoding"] == len(answers)
        assert client.said == inflated == []

    talk(served, test, token=None if shown is None else TOKEN)


def test_a_token_is_needed_for_all_but_the_health(served):
    async def test(client):
        for headers in (
            {},
            {"Authorization": "Bearer no"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Authorization": TOKEN},
        ):
            status, answer = await client.post(ASK, headers=headers)
            assert (status, answer["reason"]) == (401, "token")
            for path in ("/metadata", "/metrics", "/nothing"):
                assert (await client.get(path, headers=headers))[0] == 401
            with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                await client.connect(headers=headers)
        for path in ("/health", "/healthz", "/"):
            assert (await client.get(path))[0] == 200
        for kind in ("Bearer", "Api-Key", "bearer"):
            headers = {"Authorization": f"{kind} {TOKEN}"}
            assert (await client.post(ASK, headers=headers))[0] == 200
            socket = await client.connect(headers=headers)
            assert (await socket())["step"] == 0
        assert client.server.metrics.errors["token"] == 20

    talk(served, test, token=TOKEN)


def test_pages_of_other_sites_are_refused(served):
    async def test(client):
        own = str(client.session._base_url).rstrip("/")
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Host": "evil.example"},
            {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},  # DNS rebinding
            {"Host": "["},
        ):
            status, answer = await client.post(ASK, headers=headers)
            assert (status, answer["reason"]) == (403, "origin"), headers
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.connect(headers=headers)
        for headers in ({"Origin": own}, {"Host": "localhost:8000"}, {"Host": "[::1]:80"}, {"Host": "0.0.0.0:80"}):
            assert (await client.post(ASK, headers=headers))[0] == 200
            await client.connect(headers=headers)
        assert (await client.get("/metadata", headers={"Host": "evil.example"}))[0] == 403

    talk(served, test)


def test_a_server_with_a_token_may_have_any_name():
    Gate("0.0.0.0", TOKEN).check_site({"Host": "robot.local:8000", "Origin": "https://robot.local:8000"})
    Gate("robot", None).check_site({"Host": "robot:8000"})


LINE = re.compile(r'[a-z_0-9]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? [-+0-9.eInf]+')


def test_health_metadata_and_metrics(served):
    async def test(client):
        assert json.loads((await client.get("/health"))[1]) == {"status": "ok"}
        assert (await client.get("/healthz"))[1] == "OK\n"
        socket = await client.connect()
        for _ in range(3):
            await socket()
        await socket.raw(b"")
        while True:  # the monitor counts some time after the answers
            facts = json.loads((await client.get("/metadata"))[1])
            if facts["live"]["monitor"]["requests"] == 3:
                break
            await asyncio.sleep(0.01)
        assert facts["dials"] == ["noise", "strength"]
        live = facts["live"]
        assert (live["clients"], live["queue"], live["errors"]) == (1, 0, {"malformed": 1})
        assert live["requests"] == {"websocket": 3, "http": 0}
        assert 0 < live["latency_ms"]["p50"] <= live["latency_ms"]["p99"]
        assert facts["data_statistics"]["rows"] == 200
        text = (await client.get("/metrics"))[1]
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert text.endswith("\n")
        assert all(LINE.fullmatch(line) for line in lines), lines
        values = dict(line.rsplit(" ", 1) for line in lines)
        assert values['fidec_requests_total{way="websocket"}'] == "3.0"
        assert values['fidec_errors_total{reason="malformed"}'] == "1.0"
        assert values['fidec_request_seconds_bucket{le="+Inf"}'] == values["fidec_request_seconds_count"] == "3.0"
        assert values['fidec_batch_size_bucket{le="1.0"}'] == "3.0"
        assert values["fidec_monitor_requests"] == "3.0"
        assert float(values["fidec_monitor_observation_distance_p50"]) > 0
        names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        assert {re.sub(r"\{.*|_(bucket|sum|count)\b.*", "", name) for name in values} == names

    talk(served, test)


def test_the_page_allows_its_own_script_only(served):
    async def test(client):
        async with client.session.get("/") as response:
            policy, text = response.headers["Content-Security-Policy"], await response.text()
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert text == WEB_PAGE
        assert not re.search(r"innerHTML|document\.write|eval|https?://| on\w+=| style=", text)

    talk(served, test)
