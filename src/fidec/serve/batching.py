"""Requests that arrive together are computed together, in one thread; the event loop stays free.

Request i draws from the key at (its seed, its step), as `Policy.reset(seed)` and that many calls would. So its action
does not depend on which requests share its batch. Batches are padded to a few sizes, which are compiled at the start.

While a batch is computed, requests wait for the next one. If the thread is idle, a request waits for the other
clients that asked lately, at most `WINDOW`. With one client nothing waits.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fidec.errors import ConfigError
from fidec.parts import arrays_of
from fidec.serve.requests import Request
from fidec.serve.serialization import Refused
from fidec.train.acting import AS_TRAINED, DIALS, ActOptions, batched_policy, key_of_call, supports
from fidec.train.policy import Policy

SIZES = (1, 2, 4, 8, 16, 32, 64)
WINDOW = 0.001  # seconds; the timers of asyncio's loop make it one to two milliseconds
PAUSE = 0.05  # seconds without a request, after which `after` is called
SEVERAL = 64  # requests, after which it is called too
LATELY = 0.1  # seconds: a client that asked within this time is expected to ask again


class ServedPolicy:
    """`served(requests)` gives the actions, (requests, chunk, dimensions), in the units of the data.

    It acts by `act` where a request does not say otherwise.
    """

    def __init__(self, policy: Policy, act: ActOptions = AS_TRAINED, largest: int = SIZES[-1]):
        if largest not in SIZES:
            raise ConfigError(f"the largest batch is one of {', '.join(map(str, SIZES))}, not {largest}")
        self.policy, self.act = policy, act.resolved(policy.act)
        self.spec = policy.spec.played(self.act.replan, self.act.ensemble)
        self.sizes = tuple(size for size in SIZES if size <= largest)
        self._function = self.act.function(policy.algorithm)
        self.dials = tuple(name for name in DIALS if supports(self._function, name))
        self._run = batched_policy(self._function, key_of_call)
        self.check(self.act)

    def check(self, act: ActOptions) -> None:
        """Raise ConfigError if the policy does not have a dial of these options."""
        act.dials(self._function)

    def warm_up(self, size: int) -> None:
        """Compile for batches of this size."""
        request = Request(self.spec.zeros(), 0, 0, self.act)
        for _ in range(3):  # the call after the first one takes milliseconds too
            self([request] * size)

    def __call__(self, requests: Sequence[Request]) -> np.ndarray:
        count = len(requests)
        size = next(size for size in self.sizes if size >= count)
        observations, places = self.spec.zeros(size), np.zeros((2, size), np.uint32)
        dials = {name: np.ones(size, np.float32) for name in self.dials}
        for row, request in enumerate(requests):
            for rows, observation in zip(arrays_of(observations), arrays_of(request.observation), strict=True):
                rows[row] = observation
            places[:, row] = request.seed, request.step
            for name, column in dials.items():
                column[row] = getattr(request.act, name)
        actions = np.asarray(self._run(self.policy.state, observations, tuple(places), dials))[:count]
        return self.spec.to_user_units(self.spec.steps_of(actions))


class _Waiting(NamedTuple):
    request: Any
    answer: asyncio.Future[Any]


class Batcher:
    """`await batcher(request, client)` gives the result of `compute(requests)` for this one.

    `compute` gives a result for each request, or an exception in its place. It runs in a thread of its own, and so
    does `after(requests, results)`, for several batches together: to call it after each would delay the answers.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        largest: int,
        limit: int,
        after: Callable[[Sequence[Any], Sequence[Any]], object] = lambda requests, results: None,
    ):
        self._compute, self._largest, self._limit, self._after = compute, largest, limit, after
        self._waiting: deque[_Waiting] = deque()
        self._asked: dict[Hashable, float] = {}  # when each client asked last
        self._busy, self._timer, self._stopping = False, None, False
        self._inbox: queue.SimpleQueue[list[_Waiting] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="policy", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def check(self) -> None:
        """Raise if a request would be refused now."""
        if self._stopping:
            raise Refused("stopping", "the server stops: ask another one, or try again later")
        if len(self._waiting) >= self._limit:
            raise Refused("overload", f"the server is busy: {self._limit} requests are waiting. Try again later")

    def __call__(self, request: Any, client: Hashable) -> asyncio.Future[Any]:
        self.check()
        waiting = _Waiting(request, self._loop.create_future())
        self._waiting.append(waiting)
        self._asked[client] = time.monotonic()
        self._arrange()
        return waiting.answer

    def _arrange(self) -> None:
        """Send a batch to the thread now, or later, or leave it to the end of the batch that is computed."""
        if self._busy or not self._waiting:
            return
        if len(self._waiting) >= min(self._largest, self._expected()):
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(WINDOW, self._send)

    def _expected(self) -> int:
        """The number of clients that asked lately. Only theirs is remembered."""
        since = time.monotonic() - LATELY
        if len(self._waiting) == 1 or len(self._asked) > 4 * self._largest:
            self._asked = {client: when for client, when in self._asked.items() if when >= since}
        return len(self._asked)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = []
        while self._waiting and len(batch) < self._largest:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():  # else its client has gone
                batch.append(waiting)
        if batch:
            self._busy = True
            self._inbox.put(batch)

    def _work(self) -> None:
        done: list[tuple[Any, Any]] = []
        while True:
            try:
                batch = self._inbox.get(timeout=PAUSE if done else None)
            except queue.Empty:
                batch = []
            if batch:
                requests = [waiting.request for waiting in batch]
                try:
                    results = self._compute(requests)
                except Exception as error:
                    results = [error] * len(batch)
                self._loop.call_soon_threadsafe(self._finish, batch, results)
                done += zip(requests, results, strict=True)
            if done and (not batch or len(done) >= SEVERAL):
                self._after(*zip(*done, strict=True))
                done = []
            if batch is None:
                return

    def _finish(self, batch: list[_Waiting], results: Sequence[Any]) -> None:
        self._busy = False
        for waiting, result in zip(batch, results, strict=True):
            if waiting.answer.done():
                continue
            if isinstance(result, Exception):
                waiting.answer.set_exception(result)
            else:
                waiting.answer.set_result(result)
        # After the clients that were just answered had a turn to ask again.
        self._loop.call_soon(self._arrange)

    async def stop(self) -> None:
        """Refuse new requests, answer those that wait, and end the thread."""
        self._stopping = True
        while self._waiting or self._busy:
            if not self._busy:
                self._send()
            await asyncio.sleep(0.005)
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
