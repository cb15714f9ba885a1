"""Run directories: who may write, what may be deleted, what can be read back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fidec.errors import BusyError, RunError
from fidec.store.checkpoint import Checkpoints
from fidec.store.logs import REPLAYED
from fidec.store.rundir import CONTENTS, RESULTS, RunDirectory
from helpers import some
from helpers.faults import contents, killed_at_every_write

HOLD = """
    import sys
    from fidec.errors import FidecError
    from fidec.store.rundir import RunDirectory
    how, path = sys.argv[1:]
    try:
        run = RunDirectory.open(path) if how == "open" else RunDirectory.create(path, how == "overwrite")
    except FidecError as error:
        print(error, flush=True)
        sys.exit(error.exit_code)
    print("held", flush=True)
    sys.stdin.read()
"""


def start(how, path):
    command = [sys.executable, "-c", textwrap.dedent(HOLD), how, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_reading_a_run_does_not_import_jax():
    code = "import sys; import fidec.store.rundir, fidec.console; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_create_write_and_read_back(tmp_path):
    path = tmp_path / "deep" / "run"
    config = {"task": "cube", "options": {"lr": 3e-4, "hidden": (512, 512), "metric": None}}
    with RunDirectory.create(path) as run:
        assert not run.read_only
        assert run.read_status() is None
        run.write_config(config)
        run.write_environment({"numpy": np.__version__})
        run.write_status("preempted", np.int32(7), "SIGTERM")  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="finished"):
            run.write_status("finished", 7)
    with RunDirectory.open(path, read_only=True) as run:
        assert run.read_config() == {
            "task": "cube",
            "options": {"lr": 3e-4, "hidden": [512, 512], "metric": None},
        }
        assert run.read_environment() == {"numpy": np.__version__}
        status = some(run.read_status())
        assert (status["state"], status["step"], status["reason"]) == ("preempted", 7, "SIGTERM")
        assert run.read_jsonl("train") == []
        run.config.write_text('{"rendering": "exact", "task": "cube"}')  # an option of older versions
        assert run.read_config() == {"task": "cube"}
        run.config.write_text('{"rendering": "fast"}')
        with pytest.raises(RunError, match=r"drawn with --rendering fast"):
            run.read_config()
        run.config.write_text("{")
        with pytest.raises(RunError, match=r"config\.json is damaged"):
            run.read_config()
        run.config.unlink()
        with pytest.raises(RunError, match=r"config\.json is missing"):
            run.read_config()
    named = {run.config, run.environment, run.status, run.run_log, run.checkpoints, run.replay, run.policy}
    named |= {run.init, run.flow}
    logs = {f"{name}.jsonl" for name in (*REPLAYED, "time")} | {"tb"}  # written by `RunLog`
    others = {
        "audit",
        "comparison.json",
        "export",
        "report.html",
        "track.json",
    }  # of other commands
    assert {entry.name for entry in named} | logs | others == set(CONTENTS)


def test_an_existing_run_needs_resume_or_overwrite(tmp_path):
    path = tmp_path / "run"
    with RunDirectory.create(path) as run:
        run.write_config({"a": 1})
        (run.checkpoints / "00000001").mkdir(parents=True)
        (run.checkpoints / "00000001" / "state").write_text("x")
        run.replay.mkdir()
        (run.replay / "00000000.safetensors").write_text("x")
        (path / "exploration.jsonl").write_text("{}\n")
        (path / "notes.txt").write_text("mine")
        (path / ".status.json.1.tmp").write_text("left by a kill")
    with pytest.raises(RunError, match=r"--resume.*--overwrite"):
        RunDirectory.create(path)
    with RunDirectory.open(path) as run:
        assert run.read_config() == {"a": 1}
    before = {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file() and entry.name != "lock"}
    with RunDirectory.create(path, overwrite=True) as run:  # ends before it has begun, so the earlier run stays
        assert sorted(entry.name for entry in path.iterdir()) == [".old-run", "lock", "notes.txt", "run.json"]
        run.write_config({"a": 2})
        run.write_status("failed", 0, "wrong environment")
    after = {entry: entry.read_bytes() for entry in path.rglob("*") if entry.is_file() and entry.name != "lock"}
    assert after == before
    with RunDirectory.create(path, overwrite=True) as run:
        run.delete_earlier()
    assert sorted(entry.name for entry in path.iterdir()) == ["lock", "notes.txt", "run.json"]
    with RunDirectory.create(tmp_path / "new", overwrite=True) as run:
        assert run.path.is_dir()


def test_a_run_that_failed_before_its_first_step_does_not_block_a_new_one(tmp_path):
    def fail(path, step=0):
        with RunDirectory.create(path) as run:
            run.write_config({"env": "wrong"})
            for log in ("train", "eval"):
                (path / f"{log}.jsonl").write_text("")
            run.write_status("failed", step, "wrong environment")
        return run

    for _ in range(2):
        fail(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with RunDirectory.create(tmp_path / "run") as run:
        assert not run.config.exists()
        assert (run.path / "notes.txt").exists()
    kept = [fail(tmp_path / "later", step=1)]
    for name in (*RESULTS, ".old-policy"):
        kept.append(fail(tmp_path / name))
        if name.endswith(".jsonl"):
            (tmp_path / name / name).write_text("{}\n")
        else:
            (tmp_path / name / name).mkdir()
            (tmp_path / name / name / "file").write_text("x")
    for run in kept:
        with pytest.raises(RunError, match="holds a run already"):
            RunDirectory.create(run.path)
        assert run.config.exists()


@pytest.mark.parametrize("name", ["lock", "run.json", "train.jsonl", "run.log", "tb", "policy", ".old-run"])
def test_links_inside_a_run_are_refused_before_anything_is_written(tmp_path, name):
    outside, path = tmp_path / "outside", tmp_path / "run"
    with RunDirectory.create(path) as run:
        run.write_config({"a": 1})
    if name in ("tb", "policy", ".old-run"):
        outside.mkdir()
        (outside / "file").write_text("precious")
    else:
        outside.write_text("precious" if name != "run.json" else (path / name).read_text())
        (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(outside)
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    for attempt in (
        lambda: RunDirectory.create(path),
        lambda: RunDirectory.create(path, overwrite=True),
        lambda: RunDirectory.open(path),
    ):
        with pytest.raises(RunError, match=rf"{name} is a symbolic link.*does not write through links"):
            attempt()
    assert {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()} == before


def test_a_run_directory_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    RunDirectory.create(tmp_path / "runs" / "one").close()
    (tmp_path / "two").symlink_to(tmp_path / "disk" / "one")
    RunDirectory.open(tmp_path / "two").close()


@pytest.mark.parametrize("marker", [None, "{}", "[]", "not json", '{"format": "other"}'])
def test_foreign_directories_are_never_touched(tmp_path, marker):
    path = tmp_path / "home"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text("precious")
    if marker is not None:
        (path / "run.json").write_text(marker)
    before = sorted(path.rglob("*"))
    for attempt in (
        lambda: RunDirectory.create(path),
        lambda: RunDirectory.create(path, overwrite=True),
        lambda: RunDirectory.open(path),
        lambda: RunDirectory.open(path, read_only=True),
    ):
        with pytest.raises(RunError, match=r"run\.json"):
            attempt()
    assert sorted(path.rglob("*")) == before
    assert (path / "config.json").read_text() == "precious"


def test_an_overwritten_run_is_complete_or_given_back_after_a_kill_at_any_time(tmp_path):
    program = """
        from fidec.store.rundir import RunDirectory

        def prepare(directory):
            with RunDirectory.create(directory) as run:
                run.write_config({"a": 1})
                run.policy.mkdir()
                (run.policy / "policy.json").write_text("{}")
                run.write_status("done", 3)

        def work(directory, before):
            run = RunDirectory.create(directory, overwrite=True)
            run.write_config({"a": 2})
            run.delete_earlier()
    """
    old = 0
    for left in killed_at_every_write(tmp_path, program):
        with RunDirectory.open(left) as run:
            if run.config.exists() and run.read_config() == {"a": 1}:
                old += 1
                assert (run.policy / "policy.json").exists()
                assert some(run.read_status())["state"] == "done"
            else:
                assert not run.status.exists()
            assert not list(left.glob(".old-*"))
    assert old > 3


WRITES = """
    import os, shutil
    from pathlib import Path
    import numpy as np
    from fidec.store import files
    from fidec.store.checkpoint import Checkpoints
    from fidec.store.directories import replacing_directory
    from fidec.store.lock import GoneError
    from fidec.store.logs import RunLog
    from fidec.store.replay import ReplayStore, Rows
    from fidec.store.rundir import RunDirectory
    from fidec.types import Batch

    armed = False

    def strike(directory):
        os.rename(directory, f"{directory}-moved")
        if REPLACED:
            shutil.copytree(directory.parent / "other", directory)

    def rows(count):
        numbers = np.zeros((count, 2), np.float32)
        batch = Batch(numbers, numbers, numbers[:, 0], numbers[:, 0], numbers, numbers)
        place = np.zeros(count, np.int32)
        return Rows(batch, place, place, place, np.zeros(count, bool))

    def write(run, step):
        store = ReplayStore(run.replay, run.verify)
        log = RunLog(run.path, verify=run.verify)
        log.train(step, {"loss": 1.0})
        log.evaluation(step, {"score": 1.0}, [{"return": 1.0}])
        log.exploration([{"step": step}])
        store.append(rows(4))
        log.positions()
        checkpoints = Checkpoints(run.checkpoints, keep=1, verify=run.verify)
        checkpoints.save(step, {"w": np.zeros(3)}, {"rows": store.flush()})
        with replacing_directory(run.policy, run.verify) as new:
            files.write_json(new / "policy.json", {"step": step})
            files.write_manifest(new)
        run.write_status("running", step)
        os.close(files.open_to_append(run.run_log, run.verify))
        run.delete_earlier()
        log.close()

    def prepare(directory):
        with RunDirectory.create(directory) as run:
            run.write_config({"a": 1})
            for step in (1, 2):
                write(run, step)
                shutil.rmtree(run.replay)
        other = Path(shutil.copytree(directory, directory.parent / "other"))
        for name in ("replay", ".old-run", ".old-policy", "checkpoints/.old-00000002", "checkpoints/.tmp-00000003"):
            (other / name).mkdir()
            (other / name / "00000000.safetensors").write_text("of the other run")

    def work(directory, before):
        global armed
        with RunDirectory.open(directory) as run:
            armed = True
            try:
                write(run, 3)
                run.verify()
            except GoneError as error:
                assert struck and str(directory) in str(error), error
                return
        assert not struck
