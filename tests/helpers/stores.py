"""Stores for tests: fsspec's memory with injected faults, an S3 server, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

OPERATIONS = ("ls", "cat_file", "put_file", "pipe_file", "rm", "info", "find")


class Faults:
    """Counts the calls of a file system; `fail(name, number)` may return an error to raise before or after a call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._inside = False  # a call of the file system itself, which is not counted
        self.fail: Callable[[str, int], Exception | None] = lambda name, number: None
        self.after: Callable[[str, int], Exception | None] = lambda name, number: None

    def wrap(self, name: str, function: Callable) -> Callable:
        def call(*arguments, **options):
            if self._inside:
                return function(*arguments, **options)
            number = len(self.calls)
            self.calls.append(name)
            if (error := self.fail(name, number)) is not None:
                raise error
            self._inside = True
            try:
                result = function(*arguments, **options)
            finally:
                self._inside = False
            if (error := self.after(name, number)) is not None:
                raise error
            return result

        return call


@contextlib.contextmanager
def memory_store(monkeypatch) -> Iterator[Faults]:
    """An empty `memory://`, whose calls are counted and can fail. Pauses between attempts take no time."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: pip install 'fidec[remote]'")
    from fidec.store import remote

    faults, system = Faults(), fsspec.filesystem("memory", use_listings_cache=False)
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(system, name, faults.wrap(name, getattr(system, name)), raising=False)
        patch.setattr(remote.time, "sleep", lambda seconds: None)
        yield faults
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Proxy:
    """A TCP proxy on this machine. It counts what passes, and cuts connections after some bytes.

    `cut_after(n)`: the connection on which the n-th byte from now passes is closed there, once. `close()` refuses all
    connections until `open()`.
    """

    def __init__(self, port: int):
        self._target = port
        self._lock = threading.Lock()
        self._left: int | None = None
        self._open: set[socket.socket] = set()
        self.cuts = 0
        self.passed = {"up": 0, "down": 0}
        self.requests: list[str] = []
        self.refusing = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, count: int) -> None:
        with self._lock:
            self._left = count

    def stop(self) -> None:
        self._server.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for each in list(self._open):
            self._end(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open |= {client, server}
            for source, sink, way in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=(source, sink, way), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if way == "up":
                    first = data.split(b"\r\n", 1)[0].split(b" ")
                    if len(first) == 3 and first[2].startswith(b"HTTP/"):
                        self.requests.append(f"{first[0].decode()} {first[1].decode()}")
                with self._lock:
                    self.passed[way] += len(data)
                    cut = self._left is not None and len(data) >= self._left
                    if cut:
                        data, self._left = data[: self._left], None
                        self.cuts += 1
                    elif self._left is not None:
                        self._left -= len(data)
                sink.sendall(data)
                if cut:
                    break
        self._end(source)
        self._end(sink)

    def _end(self, side: socket.socket) -> None:
        self._open.discard(side)
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()
