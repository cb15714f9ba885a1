"""Messages as bytes: msgpack with arrays as openpi writes them, and JSON. Nothing is ever unpickled.

An array is a map with bytes as keys: `__ndarray__`, `data` (C order), `dtype` such as `<f4`, and `shape`. It is
decoded only where a field is used, so what a client sends beside the observation is never interpreted. A message that
cannot be used is `Refused`.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np

from fidec.extras import require

_LARGEST_RANK = 8
# Every reason why a request is refused, with the status of HTTP. `/metrics` counts errors by reason.
STATUS = {
    "malformed": 400,  # no JSON, no msgpack, no object
    "field": 400,  # missing, or not what it has to be
    "shape": 400,
    "dtype": 400,
    "not_finite": 400,
    "too_large": 413,
    "encoding": 415,  # a compressed body
    "token": 401,
    "origin": 403,
    "overload": 503,
    "stopping": 503,
    "policy": 500,  # the policy gave no usable action
    "internal": 500,
}


class Refused(Exception):
    """A request that gets no action. The text names the field, what was found and what was expected."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason, self.status = reason, STATUS[reason]


@cache
def _msgpack() -> Any:
    return require("msgpack", "serve", "fidec serve")


def read_msgpack(content: bytes) -> dict[str, Any]:
    """The object in a binary frame. Arrays in it stay maps until `array_of`."""
    try:
        value = _msgpack().unpackb(content)
    except Exception as error:  # msgpack raises several unrelated classes
        raise Refused("malformed", f"the message is not msgpack: {_short(error)}") from None
    return _object(value, "msgpack")


def read_json(content: bytes) -> dict[str, Any]:
    """The object of a request's body. NaN is read, so that the error can name its field."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused("malformed", f"the message is not JSON: {_short(error)}") from None
    return _object(value, "JSON")


def _object(value: Any, form: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(
            "malformed", f"the message is {describe(value)} in {form}, expected an object with named fields"
        )
    return value


def write_msgpack(value: Any) -> bytes:
    return _msgpack().packb(value, default=_pack)


def write_json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, default=lambda array: array.tolist()).encode()


def _pack(value: Any) -> dict[bytes, Any]:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"cannot send {type(value).__name__}")
    content = np.ascontiguousarray(value).tobytes()
    return {b"__ndarray__": True, b"data": content, b"dtype": value.dtype.str, b"shape": list(value.shape)}


def array_of(value: Any, field: str) -> np.ndarray:
    """The numbers of a field: openpi's array or scalar, a number, or nested lists of numbers."""
    try:
        if isinstance(value, dict) and b"__ndarray__" in value:
            array = _unpack(value, field)
        elif isinstance(value, dict) and b"__npgeneric__" in value:
            array = np.array(value[b"data"], _dtype(value, field))
        else:
            array = np.asarray(value)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Refused("field", f"`{field}` is no array of numbers: {_short(error)}") from None
    if array.dtype.kind not in "biuf":
        raise Refused("dtype", f"`{field}` is {describe(value)}, expected an array of numbers")
    return array


def _unpack(value: dict[Any, Any], field: str) -> np.ndarray:
    shape, content, dtype = value[b"shape"], value[b"data"], _dtype(value, field)
    if not isinstance(content, bytes) or not isinstance(shape, list) or len(shape) > _LARGEST_RANK:
        raise ValueError("data has to be bytes, and shape a list")
    if not all(isinstance(n, int) and n >= 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are not the shape {shape} of {dtype}")
    return np.frombuffer(content, dtype).reshape(shape)


def _dtype(value: dict[Any, Any], field: str) -> np.dtype:
    name = value[b"dtype"]
    # Only plain numbers. A dtype's text may also describe structures and objects.
    if not isinstance(name, str) or len(name) > 4 or name.lstrip("<>|=")[:1] not in tuple("biuf"):
        raise Refused("dtype", f"`{field}` has the dtype {_short(name)!r}, expected numbers such as '<f4' or '|u1'")
    return np.dtype(name)


def describe(value: Any) -> str:
    """What was found, in a few words that are safe to repeat."""
    if isinstance(value, np.ndarray):
        return f"an array {value.shape} of {value.dtype}"
    if isinstance(value, dict):
        return f"an object with {names_of(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {_short(value)!r}"
    return f"{_short(value)} ({type(value).__name__})"


def names_of(message: dict[Any, Any]) -> str:
    """The names of the fields, of a message that anyone may have written."""
    names = [str(name)[:40] for name in list(message)[:12]]
    return ", ".join(map(repr, names)) + (f" and {len(message) - 12} more" if len(message) > 12 else "") or "no field"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:120] + "..."
