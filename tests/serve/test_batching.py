"""When requests are computed together, with a `compute` that the test controls."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fidec.serve import batching
from fidec.serve.batching import Batcher
from fidec.serve.serialization import Refused


class Compute:
    """Notes its batches; with `held` it waits for the test."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, asks):
        self.batches.append(list(asks))
        self.gate.wait(10)
        return [ValueError("no") if ask == "bad" else ask for ask in asks]


@pytest.fixture
def compute():
    return Compute()


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_one_client_does_not_wait(compute, monkeypatch):
    monkeypatch.setattr(batching, "WINDOW", 30.0)

    async def test():
        batcher = Batcher(compute, 8, 8)
        for ask in range(3):
            assert await batcher(ask, "a") == ask
        await batcher.stop()

    asyncio.run(test())
    assert compute.batches == [[0], [1], [2]]


def test_clients_that_ask_lately_are_waited_for_and_others_for_the_window_only(compute, monkeypatch):
    async def test():
        batcher = Batcher(compute, 8, 8)
        await asyncio.gather(batcher("first", "a"), batcher("second", "b"))
        monkeypatch.setattr(batching, "WINDOW", 30.0)
        await asyncio.gather(*(batcher(ask, client) for ask, client in (("a", "a"), ("b", "b"))))
        assert compute.batches[-1] == ["a", "b"]
        monkeypatch.setattr(batching, "WINDOW", 0.001)
        assert await batcher("alone", "a") == "alone"  # b asked lately, and does not ask now
        monkeypatch.setattr(batching, "WINDOW", 30.0)
        await asyncio.sleep(batching.LATELY + 0.02)
        assert await batcher("later", "a") == "later"  # b is no longer expected
        await batcher.stop()

    asyncio.run(test())


def test_requests_wait_while_a_batch_is_computed_up_to_a_limit(compute):
    async def test():
        compute.gate.clear()
        batcher = Batcher(compute, 2, 3)
        answers = [batcher(0, 0)]
        await until(lambda: compute.batches)
        answers += [batcher(ask, ask) for ask in (1, 2, 3)]
        assert len(batcher) == 3
        with pytest.raises(Refused, match="3 requests are waiting") as caught:
            batcher(4, 4)
        assert (caught.value.reason, caught.value.status) == ("overload", 503)
        answers[1].cancel()  # its client has gone
        compute.gate.set()
        assert await asyncio.gather(answers[0], *answers[2:]) == [0, 2, 3]
        await batcher.stop()

    asyncio.run(test())
    assert compute.batches == [[0], [2, 3]]


def test_an_error_reaches_its_own_request(compute):
    async def test():
        batcher = Batcher(compute, 8, 8)
        answers = [batcher(ask, ask) for ask in ("good", "bad")]
        found = await asyncio.gather(*answers, return_exceptions=True)
        assert found[0] == "good"
        assert isinstance(found[1], ValueError)
        await batcher.stop()

    asyncio.run(test())


def test_a_failure_of_the_computation_reaches_all_and_ends_nothing():
    calls = []

    def compute(asks):
        calls.append(asks)
        if len(calls) == 1:
            raise MemoryError("none")
        return asks

    async def test():
        batcher = Batcher(compute, 8, 8)
        with pytest.raises(MemoryError):
            await batcher(1, "a")
        assert await batcher(2, "a") == 2
        await batcher.stop()

    asyncio.run(test())


def test_the_end_answers_what_waits_and_refuses_more(compute):
    async def test():
        compute.gate.clear()
        batcher = Batcher(compute, 1, 8)
        answers = [batcher(ask, ask) for ask in range(4)]
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.02)
        with pytest.raises(Refused, match="stops"):
            batcher(5, 5)
        compute.gate.set()
        begin = time.monotonic()
        assert await asyncio.gather(*answers) == [0, 1, 2, 3]
        await stopping
        assert time.monotonic() - begin < 2

    asyncio.run(test())
