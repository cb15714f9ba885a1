"""The replay buffer on the disk: every bit comes back, damage never does, and a checkpoint costs the new rows."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from fidec.errors import CheckpointError, RunError
from fidec.store import files, trees
from fidec.store.checkpoint import STATE, Checkpoints
from fidec.store.replay import ReplayStore, Rows, concatenate
from fidec.types import Batch
from helpers.faults import damaged, failing_call, killed_at_every_write


def rows_of(first: int, count: int, images: bool = False, returns: bool = False) -> Rows:
    """Rows that depend on their numbers only, so that any range of them can be made again to compare."""
    numbers = np.arange(first, first + count)

    def column(salt: int, *shape: int) -> np.ndarray:
        made = [np.random.default_rng((salt, number)).normal(size=shape) for number in numbers.tolist()]
        return np.asarray(made, np.float32).reshape(count, *shape)

    def frames(salt: int, channels: int) -> np.ndarray:
        made = [np.random.default_rng((salt, number)).bytes(16 * channels) for number in numbers.tolist()]
        return np.frombuffer(b"".join(made), np.uint8).reshape(count, 4, 4, channels)

    observations = frames(0, 9) if images else column(0, 5)
    next_observations = frames(1, 3) if images else column(1, 5)
    ends = numbers % 7 == 6
    batch = Batch(
        observations,
        column(2, 2),
        column(3),
        (~ends).astype(np.float32),
        next_observations,
        column(4, 2),
        column(5) if returns else None,
    )
    place = [part.astype(np.int32) for part in (numbers // 7, numbers % 7, numbers % 3)]
    return Rows(batch, *place, terminals=ends)


def assert_rows(found: Rows | None, wanted: Rows) -> None:
    assert found is not None
    assert found.count == wanted.count
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def names(store: ReplayStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def as_json(index: Any) -> Any:
    return json.loads(json.dumps(index))


def filled(directory, *ends: int, **options) -> tuple[ReplayStore, list]:
    """A store with a segment up to each of `ends`."""
    store, index, first = ReplayStore(directory), [], 0
    for end in ends:
        store.append(rows_of(first, end - first, **options))
        index, first = store.flush(), end
    return store, as_json(index)


# --- what comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("returns", [False, True])
def test_every_bit_comes_back(tmp_path, images, returns):
    store = ReplayStore(tmp_path / "replay")
    first = 0
    for count, flush in ((1, False), (1, True), (0, True), (5, False), (1, False), (20, True), (3, True)):
        store.append(rows_of(first, count, images, returns))
        first += count
        if flush:
            index = store.flush()
    assert store.count == first == 31
    assert names(store) == ["00000000.safetensors", "00000002.safetensors", "00000028.safetensors"]
    assert [(entry["first"], entry["rows"]) for entry in index] == [(0, 2), (2, 26), (28, 3)]
    again = ReplayStore(tmp_path / "replay")
    assert_rows(again.restore(as_json(index)), rows_of(0, 31, images, returns))
    assert again.count == 31
    assert again.flush() == index  # nothing was pending
    again.append(rows_of(31, 4, images, returns))
    index = again.flush()
    assert index[-1]["name"] == "00000031.safetensors"
    assert_rows(ReplayStore(tmp_path / "replay").restore(index), rows_of(0, 35, images, returns))


def test_special_numbers_and_other_memory_layouts_come_back(tmp_path):
    odd = np.asarray([0x7FC00001, 0xFFC12345, 0x80000000, 0x00000001, 0x7F800000], np.uint32).view(np.float32)
    one, two = rows_of(0, 5), rows_of(5, 5)
    one = one._replace(batch=one.batch._replace(rewards=odd, observations=np.asfortranarray(one.batch.observations)))
    two = two._replace(batch=two.batch._replace(observations=np.asfortranarray(two.batch.observations)))
    store = ReplayStore(tmp_path)
    store.append(one)
    store.append(two)
    assert_rows(ReplayStore(tmp_path).restore(store.flush()), concatenate([one, two]))


def test_appended_arrays_may_be_used_again(tmp_path):
    """An environment may hand out the same memory every step."""
    store, rows = ReplayStore(tmp_path), rows_of(0, 1)
    store.append(rows)
    for leaf in jax.tree.leaves(rows):
        leaf[...] = 0
    assert_rows(ReplayStore(tmp_path).restore(store.flush()), rows_of(0, 1))


def test_restored_rows_can_be_written_to(tmp_path):
    _, index = filled(tmp_path, 4)
    assert all(leaf.flags.writeable for leaf in jax.tree.leaves(ReplayStore(tmp_path).restore(index)))


@pytest.mark.parametrize("empty", [None, []])
def test_nothing_makes_no_directory(tmp_path, empty):
    store = ReplayStore(tmp_path / "replay")
    assert store.restore(empty) is None
    store.verify(empty)
    store.append(rows_of(0, 0))
    assert store.flush() == []
    assert store.count == 0
    assert not (tmp_path / "replay").exists()


def test_equal_rows_make_equal_files(tmp_path):
    """However they were appended: a resumed run has the same bytes as one that was never interrupted."""
    _, left = filled(tmp_path / "a", 3, 9)
    store = ReplayStore(tmp_path / "b")
    for number in range(3):
        store.append(rows_of(number, 1))
    index = store.flush()
    store = ReplayStore(tmp_path / "b")
    store.restore(index)
    for number in range(3, 9):
        store.append(rows_of(number, 1))
    assert store.flush() == left


def test_rows_of_another_shape_are_refused(tmp_path):
    store, index = filled(tmp_path, 4)
    good = rows_of(4, 2)
    bad = {
        "observations": good._replace(batch=good.batch._replace(observations=np.zeros((2, 6), np.float32))),
        "rewards": good._replace(batch=good.batch._replace(rewards=np.zeros(2, np.float64))),
        "actions": good._replace(batch=good.batch._replace(actions=np.zeros((3, 2), np.float32))),
        "returns": rows_of(4, 2, returns=True),
    }
    again = ReplayStore(tmp_path)
    again.restore(index)
    for tried in (store, again):
        for name, rows in bad.items():
            with pytest.raises(RunError, match=f"column '{name}'"):
                tried.append(rows)
        assert tried.count == 4
    again.append(good)
    assert_rows(ReplayStore(tmp_path).restore(again.flush()), rows_of(0, 6))


# --- what it costs ------------------------------------------------------------------------------------------


def test_a_flush_writes_the_new_rows_only(tmp_path, monkeypatch):
    written: list[int] = []
    real = trees.files.atomic_write

    def counted(path, content, verify):
        written.append(len(content))
        real(path, content, verify)

    monkeypatch.setattr(trees.files, "atomic_write", counted)
    row = sum(leaf.nbytes for leaf in jax.tree.leaves(rows_of(0, 1)))
    store, first = ReplayStore(tmp_path), 0
    facts: dict[str, tuple] = {}
    for count in (100, 10, 1, 400, 50, 5):
        store.append(rows_of(first, count))
        written.clear()
        index = store.flush()
        assert len(written) == 1
        header = written[0] - count * row
        assert 0 < header < 2000  # names, types and shapes: the same however many rows came before
        for name, before in facts.items():
            assert fact(tmp_path / name) == before
        facts[index[-1]["name"]] = fact(tmp_path / index[-1]["name"])
        first += count
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == sum(entry["bytes"] for entry in index)
    written.clear()
    assert store.flush() == index
    assert written == []
    assert len(facts) == 6


def fact(path) -> tuple:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()


def test_flushed_rows_leave_the_memory(tmp_path):
    import tracemalloc

    store = ReplayStore(tmp_path)
    rows = rows_of(0, 2)
    big = rows._replace(batch=rows.batch._replace(observations=np.zeros((2, 500_000), np.float32)))
    tracemalloc.start()
    try:
        store.append(big)
        assert tracemalloc.get_traced_memory()[0] > 4_000_000  # the control
        store.flush()
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


# --- damage -------------------------------------------------------------------------------------------------

TEMPLATE = {"w": jax.ShapeDtypeStruct((3,), np.float32)}


def state_of(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(3, step, np.float32)}


def saved_run(directory) -> tuple[Checkpoints, ReplayStore, list[str]]:
    """Checkpoints of steps 10 and 20, with a segment each and one that both list."""
    warnings: list[str] = []
    checkpoints, store = (
        Checkpoints(directory / "checkpoints", warn=warnings.append),
        ReplayStore(directory / "replay"),
    )
    first = 0
    for step, end in ((5, 4), (10, 9), (20, 23)):
        store.append(rows_of(first, end - first))
        checkpoints.save(step, state_of(step), {"replay": store.flush()})
        first = end
    return checkpoints, store, warnings


def resume(checkpoints: Checkpoints, store: ReplayStore) -> tuple[int, Rows | None]:
    restored = checkpoints.latest(TEMPLATE, check=lambda extra: store.verify(extra.get("replay")))
    assert restored is not None
    assert float(restored.state["w"][0]) == restored.step
    return restored.step, store.restore(restored.extra["replay"])


@pytest.mark.parametrize("kind", ["flip", "truncate"])
def test_damage_anywhere_is_detected(tmp_path, kind):
    """In the segments and in the checkpoint: the newest intact state is used, or none."""
    checkpoints, _, warnings = saved_run(tmp_path / "run")
    segments = [tmp_path / "run" / "replay" / f"{first:08d}.safetensors" for first in (0, 4, 9)]
    newest = [checkpoints.path(20) / name for name in (STATE, "manifest.json")]
    expected = {segments[2]: 10, newest[0]: 10, newest[1]: 10, segments[0]: None, segments[1]: None}
    for path in damaged(list(expected), kind, 100):
        warnings.clear()
        store = ReplayStore(tmp_path / "run" / "replay")

        def check(extra, store=store):
            store.verify(extra["replay"])

        if expected[path] is None:
            with pytest.raises(CheckpointError, match="every checkpoint"):
                checkpoints.latest(TEMPLATE, check)
        else:
            restored = checkpoints.latest(TEMPLATE, check)
            assert restored is not None
            assert restored.step == expected[path]
        assert warnings
        assert all(str(path) in warning for warning in warnings)
    step, rows = resume(checkpoints, ReplayStore(tmp_path / "run" / "replay"))
    assert step == 20
    assert_rows(rows, rows_of(0, 23))


def test_damage_is_found_before_parsing_and_changes_nothing(tmp_path, monkeypatch):
    _, index = filled(tmp_path, 4, 9)
    (tmp_path / "00000009.safetensors").write_bytes(b"orphan")
    good = (tmp_path / "00000004.safetensors").read_bytes()
    monkeypatch.setattr(trees, "load_flat", lambda path: pytest.fail("parsed"))
    for bad, words in (
        (good[:-1], "bytes, its checkpoint says"),
        (good[:-1] + b"x", "SHA-256"),
        (None, "is missing"),
    ):
        path = tmp_path / "00000004.safetensors"
        path.unlink() if bad is None else path.write_bytes(bad)
        store = ReplayStore(tmp_path)
        for action in (store.verify, store.restore):
            with pytest.raises(CheckpointError, match=rf"00000004\.safetensors.*{words}"):
                action(index)
        assert store.count == 0
        assert "00000009.safetensors" in names(store)


def test_the_run_goes_on_from_an_older_checkpoint(tmp_path):
    """The newest segment is damaged: the rows after the older checkpoint are collected and written again."""
    checkpoints, _, warnings = saved_run(tmp_path)
    path = tmp_path / "replay" / "00000009.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:-5])
    store = ReplayStore(tmp_path / "replay")
    step, rows = resume(checkpoints, store)
    assert step == 10
    assert_rows(rows, rows_of(0, 9))
    assert len(warnings) == 1
    assert names(store) == ["00000000.safetensors", "00000004.safetensors"]
    store.append(rows_of(9, 14))
    checkpoints.save(20, state_of(20), {"replay": store.flush()})
    assert path.read_bytes() == before
    assert resume(checkpoints, ReplayStore(tmp_path / "replay"))[0] == 20


# --- crashes ------------------------------------------------------------------------------------------------


def test_what_a_crash_left_is_removed_and_nothing_else(tmp_path):
    checkpoints, store, _ = saved_run(tmp_path)
    store.append(rows_of(23, 5))
    store.flush()  # and here the process dies: no checkpoint lists the segment
    (tmp_path / "replay" / ".00000028.safetensors.77.tmp").write_bytes(b"half")
    (tmp_path / "replay" / "123456789.safetensors").write_bytes(b"?")
    (tmp_path / "replay" / "notes.txt").write_text("mine")
    again = ReplayStore(tmp_path / "replay")
    step, rows = resume(checkpoints, again)
    assert step == 20
    assert_rows(rows, rows_of(0, 23))
    assert names(again) == [f"{first:08d}.safetensors" for first in (0, 4, 9)] + ["notes.txt"]
    again.append(rows_of(23, 2))  # other rows than before the crash, under the same name
    assert_rows(ReplayStore(tmp_path / "replay").restore(again.flush()), rows_of(0, 25))


def test_a_store_that_was_not_restored_replaces_nothing(tmp_path):
    _, index = filled(tmp_path, 4)
    before = fact(tmp_path / "00000000.safetensors")
    forgetful = ReplayStore(tmp_path)
    forgetful.append(rows_of(50, 3))
    with pytest.raises(RunError, match="--resume"):
        forgetful.flush()
    assert fact(tmp_path / "00000000.safetensors") == before
    assert_rows(ReplayStore(tmp_path).restore(index), rows_of(0, 4))


SAVE = """
    import numpy as np
    from fidec.store.checkpoint import Checkpoints
    from fidec.store.replay import ReplayStore, Rows
    from fidec.types import Batch

    def rows_of(first, count):
        numbers = np.arange(first, first + count).astype(np.float32)
        return Rows(Batch(*[numbers[:, None]] * 2, *[numbers] * 2, *[numbers[:, None]] * 2), *[numbers] * 4)

    def save(directory, step, index, rows):
        store = ReplayStore(directory / "replay")
        store.restore(index)
        store.append(rows)
        index = store.flush()
        checkpoints, state = Checkpoints(directory / "checkpoints", keep=1), {"w": np.full(3, step, np.float32)}
        checkpoints.save(step, state, {"replay": index})
        return index

    def prepare(directory):
        return save(directory, 1, None, rows_of(0, 4))

    def work(directory, index):
        save(directory, 2, index, rows_of(4, 6))
