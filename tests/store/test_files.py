"""Trees, manifests and single files: what is written is what is read, or the error names what is wrong."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidec.errors import CheckpointError, RunError
from fidec.store import files, trees
from helpers.faults import failing_call


class Pair(NamedTuple):
    left: Any
    right: Any


DTYPES = (np.float32, np.int32, np.uint32, np.bool_, np.float16, ml_dtypes.bfloat16, np.uint8, np.int64)


@st.composite
def arrays(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    seed = draw(st.integers(0, 2**16))
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    if dtype == np.bool_:
        return (raw[..., 0] > 127).reshape(shape)
    return raw.view(dtype).reshape(shape)  # any bits at all: NaN payloads have to survive here too


array_trees = st.recursive(
    st.one_of(st.none(), arrays()),
    lambda inner: st.one_of(
        st.dictionaries(st.text(alphabet="ab/~.'\"é ", max_size=4), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=2).map(tuple),
        st.tuples(inner, inner).map(lambda two: Pair(*two)),
    ),
    max_leaves=8,
)


def describe(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (a.dtype, a.shape, np.asarray(a).tobytes()) == (b.dtype, b.shape, np.asarray(b).tobytes())


@settings(max_examples=60, deadline=None)
@given(array_trees)
def test_any_tree_survives_the_file_bit_for_bit(tree):
    # int64 cannot be described by ShapeDtypeStruct without x64, so the tree itself is the template.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "state.safetensors"
        trees.save_tree(path, tree, {"a": "1", "b": "2"})
        first = path.read_bytes()
        assert_same(trees.load_tree(path, tree), tree)
        trees.save_tree(path, tree, {"b": "2", "a": "1"})
        assert path.read_bytes() == first
        assert [entry.name for entry in Path(directory).iterdir()] == [path.name]


def test_jax_arrays_and_views_survive(tmp_path):
    tree = {
        "params": {"kernel": jnp.arange(6.0).reshape(2, 3), "bf16": jnp.asarray([1.5, -2.0], jnp.bfloat16)},
        "step": jnp.zeros((), jnp.int32),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "none": None,
        "opt": Pair((jnp.ones(3, bool),), jnp.asarray(7, jnp.uint32)),
    }
    trees.save_tree(tmp_path / "t", tree)
    assert_same(trees.load_tree(tmp_path / "t", describe(tree)), tree)
    assert set(trees.flatten_tree(tree)) == {
        "params/kernel",
        "params/bf16",
        "step",
        "transposed",
        "opt/left/0",
        "opt/right",
    }


def test_paths_that_look_alike_stay_apart():
    flat = trees.flatten_tree({"a": {"b": np.ones(1)}, "a/b": np.zeros(1), "a~1b": np.full(1, 2.0)})
    assert {name: float(array[0]) for name, array in flat.items()} == {"a/b": 1, "a~1b": 0, "a~01b": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {**t, "new": t["w"]}, ["no leaf 'new'"]),
        (lambda t: {"b": t["b"]}, ["a leaf 'w'"]),
        (lambda t: {**t, "w": None}, ["a leaf 'w'"]),
        (lambda t: {**t, "w": jax.ShapeDtypeStruct((3, 2), np.float32)}, ["'w'", "(2, 3)", "(3, 2)"]),
        (lambda t: {**t, "w": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)}, ["'w'", "float32", "bfloat16"]),
        (lambda t: {**t, "b": jax.ShapeDtypeStruct((2,), np.uint32)}, ["'b'", "int32", "uint32"]),
    ],
)
def test_a_tree_of_another_shape_is_refused_by_name(tmp_path, change, words):
    tree = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.int32)}
    path = tmp_path / "state.safetensors"
    trees.save_tree(path, tree)
    assert_same(trees.load_tree(path, describe(tree)), tree)
    with pytest.raises(CheckpointError) as caught:
        trees.load_tree(path, change(describe(tree)))
    assert all(word in str(caught.value) for word in [*words, str(path)])


@pytest.mark.parametrize("leaf", [1.0, "text", np.array([None]), np.array(["a"])])
def test_what_is_no_array_of_numbers_is_refused_by_name(leaf):
    with pytest.raises(CheckpointError, match="'a/b'"):
        trees.flatten_tree({"a": {"b": leaf}})


def test_typed_keys_are_refused():
    with pytest.raises(CheckpointError, match="'key'"):
        trees.flatten_tree({"key": jax.random.key(0)})


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises(CheckpointError, match="missing"):
        trees.load_flat(path)
    for content in (b"", b"\x80\x04K\x01.", b"\xff" * 64, b"{}"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"state\.safetensors"):
            trees.load_flat(path)


def test_manifest_covers_every_file_and_keeps_extra(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "sub" / "b").write_bytes(b"")
    extra = {"positions": {"train": 10, "2": 1, "10": 2}, 3: np.float32(0.1), "when": None, "ä": [1, (2, 3)]}
    files.write_manifest(tmp_path, extra)
    expected = {"positions": {"train": 10, "2": 1, "10": 2}, "3": 0.1, "when": None, "ä": [1, [2, 3]]}
    assert files.verify_manifest(tmp_path) == expected
    (tmp_path / "unrelated").write_bytes(b"x")
    assert files.verify_manifest(tmp_path) == expected
    (tmp_path / "sub" / "b").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"sub/b has 1 bytes, its manifest says 0"):
        files.verify_manifest(tmp_path)
    (tmp_path / "sub" / "b").unlink()
    with pytest.raises(CheckpointError, match=r"sub/b is missing"):
        files.verify_manifest(tmp_path)


def test_manifest_may_not_point_outside(tmp_path):
    inside = tmp_path / "c"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"1")
    entry = {"bytes": 1, "sha256": files.sha256_file(tmp_path / "secret")}
    for name in ("../secret", str(tmp_path / "secret")):
        body = {"format": 1, "files": {name: entry}, "extra": {}}
        (inside / files.MANIFEST).write_text(files.render_manifest(body))
        with pytest.raises(CheckpointError, match="outside"):
            files.verify_manifest(inside)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b'{"sha256": 1}', b"[" * 100_000, b"\xff"])
def test_manifest_of_rubbish_is_damaged(tmp_path, content):
    (tmp_path / files.MANIFEST).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        files.verify_manifest(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float32_reads_back_to_the_same_bits(value):
    value = np.float32(value)
    again = np.float32(json.loads(json.dumps(files.to_builtin(value))))
    assert again.tobytes() == value.tobytes()


def test_numbers_become_plain():
    values = {
        "f": np.float32(0.1),
        "d": np.float64(0.1),
        "j": jnp.float32(0.1),
        "i": np.int64(3),
        "b": np.bool_(True),
        "py": True,
        "nan": float("nan"),
        "inf": jnp.float32(np.inf),
        "a": np.array([[1, 2]], np.uint8),
        "bf": jnp.asarray(1.5, jnp.bfloat16),
    }
    text = json.dumps(files.to_builtin(values), allow_nan=False)
    assert text == (
        '{"f": 0.1, "d": 0.1, "j": 0.1, "i": 3, "b": true, "py": true, "nan": null, "inf": null, '
        '"a": [[1, 2]], "bf": 1.5}'
    )
    with pytest.raises(TypeError, match="object"):
        files.to_builtin({"x": object()})


def test_a_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    files.atomic_write(path, "old")
    for name in ("fsync", "replace"):
        words = r"the disk is full.*status\.json.*MB are free.*--resume"
        with failing_call(monkeypatch, [name], 0, errno.ENOSPC), pytest.raises(RunError, match=words):
            files.atomic_write(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]
    files.atomic_write(path, "new")
    assert path.read_text() == "new"


def test_a_write_is_named_by_the_outermost_block_and_a_failed_read_by_itself(tmp_path):
    words = r"could not write the policy \(.*\): Is a directory"
    with pytest.raises(RunError, match=words), files.writing(tmp_path, "the policy"):
        files.atomic_write(tmp_path, "text")
    with pytest.raises(RunError) as caught, files.writing(tmp_path, "the policy"):
        files.read_json(tmp_path)
    assert str(caught.value) == f"{tmp_path} cannot be read: Is a directory"


def test_a_write_does_not_follow_a_link_in_the_place_of_its_temporary_file(tmp_path):
    (tmp_path / "outside").write_text("precious")
    (tmp_path / f".x.json.{os.getpid()}.tmp").symlink_to(tmp_path / "outside")
    files.write_json(tmp_path / "x.json", {"a": 1})
    assert files.read_json(tmp_path / "x.json") == {"a": 1}
    (tmp_path / "log").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        files.open_to_append(tmp_path / "log")
    assert (tmp_path / "outside").read_text() == "precious"
