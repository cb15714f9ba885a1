"""openpi's protocol: frames, errors that leave the connection open, streams of noise, overload, the end."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from dataclasses import replace

import aiohttp
import numpy as np
import pytest

from fidec.serve.batching import ServedPolicy
from fidec.serve.requests import NoiseStream, Reader
from fidec.serve.serialization import Refused
from fidec.train.acting import PUBLISHED, ActOptions
from helpers import some
from helpers.serving import OBSERVATION, SPEC, make_policy, pack, talk


def test_the_server_speaks_first_and_answers_with_a_chunk(served):
    async def test(client):
        socket = await client.connect()
        assert socket.metadata["algo"] == "fidec"
        assert socket.metadata["observation"]["shape"] == [3]
        actions = {"shape": [1, 2], "low": [-2, 0], "high": [2, 1], "replan": 1, "ensemble": None, "delay": 0}
        assert socket.metadata["actions"] == actions
        first = await socket(prompt="pick", other={"deep": [1]})
        assert first["actions"].shape == (1, 2)
        assert first["actions"].dtype == np.float32
        assert first["server_timing"]["infer_ms"] > 0
        assert "prev_total_ms" not in first["server_timing"]
        second = await socket()
        assert second["server_timing"]["prev_total_ms"] >= first["server_timing"]["infer_ms"]
        assert (first["step"], second["step"]) == (0, 1)
        assert not np.array_equal(first["actions"], second["actions"])
        for field in ("observation", "state"):
            assert (await socket.raw(pack({field: OBSERVATION.tolist()})))["step"] > 1

    talk(served, test)


def test_the_actions_of_a_chunk():
    served = ServedPolicy(make_policy(replace(SPEC, action_dim=6, chunk=3, replan=2)), largest=1)

    async def test(client):
        socket = await client.connect()
        assert socket.metadata["actions"]["shape"] == [3, 2]
        assert (await socket.actions()).shape == (3, 2)

    talk(served, test)


BAD = {
    "missing": (pack({"obs": OBSERVATION}), "field: there is no observation: expected one of `observation`.*'obs'"),
    "empty": (pack({}), "field: there is no observation.*no field"),
    "two": (
        pack({"state": OBSERVATION, "observation": OBSERVATION}),
        "field: there are two.*`observation` and `state`",
    ),
    "shape": (pack({"state": np.zeros(4)}), r"shape: `state` has the shape \(4,\), expected \(3,\)"),
    "batch": (pack({"state": np.zeros((1, 3))}), r"shape: `state` has the shape \(1, 3\)"),
    "nan": (pack({"state": np.array([0, np.nan, 0])}), "not_finite: `state` at index 1 is nan"),
    "overflow": (pack({"state": np.array([0, 0, 1e300])}), r"not_finite: `state` at index 2 is 1e\+300"),
    "bool": (pack({"state": np.zeros(3, bool)}), "dtype: `state` is bool, expected float32"),
    "words": (pack({"state": "0 0 0"}), "dtype: `state` is the text '0 0 0'"),
    "dict": (pack({"observation": {"state": OBSERVATION}}), "dtype: `observation` is an object with 'state'"),
    "noise": (pack({"state": OBSERVATION, "noise": -1}), "field: noise must be a finite number"),
    "large": (pack({"state": OBSERVATION, "noise": 1e300}), "field: noise must be a finite number"),
    "noises": (pack({"state": OBSERVATION, "noise": [1, 2]}), "field: `noise` is a list of 2, expected a number"),
    "strength": (pack({"state": OBSERVATION, "strength": float("inf")}), "field: strength must be"),
    "reset": (pack({"state": OBSERVATION, "reset": 1}), r"field: `reset` is 1 \(int\), expected true or false"),
    "seed": (pack({"state": OBSERVATION, "seed": -1}), "field: `seed` is -1"),
    "seeds": (pack({"state": OBSERVATION, "seed": 1.5}), "field: `seed` is 1.5"),
    "step": (pack({"state": OBSERVATION, "step": 1}), "field: `step` needs `seed`"),
    "text": ("hello", "malformed: the frame is text"),
    "garbage": (b"\xc1\xff", "malformed: the message is not msgpack"),
    "list": (pack([1, 2]), "malformed: the message is a list of 2"),
}


def test_an_error_names_the_field_and_leaves_the_connection_open(served):
    async def test(client):
        socket = await client.connect()
        for name, (content, words) in BAD.items():
            answer = await socket.raw(content)
            assert isinstance(answer, str), name
            assert re.match(words, answer), (name, answer)
        answer = await socket()
        assert answer["step"] == 0  # what was refused took no random numbers
        errors = client.server.metrics.errors
        assert sum(errors.values()) == len(BAD)
        assert errors["internal"] == 0
        assert client.said == []

    talk(served, test)


def test_a_message_that_is_too_large_closes_the_connection_and_nothing_else(served):
    async def test(client):
        socket, other = await client.connect(), await client.connect()
        with suppress(ConnectionError):  # the server does not read the rest
            await socket.socket.send_bytes(bytes(client.server.largest_message + 1))
        answer = await socket.socket.receive()
        assert answer.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert (await other())["step"] == 0
        assert client.server.metrics.errors["too_large"] == 1

    talk(served, test)


def test_a_compressed_frame_closes_its_websocket_and_nothing_else(served):
    async def test(client):
        socket, other = await client.connect(), await client.connect()
        await socket.socket.send_bytes(bytes(2**25), compress=15)  # although compression was not agreed on
        assert (await socket.socket.receive()).type == aiohttp.WSMsgType.CLOSE
        assert socket.socket.close_code == 1002
        assert (await other())["step"] == 0
        assert client.server.metrics.errors["malformed"] == 1

    talk(served, test)


async def episode(socket, seed: int, steps: int = 4) -> np.ndarray:
    seen = np.random.default_rng(seed).normal(size=(steps, 3)).astype(np.float32)
    first = await socket.actions(seen[0], seed=seed, reset=True)
    return np.stack([first, *[await socket.actions(each, seed=seed) for each in seen[1:]]])


def test_an_episode_is_the_same_alone_and_in_a_crowd(served):
    """To rounding with batches, and bit for bit if every request is computed alone."""

    async def alone(client):
        socket = await client.connect()
        return [await episode(socket, seed) for seed in range(8)]

    async def crowd(client):
        sockets = [await client.connect() for _ in range(8)]
        found = await asyncio.gather(*(episode(socket, seed) for seed, socket in enumerate(sockets)))
        text = client.server.metrics_text()
        ones, count = (re.search(rf"fidec_batch_size_{name} (.+)", text) for name in ('bucket{le="1.0"}', "count"))
        assert some(ones)[1] != some(count)[1] or client.server.served.sizes == (1,)
        return found

    np.testing.assert_allclose(talk(served, alone), talk(served, crowd), atol=1e-5)
    single = ServedPolicy(served.policy, largest=1)
    assert np.array_equal(talk(single, alone), talk(single, crowd))


def test_a_stream_begins_at_connect_at_a_reset_and_at_another_seed(served):
    async def test(client):
        socket = await client.connect()
        first = [await socket.actions() for _ in range(3)]
        again = [await socket.actions(reset=True), await socket.actions(), await socket.actions(reset=False)]
        fresh = await client.connect()
        new = [await fresh.actions() for _ in range(3)]
        assert np.array_equal(first, again)
        assert np.array_equal(first, new)
        other = [await socket.actions(seed=7), await socket.actions(seed=7)]  # the same seed goes on
        assert not np.array_equal(other[0], other[1])
        assert not np.array_equal(other[0], first[0])
        place = await socket.actions(seed=0, step=1)  # leaves the stream where it is
        assert np.array_equal(place, first[1])
        assert (await socket())["step"] == 2

    talk(served, test)


def test_factors_of_a_request_and_of_the_server(served):
    async def test(client):
        one, two = await client.connect(), await client.connect()
        return [await one.actions(noise=0), await two.actions(seed=3, noise=np.float32(0)), await one.actions()]

    still, other, noisy = talk(served, test)
    assert np.array_equal(still, other)
    assert not np.array_equal(still, noisy)
    still_by_default = ServedPolicy(served.policy, ActOptions(noise=0.0), largest=1)
    np.testing.assert_allclose(talk(still_by_default, test)[2], still, atol=1e-5)


def test_overload_is_an_error_answer_and_the_connection_stays_open(served, monkeypatch):
    gate, entered = threading.Event(), threading.Event()
    compute = ServedPolicy.__call__

    def slow(self, asks):
        entered.set()
        gate.wait(20)
        return compute(self, asks)

    async def test(client):
        monkeypatch.setattr(ServedPolicy, "__call__", slow)
        sockets = [await client.connect() for _ in range(4)]
        asked = [asyncio.create_task(sockets[0]())]
        await asyncio.to_thread(entered.wait, 10)
        asked += [asyncio.create_task(socket()) for socket in sockets[1:3]]
        while len(client.server.batcher) < 2:
            await asyncio.sleep(0.005)
        answer = await sockets[3]()
        assert answer.startswith("overload: the server is busy: 2 requests are waiting")
        async with client.session.post("/act", json={"observation": [0, 0, 0]}) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await client.get("/health"))[0] == 200
        gate.set()
        assert [each["step"] for each in await asyncio.gather(*asked)] == [0, 0, 0]
        assert (await sockets[3]())["step"] == 0

    talk(served, test, queue=2)


def test_the_end_answers_what_waits_and_closes_with_1001(served, monkeypatch):
    gate, entered = threading.Event(), threading.Event()
    compute = ServedPolicy.__call__

    def slow(self, asks):
        entered.set()
        gate.wait(20)
        return compute(self, asks)

    async def test(client):
        monkeypatch.setattr(ServedPolicy, "__call__", slow)
        busy, idle = await client.connect(), await client.connect()
        asked = asyncio.create_task(busy())
        await asyncio.to_thread(entered.wait, 10)
        posted = asyncio.create_task(client.post({"observation": [0, 0, 0]}))
        while not len(client.server.batcher):
            await asyncio.sleep(0.005)
        ending = asyncio.create_task(client.app.stop())
        await asyncio.sleep(0.02)
        assert (await idle()).startswith("stopping: ")
        assert (await client.post({"observation": [0, 0, 0]}))[1]["reason"] == "stopping"
        assert (await client.get("/health"))[0] == 503
        gate.set()
        assert (await asked)["actions"].shape == (1, 2)
        assert (await posted)[0] == 200
        for socket in (busy, idle):
            await socket.socket.receive()
            assert socket.socket.close_code == 1001
        await ending

    talk(served, test)


def test_an_action_that_is_not_finite_is_not_sent(served, monkeypatch):
    compute = ServedPolicy.__call__
    monkeypatch.setattr(ServedPolicy, "__call__", lambda self, requests: compute(self, requests) * np.nan)

    async def test(client):
        socket = await client.connect()
        assert (await socket()).startswith("policy: the policy gave an action that is not finite")
        assert (await client.post({"observation": [0, 0, 0]}))[0] == 500

    talk(served, test)


def test_a_failure_of_the_policy_is_reported_and_ends_nothing(served, monkeypatch):
    async def test(client):
        socket = await client.connect()
        with monkeypatch.context() as patch:
            patch.setattr(ServedPolicy, "__call__", lambda self, requests: 1 / 0)
            assert await socket() == "internal: the policy failed: ZeroDivisionError"
        assert "ZeroDivisionError" in client.said[0]
        assert (await socket())["actions"].shape == (1, 2)

    talk(served, test)


IMAGES = replace(SPEC, observation_shape=(64, 64, 6), observation_dtype="uint8", frame_stack=2)


def test_images_come_stacked_or_frame_by_frame():
    served = ServedPolicy(make_policy(IMAGES, algo="bc", statistics=False), largest=1)
    frames = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    stacked = [np.concatenate([frames[max(0, i - 1)], frames[i]], axis=-1) for i in range(3)]

    async def test(client):
        one, two = await client.connect(), await client.connect()
        assert one.metadata["observation"]["fields"] == ["observation", "observation/image", "image"]
        whole = [(await one.raw(pack({"observation/image": each}))) for each in stacked]
        single = [(await two.raw(pack({"image": each}))) for each in frames]
        assert [each["actions"].tolist() for each in single] == [each["actions"].tolist() for each in whole]
        repeated = await two.raw(pack({"image": frames[2], "reset": True}))
        first = await one.raw(pack({"image": np.concatenate([frames[2]] * 2, -1), "seed": 0, "step": 0}))
        assert np.array_equal(repeated["actions"], first["actions"])
        answer = await two.raw(pack({"image": frames[0].astype(np.float32)}))
        assert answer == "dtype: `image` is float32, expected uint8: pixels from 0 to 255"
        status, answer = await client.post({"image": stacked[0].tolist(), "seed": 0, "step": 0})
        np.testing.assert_allclose(answer["actions"], whole[0]["actions"], atol=1e-6)
        assert status == 200
        bad = stacked[0].astype(int)
        bad[0, 0, 0] = 256
        assert "0 to 256" in (await client.post({"image": bad.tolist(), "seed": 0, "step": 0}))[1]["error"]
        for place in ({"seed": 0, "step": 0}, {}):
            answer = (await client.post({"image": frames[0].tolist(), **place}))[1]["error"]
            assert "a single frame, which has no stream here: send all 2 frames, or name a `client`" in answer
        assert (await client.post({"image": frames[0].tolist(), "client": "a"}))[1]["step"] == 0

    talk(served, test)


def test_a_policy_that_plays_several_steps_takes_whole_stacks_only():
    """Its client asks every other step, so single frames would make stacks with gaps."""
    spec = replace(IMAGES, action_dim=4, chunk=2, replan=2)
    reader = Reader(spec, PUBLISHED, lambda act: None)
    with pytest.raises(Refused, match=r"^`image` has the shape \(64, 64, 3\), expected \(64, 64, 6\)$"):
        reader({"image": np.zeros((64, 64, 3), np.uint8)}, NoiseStream(spec))
