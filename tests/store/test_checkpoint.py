"""Checkpoints under bit flips, truncation, crashes at every stage of a save, and full disks."""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from fidec.store import files
from fidec.store.checkpoint import STATE, Checkpoints
from helpers import some
from helpers.faults import damaged, failing_call, killed_at_every_write, run_on_small_disk


class State(NamedTuple):
    params: dict[str, Any]
    multiplier: Any
    step: Any


def state_of(step: int) -> State:
    kernel = np.random.default_rng(step).normal(size=(4, 5)).astype(np.float32)
    params = {"kernel": jnp.asarray(kernel), "half": jnp.asarray([step, 1], jnp.bfloat16), "none": None}
    return State(params, jnp.ones((), jnp.float32), jnp.asarray(step, jnp.int32))


TEMPLATE = jax.eval_shape(lambda: state_of(0))


def assert_state(restored, step):
    assert restored is not None
    assert restored.step == step
    wanted = state_of(step)
    assert jax.tree.structure(restored.state) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(restored.state), jax.tree.leaves(wanted), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.dtype, np.asarray(a).tobytes()) == (b.dtype, np.asarray(b).tobytes())


def entries(directory):
    return sorted(path.name for path in directory.iterdir())


def test_saves_restores_and_keeps_a_number(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    assert checkpoints.latest(TEMPLATE) is None
    for step in (10, 20, 100_000_000):
        checkpoints.save(step, state_of(step), {"positions": {"train": step}, "score": np.float32(0.1)})
    assert entries(tmp_path / "c") == ["00000020", "100000000"]
    assert checkpoints.steps() == [20, 100_000_000]
    restored = some(Checkpoints(tmp_path / "c", keep=2).latest(TEMPLATE))
    assert_state(restored, 100_000_000)
    assert restored.extra == {"positions": {"train": 100_000_000}, "score": 0.1}
    with pytest.raises(ConfigError, match="keep is 0"):
        Checkpoints(tmp_path / "c", keep=0)


def test_equal_states_make_equal_files(tmp_path):
    for name in ("a", "b"):
        Checkpoints(tmp_path / name).save(7, state_of(7), {"x": 1})
    for name in (STATE, "manifest.json"):
        left, right = (tmp_path / run / "00000007" / name for run in ("a", "b"))
        assert left.read_bytes() == right.read_bytes()


@pytest.mark.parametrize("kind", ["flip", "truncate"])
def test_damage_anywhere_is_detected_and_the_previous_one_used(tmp_path, kind):
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, warn=warnings.append)
    checkpoints.save(1, state_of(1), {"positions": {"train": 11, "eval": 0}})
    checkpoints.save(2, state_of(2), {"positions": {"train": 22, "eval": 5}})
    assert_state(checkpoints.latest(TEMPLATE), 2)  # undamaged, it is accepted
    assert warnings == []
    stored = [checkpoints.path(2) / name for name in (STATE, "manifest.json")]
    for path in damaged(stored, kind, 60):
        warnings.clear()
        assert_state(checkpoints.latest(TEMPLATE), 1)
        assert len(warnings) == 1
        assert "step 2" in warnings[0]
        assert str(path) in warnings[0]
    assert_state(checkpoints.latest(TEMPLATE), 2)


def test_messages_say_what_was_wrong_and_none_is_left(tmp_path):
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=5, warn=warnings.append)
    for step in (1, 2, 3, 4):
        checkpoints.save(step, state_of(step), {})
    (checkpoints.path(1) / STATE).unlink()
    (checkpoints.path(2) / "manifest.json").unlink()
    with open(checkpoints.path(3) / STATE, "ab") as file:
        file.write(b"x")
    os.rename(checkpoints.path(4), checkpoints.path(5))
    with pytest.raises(CheckpointError, match="every checkpoint"):
        checkpoints.latest(TEMPLATE)
    assert [message.split(" is damaged")[0][-6:] for message in warnings] == [f"step {n}" for n in (5, 3, 2, 1)]
    for message, words in zip(
        warnings, ("holds step 4", "bytes", "manifest.json is missing", f"{STATE} is missing"), strict=True
    ):
        assert words in message


def test_another_configuration_is_an_error_not_a_fallback(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1), {})
    with pytest.raises(CheckpointError, match=r"another configuration.*'multiplier'.*\(\), expected \(3,\)"):
        checkpoints.latest(TEMPLATE._replace(multiplier=jax.ShapeDtypeStruct((3,), jnp.float32)))


