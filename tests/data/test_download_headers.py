"""Hostile headers of a server give an error in words, or have no effect: no traceback and no endless waiting."""

from __future__ import annotations

import socketserver
import threading

import pytest

from fidec.console import Progress
from fidec.data.http_download import AddressError, Limits, PartialFile, fetch
from fidec.errors import DataError

QUICK = Limits(connect=0.5, stall=0.5, attempts=2, unreachable=2, backoff=0.001, longest_pause=0.01, block=512)
BODY = bytes(range(256)) * 8


@pytest.fixture
def serve(monkeypatch):
    """serve(*answers) starts a server that sends each answer once, then the last one again; returns its requests."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = []

    def start(*answers: bytes) -> tuple[str, list[bytes]]:
        queue, requests = list(answers), []

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                requests.append(self.request.recv(65536))
                self.request.sendall(queue.pop(0) if len(queue) > 1 else queue[0])

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/x.npz", requests

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def answer(*headers: bytes, status: bytes = b"200 OK", body: bytes = BODY) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, b"Connection: close", *headers, b"", body])


LONG = b"9" * 5000
FETCHED = {
    "length of no digits": answer(b"Content-Length: \xb2"),
    "negative length": answer(b"Content-Length: -5"),
    "endless length": answer(b"Content-Length: " + LONG),
    "folded tag": answer(b'ETag: "a\r\n b: c"'),
}
REFUSED = {
    "unequal lengths": answer(b"Content-Length: 5, 6"),
    "range of no digits": answer(b"Content-Range: bytes \xb2-\xb3/4", status=b"206 Partial"),
    "endless range": answer(b"Content-Range: bytes 0-%b/%b" % (LONG, LONG), status=b"206 Partial"),
    "pause of no digits": answer(b"Retry-After: \xb2", status=b"503 Busy"),
    "endless pause": answer(b"Retry-After: " + LONG, status=b"503 Busy"),
    "redirect to a file": answer(b"Location: file:///etc/passwd", status=b"302 Found"),
    "redirect to no address": answer(b"Location: http://[::1", status=b"302 Found"),
    "redirect to bytes": answer(b"Location: http://\xff\xfe\x00", status=b"302 Found"),
    "redirect for ever": answer(b"Location: /x.npz", status=b"302 Found", body=b""),
    "too many headers": answer(*[b"X%d: 1" % i for i in range(200)]),
    "too long a header": answer(b"X: " + b"x" * 100_000),
    "no status": b"\x00" * 100 + b"\r\n\r\n",
    "control characters": answer(status=b"404 \x1b[31m" + b"x" * 10_000),
}


@pytest.mark.parametrize("case", FETCHED)
def test_headers_that_do_not_matter_are_ignored(tmp_path, serve, case):
    url, _ = serve(FETCHED[case])
    part = PartialFile(tmp_path, "x.npz", url)
    fetch(url, part, Progress(None, enabled=False), QUICK)
    assert part.path.read_bytes() == BODY


@pytest.mark.parametrize("case", REFUSED)
def test_hostile_headers_are_an_error_of_the_address(tmp_path, serve, case):
    url, _ = serve(REFUSED[case])
    with pytest.raises(AddressError) as caught:
        fetch(url, PartialFile(tmp_path, "x.npz", url), Progress(None, enabled=False), QUICK)
    assert str(caught.value).isprintable()
    assert 5 < len(str(caught.value)) < 400


def test_a_length_that_no_disk_holds_is_named(tmp_path, serve):
    url, _ = serve(answer(b"Content-Length: " + b"9" * 17))
    with pytest.raises(DataError, match=r"MB free, but x.npz needs \d+"):
        fetch(url, PartialFile(tmp_path, "x.npz", url), Progress(None, enabled=False), QUICK)


def test_a_tag_is_not_sent_back_as_another_header(tmp_path, serve):
    cut = answer(b'ETag: "a\r\n X-Injected: b"', b"Content-Length: 5000")
    url, requests = serve(cut, answer(b"Content-Length: %d" % len(BODY)))
    part = PartialFile(tmp_path, "x.npz", url)
    fetch(url, part, Progress(None, enabled=False), QUICK)
    assert part.path.read_bytes() == BODY
    assert len(requests) == 2
    assert not any(b"\nX-Injected" in request for request in requests)
