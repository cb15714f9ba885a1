"""JSON is checked before it is used: types, missing entries, numbers that are too large, nesting that is too deep."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from fidec.errors import CheckpointError, RunError
from fidec.store import files
from fidec.store.schema import check, parse_json
from helpers.faults import mutated


class Inner(TypedDict):
    name: str
    sizes: list[int]


class Outer(TypedDict):
    kind: Literal["a", "b"]
    rate: float | None
    inner: NotRequired[Inner | None]
    pair: NotRequired[tuple[int, str]]
    counts: NotRequired[dict[str, int]]


@dataclass
class Options:
    hidden: tuple[int, ...] = (8,)
    out: Path | None = None
    inner: Any = field(default=None)


GOOD = {
    "kind": "a",
    "rate": 1,
    "inner": {"name": "x", "sizes": [1, 2]},
    "pair": [1, "x"],
    "counts": {"n": 3},
    "new": 0,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "c"}, 'kind is "c", expected "a" or "b"'),
        ({"rate": True}, "rate is true, expected a number"),
        ({"rate": "fast"}, 'rate is "fast"'),
        ({"inner": {"name": "x"}}, "inner.sizes is missing"),
        ({"inner": {"name": "x", "sizes": [1, 2.5]}}, r"inner\.sizes\[1\] is 2\.5, expected a whole number"),
        ({"inner": []}, r"inner is \[\], expected a table of keys and values"),
        ({"pair": [1]}, "pair has 1 entries, expected 2"),
        ({"counts": {"n": None}}, "counts.n is null, expected a whole number"),
    ],
)
def test_an_entry_of_another_type_is_named(change, words):
    check(GOOD, Outer)
    with pytest.raises(ValueError, match=words):
        check({**GOOD, **change}, Outer)


def test_a_dataclass_is_a_schema():
    for good in ({}, {"hidden": [4, 4], "out": "runs"}, {"out": None, "inner": {"any": "thing"}}):
        check(good, Options)
    for bad in ({"hidden": 4}, {"hidden": ["4"]}, {"out": 3}, [], None):
        with pytest.raises(ValueError, match="expected"):
            check(bad, Options)


@pytest.mark.parametrize(
    "text", ["NaN", "[1e999]", "-Infinity", "9" * 19, "9" * 5000, "[" * 40 + "]" * 40, "[" * 100_000]
)
def test_numbers_and_nesting_have_limits(text):
    with pytest.raises(ValueError, match=r"finite|too large|deeper"):
        parse_json(text)
    assert parse_json("[" * 30 + "-9223372036854775808, 1.5" + "]" * 30)


def test_a_manifest_that_was_changed_in_any_way_is_an_error_of_fidec(tmp_path):
    """Without its digest, as other JSON files are read, it is an error or has the types of its schema."""
    (tmp_path / "file").write_text("x")
    files.write_manifest(tmp_path, {"step": 1})
    path = tmp_path / "manifest.json"
    text, read, refused = path.read_text(), 0, 0
    for other in mutated(text, 60):
        path.write_text(other)
        with pytest.raises(CheckpointError):
            files.verify_manifest(tmp_path)
        try:
            found = files.read_json(path, files.Manifest)
        except RunError:
            refused += 1
            continue
        read += 1
        types = {type(found["format"]), *(type(entry["bytes"]) for entry in found["files"].values())}
        texts = {type(found["sha256"]), *(type(entry["sha256"]) for entry in found["files"].values())}
        assert (types, texts, type(found["extra"])) == ({int}, {str}, dict)
    assert read >= 5
    assert refused >= 30
