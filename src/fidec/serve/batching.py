"""Requests that arrive together are computed together, in one thread; the event loop stays free.

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

from fidec.serve.errors import Refused

WINDOW = 0.001  # seconds; the timers of asyncio's loop make it one to two milliseconds
PAUSE = 0.05  # seconds without a request, after which `after` is called
SEVERAL = 64  # requests, after which it is called too
LATELY = 0.1  # seconds: a client that asked within this time is expected to ask again


class _Waiting(NamedTuple):
    ask: Any
    answer: asyncio.Future[Any]


class Batcher:
    """`await batcher(ask, client)` gives the result of `compute(asks)` for this one.

    `compute` gives a result for each request, or an exception in its place. It runs in a thread of its own, and so
    does `after(asks, results)`, for several batches at once: what follows a batch at once would delay its answers.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        largest: int,
        limit: int,
        after: Callable[[Sequence[Any], Sequence[Any]], object] = lambda asks, results: None,
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

    def __call__(self, ask: Any, client: Hashable) -> asyncio.Future[Any]:
        self.check()
        waiting = _Waiting(ask, self._loop.create_future())
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
                asks = [waiting.ask for waiting in batch]
                try:
                    results = self._compute(asks)
                except Exception as error:
                    results = [error] * len(batch)
                self._loop.call_soon_threadsafe(self._finish, batch, results)
                done += zip(asks, results, strict=True)
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
