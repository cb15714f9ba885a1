"""Checkpoints under bit flips, truncation, crashes at every stage of a save, and full disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from fidec.store import files
from fidec.store.checkpoint import STATE, Checkpoints


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
    restored = Checkpoints(tmp_path / "c", keep=2).latest(TEMPLATE)
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


@pytest.mark.parametrize(("damage", "count"), [("flip", 300), ("truncate", 60)])
def test_damage_anywhere_is_detected_and_the_previous_one_used(tmp_path, damage, count):
    warnings: list[str] = []
    checkpoints = Checkpoints(tmp_path, warn=warnings.append)
    checkpoints.save(1, state_of(1), {"positions": {"train": 11, "eval": 0}})
    checkpoints.save(2, state_of(2), {"positions": {"train": 22, "eval": 5}})
    assert_state(checkpoints.latest(TEMPLATE), 2)  # the control: undamaged, it is accepted
    assert warnings == []
    found = [path for path in checkpoints.path(2).rglob("*") if path.is_file()]
    assert {path.name for path in found} == {STATE, "manifest.json"}
    random = np.random.default_rng(0)
    for number in range(count):
        path = found[number % len(found)]
        good = path.read_bytes()
        bad = bytearray(good)
        at = int(random.integers(len(good)))
        if damage == "flip":
            bad[at] ^= 1 << int(random.integers(8))
        else:
            del bad[at:]
        path.write_bytes(bad)
        warnings.clear()
        assert_state(checkpoints.latest(TEMPLATE), 1)
        assert len(warnings) == 1
        assert "step 2" in warnings[0]
        assert str(path) in warnings[0]
        path.write_bytes(good)
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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
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
    assert checkpoints.latest(TEMPLATE).extra == {"again": True}
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("resave", [False, True])
def test_a_save_that_fails_at_any_call_loses_nothing(tmp_path, monkeypatch, number, resave):
    """The n-th fsync, rename, replace, mkdir or open-for-writing fails, for every n."""
    failures = 0
    for n in range(100):
        directory = tmp_path / str(n)
        warnings: list[str] = []
        checkpoints = Checkpoints(directory, keep=2, warn=warnings.append)
        checkpoints.save(1, state_of(1), {})
        checkpoints.save(2, state_of(2), {})
        calls = 0

        def failing(function, n=n):
            def call(*arguments, **options):
                nonlocal calls
                calls += 1
                if calls - 1 == n:
                    raise OSError(number, os.strerror(number))
                return function(*arguments, **options)

            return call

        step = 2 if resave else 3
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename", "replace", "mkdir", "rmdir"):
                patch.setattr(os, name, failing(getattr(os, name)))
            try:
                checkpoints.save(step, state_of(step), {})
                error = None
            except RunError as caught:
                error = caught
        if calls <= n:
            assert error is None
            assert failures >= 7
            return
        if error is None:  # only the clearing up failed: reported, but the save stands
            assert warnings
        else:
            failures += 1
            assert f"the checkpoint of step {step}" in str(error)
            assert ("the disk is full" in str(error)) == (number == errno.ENOSPC)
            assert "--resume" in str(error)
            assert not list(directory.glob(".tmp-*"))  # the space is given back at once
        assert set(checkpoints.steps()) >= {2}
        assert checkpoints.latest(TEMPLATE).step in ((3,) if error is None and not resave else (2, 3))
        again = Checkpoints(directory, keep=2)
        restored = again.latest(TEMPLATE)
        assert_state(restored, restored.step)
        again.save(4, state_of(4), {})
        assert again.steps()[-1] == 4
        assert len(again.steps()) == 2
        assert not [name for name in entries(directory) if name.startswith(".")]
    pytest.fail("the save never got through")


# --- killed processes ---------------------------------------------------------------------------------------

KILLER = """
    import os, shutil, signal, sys
    from pathlib import Path
    import numpy as np
    from fidec.store.checkpoint import Checkpoints

    def state_of(step):
        return {"w": np.full((3, 3), step, np.float32), "step": np.asarray(step, np.int32)}

    root, resave, keep = Path(sys.argv[1]), sys.argv[2] == "resave", int(sys.argv[3])
    old = Checkpoints(root / "original", keep=9)
    for step in (1, 2):
        old.save(step, state_of(step), {})

    def die_at(n):
        seen = 0
        def event(name, arguments):
            nonlocal seen
            if name == "open":
                relevant = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            else:
                relevant = name in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "fsync")
            if relevant:
                if seen == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
        real = os.fsync
        os.fsync = lambda descriptor: (event("fsync", ()), real(descriptor))[1]
        sys.addaudithook(event)

    for n in range(200):
        directory = root / f"killed-{n:03d}"
        shutil.copytree(root / "original", directory)
        child = os.fork()
        if child == 0:
            checkpoints = Checkpoints(directory, keep=keep)
            die_at(n)
            checkpoints.save(2 if resave else 3, state_of(2 if resave else 3), {"new": True})
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status == 0:
            print(n)
            sys.exit(0)
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    sys.exit("never finished")
"""


@pytest.mark.parametrize(("mode", "keep"), [("new", 2), ("new", 1), ("resave", 1)])
def test_sigkill_at_every_stage_of_a_save(tmp_path, mode, keep):
    """A child is killed before its n-th change to the disk, for every n, of a save with its clearing up."""
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path), mode, str(keep)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    stages = int(run.stdout)
    assert stages >= 12
    template = {"w": jax.ShapeDtypeStruct((3, 3), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    outcomes = set()
    for n in range(stages):
        directory = tmp_path / f"killed-{n:03d}"
        warnings: list[str] = []
        reader = Checkpoints(directory, read_only=True, warn=warnings.append)
        for step in reader.steps():  # whatever has a final name is whole, also what was being removed
            files.verify_manifest(reader.path(step))
        if mode == "new":
            assert reader.latest(template).step in (2, 3)
        checkpoints = Checkpoints(directory, keep=keep, warn=warnings.append)
        restored = checkpoints.latest(template)
        assert restored.step in (2, 3)
        assert float(restored.state["w"][0, 0]) == restored.step == int(restored.state["step"])
        outcomes.add((restored.step, bool(restored.extra)))
        state = {"w": np.full((3, 3), 9, np.float32), "step": np.asarray(9, np.int32)}
        checkpoints.save(9, state, {})
        assert checkpoints.latest(template).step == 9
        assert len(entries(directory)) == keep
        assert not [name for name in entries(directory) if name.startswith(".")]
        assert warnings == []
    assert outcomes == ({(2, False), (3, True)} if mode == "new" else {(2, False), (2, True)})


# --- a disk that is really full -----------------------------------------------------------------------------

FULL = """
    import shutil, sys
    from pathlib import Path
    import jax, numpy as np
    from fidec.errors import RunError
    from fidec.store.checkpoint import Checkpoints
    from fidec.store.logs import JsonlLog, TensorBoardLog, read_jsonl

    disk = Path(sys.argv[1])
    def state_of(step):
        return {"w": np.full(20_000, step, np.float32)}
    template = {"w": jax.ShapeDtypeStruct((20_000,), np.float32)}
    checkpoints = Checkpoints(disk / "checkpoints", keep=3)

    def expect_full(action, words):
        try:
            for n in range(2_000):
                action(n)
        except RunError as error:
            assert "the disk is full" in str(error) and words in str(error), error
            return n
        raise AssertionError("never full")

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
    print("survived")
"""


def test_a_full_disk(tmp_path):
    mount = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=300k none "$0" && exec "$@"',
        str(tmp_path),
    ]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("no private tmpfs here")
    command = [*mount, sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout == "survived\n", run.stderr
