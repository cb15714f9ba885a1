"""HTML as values. Text is escaped when it becomes a part of an element; there is no other way in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

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
    whole = tag("table", text, tag("thead", head), tag("tbody", *body), **how)
    return tag("div", whole, class_="wide", tabindex="0", role="region", aria_label=_label(caption, header))


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