def test_what_extra_refers_to_can_be_checked_too(tmp_path):
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=3, warn=warnings.append)
    for step in (1, 2, 3):
        checkpoints.save(step, state_of(step), {"rows": 10 * step})
    (checkpoints.path(3) / STATE).write_bytes(b"")
    asked: list[dict] = []

    def check_with(intact: int):
        def check(extra):
            asked.append(extra)
            if extra["rows"] > intact:
                raise CheckpointError(f"the segment of row {extra['rows']} is missing")

        return check

    assert_state(checkpoints.latest(TEMPLATE, check_with(10)), 1)
    assert asked == [{"rows": 20}, {"rows": 10}]  # not of a checkpoint that is damaged anyhow
    assert [message.split(":")[0] for message in warnings] == [
        f"the checkpoint of step {step} is damaged and is not used" for step in (3, 2)
    ]
    assert "the segment of row 20 is missing" in warnings[1]
    assert_state(checkpoints.latest(TEMPLATE, check_with(20)), 2)
    with pytest.raises(CheckpointError, match=r"every checkpoint.*steps 1, 2, 3"):
        checkpoints.latest(TEMPLATE, check_with(0))


@pytest.mark.parametrize(("value", "dtype"), [(np.nan, jnp.float32), (-np.inf, jnp.bfloat16)])
def test_non_finite_numbers_are_not_saved(tmp_path, value, dtype):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1), {})
    bad = state_of(2)
    bad.params["half"] = jnp.asarray([1.0, value], dtype)
    with pytest.raises(NonFiniteError, match=r"step 2.*'params/half'.*1 non-finite number of 2"):
        checkpoints.save(2, bad, {})
    assert entries(tmp_path) == ["00000001"]
    assert_state(checkpoints.latest(TEMPLATE), 1)


def test_a_damaged_newer_one_never_outlives_a_good_save(tmp_path):
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=1, warn=warnings.append)
    checkpoints.save(100, state_of(100), {})
    shutil.copytree(checkpoints.path(100), checkpoints.path(200))
    assert_state(checkpoints.latest(TEMPLATE), 100)
    checkpoints.save(150, state_of(150), {})
    assert checkpoints.steps() == [150]
    checkpoints.save(150, state_of(150), {"again": True})
    assert some(checkpoints.latest(TEMPLATE)).extra == {"again": True}
    assert entries(tmp_path) == ["00000150"]


def test_reading_touches_nothing(tmp_path):
    Checkpoints(tmp_path / "c").save(1, state_of(1), {})
    (tmp_path / "c" / ".tmp-00000002").mkdir()
    reader = Checkpoints(tmp_path / "c", read_only=True)
    assert_state(reader.latest(TEMPLATE), 1)
    assert entries(tmp_path / "c") == [".tmp-00000002", "00000001"]
    with pytest.raises(ValueError, match="reading only"):
        reader.save(2, state_of(2), {})
    assert Checkpoints(tmp_path / "absent", read_only=True).latest(TEMPLATE) is None
    assert not (tmp_path / "absent").exists()


def test_a_reader_survives_the_trainer_removing_what_it_reads(tmp_path, monkeypatch):
    writer = Checkpoints(tmp_path, keep=1)
    writer.save(1, state_of(1), {})
    warnings: list[str] = []
    reader = Checkpoints(tmp_path, read_only=True, warn=warnings.append)
    verify = files.verify_manifest

    def verify_late(path):
        if path.name == "00000001":
            writer.save(2, state_of(2), {})
        return verify(path)

    monkeypatch.setattr(files, "verify_manifest", verify_late)
    assert_state(reader.latest(TEMPLATE), 2)
    assert warnings == []


# --- failing system calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "resave"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_save_that_fails_at_any_call_loses_nothing(tmp_path, monkeypatch, number, resave):
    failures, step = 0, 2 if resave else 3
    for n in range(100):
        directory = tmp_path / str(n)
        warnings: list[str] = []
        checkpoints = Checkpoints(directory, keep=2, warn=warnings.append)
        checkpoints.save(1, state_of(1), {})
        checkpoints.save(2, state_of(2), {})
        error = None
        with failing_call(monkeypatch, ("fsync", "rename", "replace", "mkdir", "rmdir"), n, number) as calls:
            try:
                checkpoints.save(step, state_of(step), {})
            except RunError as caught:
                error = caught
        if len(calls) <= n:
            assert error is None
            assert failures >= 7
            return
        if error is None:  # only removing old files failed: what is left is reported, and the save stands
            assert warnings or not list(directory.glob(".*"))
        else:
            failures += 1
            assert f"the checkpoint of step {step}" in str(error)
            assert ("the disk is full" in str(error)) == (number == errno.ENOSPC)
            assert "--resume" in str(error)
            assert not list(directory.glob(".tmp-*"))  # the space is free again at once
        assert set(checkpoints.steps()) >= {2}
        assert some(checkpoints.latest(TEMPLATE)).step in ((3,) if error is None and not resave else (2, 3))
        again = Checkpoints(directory, keep=2)
        restored = some(again.latest(TEMPLATE))
        assert_state(restored, restored.step)
        again.save(4, state_of(4), {})
        assert again.steps()[-1] == 4
        assert len(again.steps()) == 2
        assert not [name for name in entries(directory) if name.startswith(".")]
    pytest.fail("the save never got through")


