"""Messages as bytes: what openpi's client writes is read, anything else is refused in words."""

from __future__ import annotations

import numpy as np
import pytest

from fidec.serve.serialization import Refused, array_of, read_json, read_msgpack, write_msgpack
from helpers.serving import pack, unpack


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|u1", "<i8", "|b1", "<f2"])
def test_arrays_go_both_ways(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    read = array_of(read_msgpack(pack({"x": array}))["x"], "x")
    assert (read.dtype, read.tolist()) == (array.dtype, array.tolist())
    assert unpack(write_msgpack({"x": array}))["x"].tolist() == array.tolist()
    assert array_of(read_msgpack(pack({"x": array[0, 1]}))["x"], "x").tolist() == array[0, 1]


def hostile(dtype: object = "<f4", shape: object = (2,), data: object = b"\0" * 8) -> dict[bytes, object]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (hostile("|O8"), "dtype"),
        (hostile("<c8"), "dtype"),
        (hostile("f4,f4"), "dtype"),
        (hostile("<U2"), "dtype"),
        (hostile("V8"), "dtype"),
        (hostile(3), "dtype"),
        (hostile("f9"), "field"),
        (hostile(shape=(3,)), "field"),
        (hostile(shape=(-2,)), "field"),
        (hostile(shape=(-1, -2)), "field"),
        (hostile(shape=(2**62, 2**62)), "field"),
        (hostile(shape=(1,) * 40), "field"),
        (hostile(shape="no"), "field"),
        (hostile(data="text"), "field"),
        ({b"__ndarray__": True}, "field"),
        ({b"__npgeneric__": True, b"data": "x", b"dtype": "<f4"}, "field"),
        ({"a": 1}, "dtype"),
        ([[1, 2], [3]], "field"),
        (["a"], "dtype"),
        ([2**70], "dtype"),
        (None, "dtype"),
    ],
)
def test_an_array_that_cannot_be_read_is_refused_with_its_field(array, reason):
    sent = array if array == [2**70] else read_msgpack(pack({"x": array}))["x"]  # msgpack has no such number
    with pytest.raises(Refused, match="`x`") as caught:
        array_of(sent, "x")
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "content", [b"", b"\xc1", b"\x81\xa1", b"\x01\x02", b"\x93\x01", b"\x91" * 5000, b"\xa1\xff"]
)
def test_what_is_not_msgpack_is_refused(content):
    with pytest.raises(Refused, match="msgpack"):
        read_msgpack(content)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a": 1' + b"0" * 5000])
def test_what_is_not_json_is_refused(content):
    with pytest.raises(Refused, match="JSON"):
        read_json(content)
