"""Jobs side by side: workers, cores, failures, signals, and jobs that another process has. The children are fakes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from fidec.bench import schedule
from fidec.bench.jobs import last_row
from fidec.launch import share_cores
from fidec.store.lock import is_locked
from fidec.train.loop import Signals

# What stands in for `fidec train`: it notes its start and its cores, works for a while, notes its end.
FAKE = """
import json, os, signal, sys, time
out, seconds, code = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
def stop(*_):
    open(out + '.saved', 'w').close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
with open(out + '.starts', 'a') as file:
    file.write(json.dumps(sorted(os.sched_getaffinity(0))) + '\\n')
time.sleep(seconds)
print('the end of', out)
if code == 0:
    open(out + '.done', 'w').close()
sys.exit(code)
"""


class FakeJob:
    def __init__(self, directory: Path, name: str, seconds: float = 0.0, code: int = 0):
        self.name, self.path, self.words = name, directory / name, [str(seconds), str(code)]
        self.log = directory / f"{name}.log"

    def state(self) -> str:
        return "done" if Path(f"{self.path}.done").exists() else "running" if self.starts() else "new"

    def busy_elsewhere(self) -> bool:
        return False

    def busy(self) -> bool:
        return is_locked(self.log)

    def command(self) -> list[str]:
        return [str(self.path), *self.words]

    def starts(self) -> list[str]:
        path = Path(f"{self.path}.starts")
        return path.read_text().splitlines() if path.exists() else []


class Notes:
    """A watcher that remembers."""

    def __init__(self, on_show=lambda running: None):
        self.begun, self.ended, self.most, self.on_show = [], [], 0, on_show

    def begins(self, job, how):
        self.begun.append((job.name, how))

    def ends(self, outcome):
        self.ended.append((outcome.job.name, outcome.state))

    def shows(self, running, waiting):
        self.most = max(self.most, len(running))
        self.on_show(running)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))
    monkeypatch.setattr(schedule, "PAUSE", 0.01)


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_workers_share_the_cores_and_a_failure_stops_nobody(tmp_path):
    jobs = [FakeJob(tmp_path, f"job{k}", 0.1, 3 if k == 1 else 0) for k in range(5)]
    notes = Notes()
    outcomes = schedule.see_through(jobs, 2, notes, Signals())
    assert notes.most == 2
    assert {o.job.name: o.state for o in outcomes} == {
        **dict.fromkeys(("job0", "job2", "job3", "job4"), "done"),
        "job1": "failed",
    }
    (failed,) = [o for o in outcomes if o.state == "failed"]
    assert "FAILED with exit code 3" in failed.detail
    assert f"the end of {failed.job.path}" in failed.detail
    shares = [str(share) for share in share_cores(2)]
    assert {line for job in jobs for line in job.starts()} <= set(shares)
    assert all(len(job.starts()) == 1 for job in jobs)

    notes = Notes()  # again: only the one that failed
    schedule.see_through(jobs, 2, notes, Signals())
    assert notes.begun == [("job1", "goes on")]
    assert sorted(notes.ended) == sorted((job.name, "failed" if job.name == "job1" else "done") for job in jobs)


def test_shares_are_a_partition_of_the_cores():
    cores = sorted(os.sched_getaffinity(0))
    for workers in (1, 2, len(cores)):
        dealt = sorted(core for share in share_cores(workers) for core in share)
        assert set(dealt) == set(cores)
        assert workers > len(cores) or dealt == cores
    assert all(len(share) == 1 for share in share_cores(len(cores) + 3))


def test_a_signal_stops_all_children_which_save(tmp_path):
    jobs = [FakeJob(tmp_path, f"job{k}", 60.0) for k in range(3)]
    signals = Signals()

    def on_show(running):
        if len(running) == 2 and all(job.starts() for job in running):
            signals(signal.SIGTERM, None)

    outcomes = schedule.see_through(jobs, 2, Notes(on_show), signals)
    assert [(o.job.name, o.state) for o in outcomes] == [("job0", "stopped"), ("job1", "stopped")]
    assert sorted(p.stem for p in tmp_path.glob("*.saved")) == ["job0", "job1"]
    assert not any(job.busy() for job in jobs)


def test_an_error_in_the_suite_itself_leaves_no_child_behind(tmp_path):
    job = FakeJob(tmp_path, "job", 60.0)

    def on_show(running):
        if running[0].starts():
            raise RuntimeError("a broken terminal")

    with pytest.raises(RuntimeError, match="broken terminal"):
        schedule.see_through([job], 1, Notes(on_show), Signals())
    assert not job.busy()


def test_a_killed_child_is_named_and_goes_on_with_the_next_command(tmp_path):
    job = FakeJob(tmp_path, "job", 60.0)

    def kill():
        wait_for(job.starts)
        pid = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if str(job.path).encode() in _words(p))
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    (outcome,) = schedule.see_through([job], 1, Notes(), Signals())
    thread.join()
    assert outcome.state == "failed"
    assert "was killed by SIGKILL" in outcome.detail
    job.words[0] = "0"
    notes = Notes()
    assert schedule.see_through([job], 1, notes, Signals())[0].state == "done"
    assert notes.begun == [("job", "goes on")]


def _words(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_child_of_a_killed_suite_is_waited_for_and_not_run_twice(tmp_path):
    job = FakeJob(tmp_path, "job", 1.0)
    begun = schedule._begin(job, [0], Notes())  # all that a killed suite leaves: its child, which has the lock
    wait_for(job.starts)
    assert job.busy()
    notes = Notes()
    (outcome,) = schedule.see_through([job], 1, notes, Signals())
    assert outcome.state == "done"
    assert notes.begun == [("job", "is run by another process: waits for it")]
    assert len(job.starts()) == 1
    assert begun.process.wait() == 0


def test_a_torn_last_line_is_not_read(tmp_path):
    path = tmp_path / "time.jsonl"
    assert last_row(path) == {}
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "b": 3}\n{"step": 3, "b"')
    assert last_row(path) == {"step": 2, "b": 3}
    assert last_row(path, "a") == {"step": 1, "a": 2}
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "b"{"step": 3, "b": 3}\n')  # torn, and then gone on with
    assert last_row(path) == {"step": 1, "a": 2}


def test_the_last_evaluation_is_found_behind_many_rows(tmp_path):
    rows = [{"step": 1, "time/evaluation": 9.0}, *({"step": k, "time/steps_per_second": 1.0} for k in range(500))]
    (tmp_path / "time.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_row(tmp_path / "time.jsonl", "evaluation") == rows[0]


def test_workers_share_the_memory_of_a_gpu(monkeypatch):
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    for each in (name, "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(each, raising=False)
    assert schedule.memory_share(3) == {name: "0.300"}
    assert schedule.memory_share(1) == {}
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.2")
    assert schedule.memory_share(3) == {}
