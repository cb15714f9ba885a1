"""Leases: one writer where flock does nothing, whatever stops, continues or has a wrong clock."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidec.errors import BusyError, ConfigError
from fidec.store import lease, lock
from fidec.store.checkpoint import Checkpoints
from fidec.store.directories import replacing_directory
from fidec.store.lease import TakenError
from fidec.store.lock import GoneError
from fidec.store.logs import RunLog
from fidec.store.rundir import RunDirectory
from helpers import some
from helpers.faults import move_run
from helpers.jobs import wait_for
from helpers.runs import fingerprint

SECONDS = 2.0
# Opens a run; then each line of its input makes it write everything that a run writes.
WRITER = """
    import sys, time
    import numpy as np
    shift = float(sys.argv[2])
    real = time.time
    time.time = lambda: real() + shift  # a clock that is wrong
    from fidec.errors import FidecError
    from fidec.store.checkpoint import Checkpoints
    from fidec.store.logs import RunLog
    from fidec.store.rundir import RunDirectory
    try:
        run = RunDirectory.open(sys.argv[1])
        log = RunLog(run.path, tensorboard=False, verify=run.verify)
        checkpoints = Checkpoints(run.checkpoints, verify=run.verify)
    except FidecError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    print("held", flush=True)
    for step, line in enumerate(sys.stdin, 1):
        refused = []
        for write in (
            lambda: log.train(step, {"loss": 1.0}),
            lambda: log.time(step, {"time/steps_per_second": 1.0}),
            lambda: checkpoints.save(step, {"w": np.zeros(3)}),
            lambda: run.write_status("running", step),
            lambda: run.write_config({"a": step}),
        ):
            try:
                write()
            except FidecError as error:
                refused.append(f"{type(error).__name__}: {error}")
        print(len(refused), *refused[:1], flush=True)
    run.close()
