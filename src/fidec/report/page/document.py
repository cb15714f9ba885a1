"""A page as one HTML file: its style and its script are inside, and it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

from fidec.errors import ConfigError
from fidec.report.page.html import Html, asset, tag
from fidec.store import files


def write_document(out: str | Path, title: str, body: Html) -> Path:
    """Write the file, atomically."""
    out = Path(out)
    if out.is_dir():
        raise ConfigError(f"{out} is a directory: name a file, such as {out / 'report.html'}")
    text = _document(title, body)
    with files.writing(out, "the report"):
        out.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(out, lambda file: file.write(text.encode("utf-8", errors="replace")))
    return out


def _document(title: str, body: Html) -> str:
    folder = resources.files("fidec.report.page")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Even text that was not escaped could run nothing: only this script may run, and nothing is fetched.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "media-src data: file: 'self'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", asset(style)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body, tag("script", asset(script))), lang="en")
