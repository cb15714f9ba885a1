"""HTML as values. Text is escaped when it becomes a part of an element; there is no other way in.

A document is one file: its style and its script are inside, and it fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from fidec.errors import ConfigError
from fidec.store import files

_VOID = ("meta", "input", "br", "line", "path", "rect", "circle", "img")  # elements without content


class Html(str):
    """A piece of HTML. Only `tag`, `join` and `asset` make one."""

    __slots__ = ()


Content = Any  # Html, text, a number, None for nothing, or a list of these


def join(*content: Content) -> Html:
    """Pieces one after another. Whatever is not `Html` is text, and is escaped."""
    return Html("".join(_piece(each) for each in content))


def tag(kind: str, /, *content: Content, **attributes: Any) -> Html:
    """An element. An attribute that is None or False is left out, and one that is True has no value.

    Underscores in the names of attributes are dashes, and one at the end is dropped: `class_`, `aria_label`.
    """
    words = [kind]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(str(value))}"')
    opening = " ".join(words)
    return Html(f"<{opening}/>" if kind in _VOID else f"<{opening}>{join(*content)}</{kind}>")


def asset(text: str) -> Html:
    """Text of this package's own files, as it is."""
    return Html(text)


def data(value: Any) -> str:
    """A value for an attribute that the page's script reads. `tag` escapes it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def table(header: Sequence[Content], rows: Iterable[Sequence[Content]], caption: Content = None, **how: Any) -> Html:
    """A table whose first column names the rows. It scrolls by itself where the page is narrow."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    text = None if caption is None else tag("caption", caption)
    element = tag("table", text, tag("thead", head), tag("tbody", *body), **how)
    return tag("div", element, class_="wide", tabindex="0", role="region", aria_label=_label(caption, header))


def pairs(rows: Iterable[tuple[Content, Content]]) -> Html:
    """Names and values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in rows))


def _label(caption: Content, header: Sequence[Content]) -> str:
    return "table: " + (str(caption) if caption is not None and not isinstance(caption, Html) else str(header[0]))


def _piece(content: Content) -> str:
    if isinstance(content, Html):
        return str(content)
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "".join(_piece(each) for each in content)
    return escape(str(content))


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
    folder = resources.files("fidec.report")
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