"""


def test_sigkill_at_every_stage_of_flush_and_checkpoint(tmp_path):
    directories, outcomes = killed_at_every_write(tmp_path, SAVE), set()
    assert len(directories) >= 14
    for directory in directories:
        warnings: list[str] = []
        reader = Checkpoints(directory / "checkpoints", read_only=True, warn=warnings.append)
        for step in reader.steps():  # whatever has a final name is whole, also what was being removed
            files.verify_manifest(reader.path(step))
        store = ReplayStore(directory / "replay")
        checkpoints = Checkpoints(directory / "checkpoints", keep=1, warn=warnings.append)
        step, rows = resume(checkpoints, store)
        assert rows is not None
        assert rows.batch.rewards.tolist() == list(range({1: 4, 2: 10}[step]))
        assert names(store) == ["00000000.safetensors", "00000004.safetensors"][:step]
        checkpoints.save(9, state_of(9), {})
        assert [path.name for path in checkpoints.directory.iterdir()] == ["00000009"]
        assert warnings == []
        outcomes.add(step)
    assert outcomes == {1, 2}


@pytest.mark.parametrize(("number", "segments"), [(errno.ENOSPC, 0), (errno.EIO, 1)])
def test_a_flush_that_fails_at_any_call_loses_nothing(tmp_path, monkeypatch, number, segments):
    for n in range(20):
        (tmp_path / str(n)).mkdir()
        store, _ = filled(tmp_path / str(n) / "replay", *[4][:segments])
        first = 4 * segments
        store.append(rows_of(first, 3))
        store.append(rows_of(first + 3, 1))
        error = None
        with failing_call(monkeypatch, ("fsync", "replace", "mkdir"), n, number) as calls:
            try:
                store.flush()
            except RunError as caught:
                error = caught
        if len(calls) <= n:
            assert error is None
            assert n == (3 if segments else 5)  # of the file, its name, its directory, and that one's making and name
            return
        assert f"rows {first} to {first + 3} of the replay buffer" in str(error)
        assert ("the disk is full" in str(error)) == (number == errno.ENOSPC)
        if store.directory.exists():
            assert names(store) == ["00000000.safetensors"][:segments]
        assert store.count == first + 4
        store.append(rows_of(first + 4, 2))  # collection may even go on
        assert_rows(ReplayStore(store.directory).restore(store.flush()), rows_of(0, first + 6))
    pytest.fail("the flush never got through")


# --- an index that lies -------------------------------------------------------------------------------------


def test_an_index_that_was_changed_is_refused(tmp_path):
    store, index = filled(tmp_path / "replay", 4, 9, 12)
    outside = tmp_path / "outside.safetensors"
    shutil.copy(tmp_path / "replay" / "00000000.safetensors", outside)
    for name in ("0.safetensors", "00000001.safetensors", "notes.txt"):
        shutil.copy(outside, tmp_path / "replay" / name)

    def changed(number: int, **values: Any) -> list:
        return [entry | values if at == number else entry for at, entry in enumerate(index)]

    wrong_names = ["../outside.safetensors", str(outside), "0.safetensors", "00000001.safetensors", "notes.txt"]
    wrong_names += ["", ".", "..", "00000000.safetensors/", "./00000000.safetensors", "00000000.safetensors\n"]
    lies = [changed(0, name=name) for name in wrong_names]
    lies += [index[1:], index[:1] + index[2:], [index[0], *index], index[::-1]]  # gaps, overlaps, another order
    lies += [changed(1, first=3), changed(1, first=5), changed(0, first=-1), changed(0, first=False)]
    lies += [changed(number, rows=rows) for number in (0, 1, 2) for rows in (0, -1, 3.0, True, "5", None, 10**12)]
    lies += [changed(number, rows=index[number]["rows"] + shift) for number in (0, 1) for shift in (-1, 1)]
    lies += [changed(1, bytes=1), changed(1, sha256="0" * 64), changed(1, sha256=None), changed(1, more=1)]
    lies += ["00000000.safetensors", {"name": "00000000.safetensors"}, [["name"]], ["00000000.safetensors"], 3, True]
    before = names(store)
    for lie in lies:
        with pytest.raises(CheckpointError):
            ReplayStore(tmp_path / "replay").restore(lie)
        assert names(store) == before
    assert_rows(ReplayStore(tmp_path / "replay").restore(index), rows_of(0, 12))  # the control


def segment(directory, flat: dict[str, np.ndarray], first: int = 0, rows: int = 4) -> dict[str, Any]:
    """A file that the index describes truly, whatever is in it."""
    path = directory / f"{first:08d}.safetensors"
    trees.save_flat(path, flat)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"name": path.name, "first": first, "rows": rows, "bytes": path.stat().st_size, "sha256": digest}


def test_columns_that_do_not_agree_are_refused(tmp_path):
    good = trees.load_flat(filled(tmp_path / "made", 4)[0].directory / "00000000.safetensors")
    bad = {
        "terminals": {name: column for name, column in good.items() if name != "terminals"},
        "surprise": good | {"surprise": good["rewards"]},
        "rewards": good | {"rewards": good["rewards"][:3]},
        "masks": good | {"masks": np.ones((), np.float32)},
        "episodes": good | {"episodes": good["episodes"].astype(np.int64)},
    }
    for word, flat in bad.items():
        with pytest.raises(CheckpointError, match=rf"00000000\.safetensors.*{word}"):
            ReplayStore(tmp_path).restore([segment(tmp_path, flat)])
    with pytest.raises(CheckpointError, match="0 rows"):
        ReplayStore(tmp_path).restore([segment(tmp_path, {name: c[:0] for name, c in good.items()}, rows=0)])
    one = segment(tmp_path, good)
    with pytest.raises(CheckpointError, match="column 'observations' has shape"):
        ReplayStore(tmp_path).restore([one | {"rows": 5}])
    for word, flat in {
        "rewards": good | {"rewards": good["rewards"].astype(np.float16)},
        "actions": good | {"actions": good["actions"][:, :1]},
        "returns": good | {"returns": good["rewards"]},
    }.items():
        with pytest.raises(CheckpointError, match=rf"00000004\.safetensors.*'{word}'"):
            ReplayStore(tmp_path).restore([one, segment(tmp_path, flat, first=4)])
    path = tmp_path / "00000000.safetensors"
    path.write_bytes(b"\x80\x04K\x01.")  # a pickle with the right hash is still not read
    lie = one | {"bytes": 5, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        ReplayStore(tmp_path).restore([lie])