RESAVE = """
    import numpy as np
    from fidec.store.checkpoint import Checkpoints

    def state_of(step):
        return {"w": np.full((3, 3), step, np.float32), "step": np.asarray(step, np.int32)}

    def prepare(directory):
        for step in (1, 2):
            Checkpoints(directory, keep=9).save(step, state_of(step), {})

    def work(directory, before):
        Checkpoints(directory, keep=1).save(2, state_of(2), {"new": True})
"""


def test_sigkill_at_every_stage_of_a_save_that_replaces_one(tmp_path):
    """A save of a new step is killed in test_replay_store.py."""
    template = {"w": jax.ShapeDtypeStruct((3, 3), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    outcomes = set()
    directories = killed_at_every_write(tmp_path, RESAVE)
    assert len(directories) >= 12
    for directory in directories:
        warnings: list[str] = []
        reader = Checkpoints(directory, read_only=True, warn=warnings.append)
        for step in reader.steps():  # whatever has a final name is whole, also what was being removed
            files.verify_manifest(reader.path(step))
        checkpoints = Checkpoints(directory, keep=1, warn=warnings.append)
        restored = some(checkpoints.latest(template))
        assert restored.step == 2
        assert float(restored.state["w"][0, 0]) == restored.step == int(restored.state["step"])
        outcomes.add(bool(restored.extra))
        checkpoints.save(9, {"w": np.full((3, 3), 9, np.float32), "step": np.asarray(9, np.int32)}, {})
        assert some(checkpoints.latest(template)).step == 9
        assert entries(directory) == ["00000009"]
        assert warnings == []
    assert outcomes == {False, True}


FULL = """
    import shutil, sys
    from pathlib import Path
    import jax, numpy as np
    from fidec.errors import RunError
    from fidec.store.checkpoint import Checkpoints
    from fidec.store.logs import JsonlLog, read_jsonl
    from fidec.store.logs import TensorBoardLog
    from fidec.store.replay import ReplayStore, Rows
    from fidec.types import Batch

    disk = Path(sys.argv[1])
    def expect_full(action, words):
        try:
            for n in range(2_000):
                action(n)
        except RunError as error:
            assert "the disk is full" in str(error) and words in str(error), error
            return n
        raise AssertionError("never full")

    def state_of(step):
        return {"w": np.full(20_000, step, np.float32)}
    template = {"w": jax.ShapeDtypeStruct((20_000,), np.float32)}
    checkpoints = Checkpoints(disk / "checkpoints", keep=3)
    assert expect_full(lambda n: checkpoints.save(n, state_of(n), {}), "the checkpoint of step 3") == 3
    assert checkpoints.steps() == [0, 1, 2] and checkpoints.latest(template).step == 2

    log = JsonlLog(disk / "train.jsonl")
    n = expect_full(lambda n: log.write({"step": n, "text": "x" * 1000}), "train.jsonl")
    assert [event["step"] for event in read_jsonl(log.path)] == list(range(n))
    assert log.position() == log.path.stat().st_size and log.path.read_bytes().endswith(b"}\\n")
    try:
        board = TensorBoardLog(disk / "tb")
        expect_full(lambda n: board.write(n, {"training/loss": 1.0}), "TensorBoard")
        board.close()
    except RunError as error:
        assert "TensorBoard" in str(error)
    shutil.rmtree(checkpoints.path(0))
    assert checkpoints.save(3, state_of(3), {}) and checkpoints.latest(template).step == 3

    for step in (1, 2):
        shutil.rmtree(checkpoints.path(step))
    def rows_of(number):
        wide, narrow = np.full((50, 50), number, np.float32), np.full(50, number, np.float32)
        return Rows(Batch(wide, wide, narrow, narrow, wide, wide), *[narrow] * 4)
    store, index = ReplayStore(disk / "replay"), []
    def flush(number):
        store.append(rows_of(number))
        index[:] = store.flush()
    number = expect_full(flush, "of the replay buffer")
    assert number == len(index) > 1 and store.count == 50 * (number + 1)
    assert sorted(path.name for path in store.directory.iterdir()) == [entry["name"] for entry in index]
    ReplayStore(store.directory).verify(index)
    shutil.rmtree(checkpoints.path(3))
    rows = ReplayStore(store.directory).restore(store.flush())
    assert rows.batch.rewards.tolist() == [float(i // 50) for i in range(50 * (number + 1))]
    print("survived")
"""


def test_a_full_disk(tmp_path):
    run_on_small_disk(tmp_path, 300, FULL)