"""


@pytest.fixture(autouse=True)
def _only_leases(monkeypatch):
    """flock does nothing, as on some shared file systems."""
    monkeypatch.setenv("FIDEC_LOCKS", "lease")
    monkeypatch.setenv("FIDEC_LEASE_SECONDS", str(SECONDS))


@pytest.fixture
def run(tmp_path):
    RunDirectory.create(tmp_path / "run").close()
    return tmp_path / "run"


class Writer:
    def __init__(self, run: Path, clock: float = 0.0):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(run), str(clock)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, text=True, **pipes)

    def said(self) -> str:
        return self.process.stdout.readline().strip()  # type: ignore[union-attr]

    def write(self) -> str:
        self.process.stdin.write("\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return self.said()

    def end(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def writer(run):
    started: list[Writer] = []

    def start(clock: float = 0.0) -> Writer:
        started.append(Writer(run, clock))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def digest(run: Path) -> dict[str, str]:
    """Every file of a run but its lease."""
    paths = [path for path in sorted(run.rglob("*")) if path.is_file() and path.parent.name != "lease"]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("clock", [86_400.0, -86_400.0])
def test_a_second_process_is_refused_while_the_first_lives_whatever_its_clock_says(writer, clock):
    first = writer()
    assert first.said() == "held"
    second = writer(clock)
    assert f"is in use by process {first.process.pid} on host" in second.said()
    assert second.end() == BusyError.exit_code
    assert first.write() == "0"
    assert first.end() == 0
    third = writer(clock)  # the lease was released: nobody waits
    assert third.said() == "held"
    assert "Waiting" not in third.process.communicate()[1]


def test_of_several_processes_that_start_together_one_writes(writer):
    started = [writer() for _ in range(4)]
    said = [each.said() for each in started]
    assert said.count("held") == 1
    assert sum("is in use by" in text for text in said) == 3


@pytest.mark.parametrize("clock", [86_400.0])
def test_a_stopped_process_that_continues_after_its_lease_was_taken_changes_nothing(writer, run, clock):
    first = writer()
    assert first.said() == "held"
    assert first.write() == "0"
    os.kill(first.process.pid, signal.SIGSTOP)
    second = writer(clock)
    assert second.said() == "held"
    assert second.write() == "0"
    before = digest(run)
    os.kill(first.process.pid, signal.SIGCONT)
    time.sleep(SECONDS / 3)  # its thread renews nothing
    answer = first.write()
    assert answer.startswith(f"5 TakenError: {run} was taken by process {second.process.pid} on host")
    assert "changes nothing more there" in answer
    first.end()
    assert digest(run) == before
    assert lease.newest(run).values["pid"] == second.process.pid
    assert second.write() == "0"


def test_a_write_in_progress_goes_into_the_old_file(run):
    """A process may be stopped between the check and the write. The next holder therefore has new files."""
    (run / "train.jsonl").write_text("")
    first = RunDirectory.open(run)
    log = RunLog(run, tensorboard=False)  # without the check
    log.train(1, {"loss": 1.0})
    os.environ["FIDEC_LEASE_SECONDS"] = "0.1"
    first._held._lease._ended.set()  # type: ignore[union-attr]  # its thread is stopped
    with RunDirectory.open(run) as second:
        log.train(2, {"loss": 2.0})
        assert [row["step"] for row in second.read_jsonl("train")] == [1]
    with pytest.raises(TakenError):
        first.write_status("done", 1)


def test_a_checkpoint_is_not_visible_if_the_run_was_taken_while_it_was_written(run):
    first = RunDirectory.open(run)
    written = []

    def taken_at_the_end():
        if any((run / "checkpoints").glob(".tmp-*/manifest.json")):
            written.append(True)
            (run / "lease" / "00000009").write_text("{}")  # another process takes it now
        first.verify()

    checkpoints = Checkpoints(run / "checkpoints", verify=taken_at_the_end)
    with pytest.raises(TakenError):
        checkpoints.save(1, {"w": np.zeros(3)})
    assert written == [True]
    assert list((run / "checkpoints").iterdir()) == []


def test_checkpoints_of_the_next_holder_are_not_removed(run):
    """The process was stopped between a save and the removal of others. Steps later than its own may be new."""
    first = RunDirectory.open(run)

    def taken_after_the_save():
        if (run / "checkpoints" / "00000001").exists():
            (run / "checkpoints" / "00000002").mkdir(exist_ok=True)
            (run / "checkpoints" / ".tmp-0123abcd-00000003").mkdir(exist_ok=True)
            (run / "lease" / "00000009").write_text("{}")
        first.verify()

    with pytest.raises(TakenError):
        Checkpoints(run / "checkpoints", verify=taken_after_the_save).save(1, {"w": np.zeros(3)})
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        *("00000001", "00000002", ".tmp-0123abcd-00000003")
    }


def test_a_policy_and_a_status_are_not_replaced_if_the_run_was_taken_while_they_were_written(run):
    first = RunDirectory.open(run)
    first.write_status("running", 1)
    (run / "lease" / "00000009").write_text("{}")
    with pytest.raises(TakenError):
        first.write_status("running", 2)
    with pytest.raises(TakenError), replacing_directory(run / "policy", first.verify):
        pass
    assert some(RunDirectory.open(run, read_only=True).read_status())["step"] == 1
    assert not list(run.glob(".*"))


def test_after_a_kill_the_lock_of_this_machine_lets_the_next_process_in_at_once(run, monkeypatch):
    """On a shared file system with flock, the lease alone would have to be silent for a while first."""
    monkeypatch.setenv("FIDEC_LOCKS", "auto")
    monkeypatch.setattr(lock, "is_shared", lambda directory: True)
    with RunDirectory.open(run):
        left = lease.newest(run).content
    (run / "lease" / "00000099").write_bytes(left.replace(b'"released": true', b'"released": false'))
    monkeypatch.setattr(lease, "_watch", lambda *_: pytest.fail("it waited"))
    with RunDirectory.open(run):
        assert lease.newest(run).number == 100
        with pytest.raises(BusyError):
            RunDirectory.open(run)


def test_a_scheduler_waits_for_a_lease_until_it_is_silent(run):
    assert not lock.is_held(run / "lock")
    held = RunDirectory.open(run)
    assert lock.is_held(run / "lock")
    held._held._lease._ended.set()  # type: ignore[union-attr]  # its thread is stopped
    wait_for(lambda: not lock.is_held(run / "lock"), 10)


def test_a_file_system_of_one_machine_has_no_lease(tmp_path, monkeypatch):
    monkeypatch.delenv("FIDEC_LOCKS")
    table = tmp_path / "mounts"
    table.write_text(
        f"/dev/sda / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\ntmpfs {tmp_path}/here tmpfs rw 0 0\n"
    )
    assert not lock.is_shared(Path("/etc"), table)
    assert lock.is_shared(tmp_path, table)
    assert lock.is_shared(tmp_path / "runs", table)
    assert not lock.is_shared(tmp_path / "here" / "runs", table)
    monkeypatch.setattr(lock, "is_shared", lambda directory: False)
    with RunDirectory.create(tmp_path / "run"):
        assert not (tmp_path / "run" / "lease").exists()
    monkeypatch.setattr(lock, "is_shared", lambda directory: True)
    with RunDirectory.open(tmp_path / "run"):
        assert (tmp_path / "run" / "lease" / "00000001").exists()
    monkeypatch.setenv("FIDEC_LOCKS", "leases")
    with pytest.raises(ConfigError, match="expected auto, flock or lease"):
        RunDirectory.open(tmp_path / "run")


def test_the_lease_of_another_run_at_the_same_path_is_left_alone(run, tmp_path):
    """It has the same number. The thread goes on in the run that was moved, and releases that one."""
    with RunDirectory.open(run) as held:
        moved = move_run("renamed", run, shutil.copytree(run, tmp_path / "other"))
        before = digest(run) | {"lease": lease.newest(run).content.decode()}
        held._held._lease._write()  # type: ignore[union-attr]
        with pytest.raises(GoneError, match=f"no longer at {run}"):
            held.write_status("running", 1)
    assert digest(run) | {"lease": lease.newest(run).content.decode()} == before
    assert lease.newest(some(moved)).released


@pytest.mark.slow
def test_a_stopped_training_that_continues_too_late_ends_and_the_run_is_as_if_uninterrupted(npz, tmp_path, processes):
    def argv(out: str) -> tuple[object, ...]:
        options = ("--batch-size", 16, "--checkpoint-interval", 50, "--log-interval", 50, "--algo.hidden", 8)
        return ("train", "--data", f"npz:{npz}", "--algo", "bc", "--steps", 3000, *options, "--out", tmp_path / out)

    assert processes.run(*argv("alone")).returncode == 0
    first = processes.start(*argv("taken"))
    wait_for(lambda: any((tmp_path / "taken" / "checkpoints").glob("0*")), 120)
    os.kill(first.pid, signal.SIGSTOP)
    second = processes.run("train", "--resume", tmp_path / "taken")
    assert second.returncode == 0, second.stderr
    before = digest(tmp_path / "taken")
    os.kill(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=120)
    assert first.returncode == BusyError.exit_code, said
    assert "changes nothing more there" in said
    assert digest(tmp_path / "taken") == before
    assert fingerprint(tmp_path / "taken", 3000) == fingerprint(tmp_path / "alone", 3000)
