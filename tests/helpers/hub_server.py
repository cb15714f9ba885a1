"""A small Hugging Face hub on this machine: the three routes that `snapshot_download` uses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub_server(files: dict[str, bytes], name: str = "lab/arm", broken: set[str] | None = None) -> Iterator[Any]:
    """Serve one data set; yields (address, list of requested paths). Files in `broken` answer with an error."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def answer(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            asked.append(path)
            if path.startswith("/api/datasets/lab/secret/"):
                self.answer(b"{}", 403, X_Error_Code="GatedRepo", X_Error_Message="ask for access")
            elif path == f"/api/datasets/{name}/revision/gone":
                self.answer(b"{}", 404, X_Error_Code="RevisionNotFound")
            elif path.startswith(f"/api/datasets/{name}/revision/"):
                self.json({"id": name, "sha": COMMIT, "siblings": []})
            elif path == f"/api/datasets/{name}/tree/{COMMIT}":
                self.json([{"type": "file", "path": p, "size": len(c), "oid": _oid(c)} for p, c in files.items()])
            elif path.startswith(f"/datasets/{name}/resolve/{COMMIT}/"):
                found = path.removeprefix(f"/datasets/{name}/resolve/{COMMIT}/")
                if found in (broken or ()):
                    self.answer(b"", 403)
                else:
                    self.answer(files[found], ETag=f'"{_oid(files[found])}"', X_Repo_Commit=COMMIT)
            else:
                self.answer(b"{}", 404, X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def json(self, value: Any) -> None:
            self.answer(json.dumps(value).encode(), Content_Type="application/json")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(content: bytes) -> str:
    """Git's name of a file."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