"""


@pytest.mark.parametrize("replaced", [True, False], ids=["by another run", "by nothing"])
def test_nothing_is_written_to_the_path_of_a_run_that_was_moved_before_any_write(tmp_path, replaced):
    left = killed_at_every_write(tmp_path, WRITES.replace("REPLACED", str(replaced)))
    assert len(left) > 30
    other = contents(tmp_path / "other")
    for path in left:
        if replaced:
            assert contents(path) == other
        else:
            assert not path.exists()
        with RunDirectory.open(f"{path}-moved") as run:
            assert some(Checkpoints(run.checkpoints, warn=pytest.fail).newest()).step in (2, 3)


def test_missing_and_files(tmp_path):
    with pytest.raises(RunError, match="there is no run at"):
        RunDirectory.open(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        RunDirectory.create(tmp_path / "file", overwrite=True)
    for path, words in (
        (tmp_path / "file" / "below", "A part of the path is a file"),
        (tmp_path / ("x" * 300), "Choose a shorter name"),
        ("/proc/x", "No file or directory can be created there"),
    ):
        with pytest.raises(RunError, match=f"could not write the run directory.*{words}") as caught:
            RunDirectory.create(path)
        assert "intact" not in str(caught.value)


def test_a_start_that_was_killed_before_its_marker_does_not_block(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "lock").write_text("")
    (path / ".run.json.77.tmp").write_text('{"form')
    RunDirectory.create(path).close()
    RunDirectory.open(path).close()


def test_a_second_process_is_refused_and_a_killed_one_does_not_block(tmp_path):
    path = tmp_path / "run"
    holder = start("create", path)
    try:
        assert some(holder.stdout).readline() == "held\n"
        for attempt in (
            lambda: RunDirectory.create(path),
            lambda: RunDirectory.create(path, overwrite=True),
            lambda: RunDirectory.open(path),
        ):
            with pytest.raises(BusyError) as caught:
                attempt()
            assert f"process {holder.pid} on host {socket.gethostname()}" in str(caught.value)
            assert caught.value.exit_code == 75
        RunDirectory.open(path, read_only=True).close()  # looking is allowed
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert json.loads((path / "lock").read_text())["pid"] == holder.pid  # stale, and no obstacle
        with RunDirectory.open(path):
            assert json.loads((path / "lock").read_text())["pid"] == os.getpid()
            with pytest.raises(BusyError):
                RunDirectory.open(path)
        RunDirectory.open(path).close()
    finally:
        holder.kill()
        holder.communicate()


def test_of_several_starts_exactly_one_continues(tmp_path):
    path = tmp_path / "run"
    starts = [start("overwrite", path) for _ in range(4)]
    try:
        said = [some(process.stdout).readline() for process in starts]
        assert said.count("held\n") == 1
        codes = [process.wait() for process, line in zip(starts, said, strict=True) if line != "held\n"]
        assert codes == [75] * 3
    finally:
        for process in starts:
            process.kill()
            process.communicate()


def test_a_worker_that_outlives_a_killed_run_does_not_keep_the_lock(tmp_path):
    code = """
        import subprocess, sys
        from fidec.store.rundir import RunDirectory
        run = RunDirectory.create(sys.argv[1])
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
        print(child.pid, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker = int(some(holder.stdout).readline())
    try:
        with pytest.raises(BusyError):
            RunDirectory.open(tmp_path / "run")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(worker, 0)  # still there
        RunDirectory.open(tmp_path / "run").close()
    finally:
        some(holder.stdin).close()
        some(holder.stdout).close()
        os.kill(worker, signal.SIGKILL)
