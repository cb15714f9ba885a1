"""Jobs side by side: workers, cores, failures, signals, and jobs that another process has. The children are fakes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fidec.bench import schedule
from fidec.bench.job import last_row
from fidec.launch import share_cores
from fidec.store.lock import is_locked
from fidec.train.loop import Signals
from helpers import some

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

    def is_busy_elsewhere(self) -> bool:
        return False

    def is_busy(self) -> bool:
        return is_locked(self.log)

    def command(self) -> list[str]:
        return [str(self.path), *self.words]

    def starts(self) -> list[str]:
        path = Path(f"{self.path}.starts")
        return path.read_text().splitlines() if path.exists() else []


class Notes:
    """A watcher that remembers."""

    def __init__(self, on_show=lambda running: None):
        self.begun, self.ended, self.details, self.most, self.on_show = [], [], [], 0, on_show

    def job_started(self, job, how):
        self.begun.append((job.name, how))

    def job_ended(self, job, state, detail=""):
        self.ended.append((job.name, state))
        self.details.append(detail)

    def update(self, running, waiting):
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


def test_workers_share_the_cores_and_a_failure_does_not_stop_the_others(tmp_path):
    jobs: list[Any] = [FakeJob(tmp_path, f"job{k}", 0.1, 3 if k == 1 else 0) for k in range(5)]
    notes = Notes()
    states = schedule.run_jobs(jobs, 2, notes, Signals())
    assert notes.most == 2
    assert {job.name: state for job, state in states.items()} == {
        **dict.fromkeys(("job0", "job2", "job3", "job4"), "done"),
        "job1": "failed",
    }
    (detail,) = filter(None, notes.details)
    assert "FAILED with exit code 3" in detail
    assert f"the end of {jobs[1].path}" in detail
    shares = [str(share) for share in share_cores(2)]
    assert {line for job in jobs for line in job.starts()} <= set(shares)
    assert all(len(job.starts()) == 1 for job in jobs)

    notes = Notes()  # the same command again runs only the job that failed
    schedule.run_jobs(jobs, 2, notes, Signals())
    assert notes.begun == [("job1", "continues")]
    assert sorted(notes.ended) == sorted((job.name, "failed" if job.name == "job1" else "done") for job in jobs)


def test_a_signal_stops_all_processes_which_save(tmp_path):
    jobs: list[Any] = [FakeJob(tmp_path, f"job{k}", 60.0) for k in range(3)]
    signals = Signals()

    def on_show(running):
        if len(running) == 2 and all(job.starts() for job in running):
            signals(signal.SIGTERM, None)

    states = schedule.run_jobs(jobs, 2, Notes(on_show), signals)
    assert {job.name: state for job, state in states.items()} == {"job0": "stopped", "job1": "stopped"}
    assert sorted(p.stem for p in tmp_path.glob("*.saved")) == ["job0", "job1"]
    assert not any(job.is_busy() for job in jobs)


def test_an_error_in_the_suite_itself_ends_its_processes(tmp_path):
    job: Any = FakeJob(tmp_path, "job", 60.0)

    def on_show(running):
        if running[0].starts():
            raise RuntimeError("a broken terminal")

    with pytest.raises(RuntimeError, match="broken terminal"):
        schedule.run_jobs([job], 1, Notes(on_show), Signals())
    assert not job.is_busy()


def test_a_killed_process_is_reported_and_continued_by_the_next_command(tmp_path):
    job: Any = FakeJob(tmp_path, "job", 60.0)

    def kill():
        wait_for(job.starts)
        pid = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if str(job.path).encode() in _words(p))
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    notes = Notes()
    assert schedule.run_jobs([job], 1, notes, Signals()) == {job: "failed"}
    thread.join()
    assert "was killed by SIGKILL" in notes.details[0]
    job.words[0] = "0"
    notes = Notes()
    assert schedule.run_jobs([job], 1, notes, Signals()) == {job: "done"}
    assert notes.begun == [("job", "continues")]


def _words(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_process_of_a_killed_suite_is_waited_for_and_not_run_twice(tmp_path):
    job: Any = FakeJob(tmp_path, "job", 0.5)
    started = schedule.start(job, [0], Notes())  # a killed suite leaves its process, which has the lock
    assert started is not None
    wait_for(job.starts)
    assert job.is_busy()
    notes = Notes()
    assert schedule.run_jobs([job], 1, notes, Signals()) == {job: "done"}
    assert notes.begun == [("job", "waits for another process that runs it")]
    assert len(job.starts()) == 1
    assert some(started.process).wait() == 0


def test_the_last_row_of_a_log(tmp_path):
    path = tmp_path / "time.jsonl"
    assert last_row(path) == {}
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "b": 3}\n{"step": 3, "b"')  # the last line is incomplete
    assert last_row(path) == {"step": 2, "b": 3}
    assert last_row(path, "a") == {"step": 1, "a": 2}
    path.write_text('{"step": 1, "a": 2}\n{"step": 2, "b"{"step": 3, "b": 3}\n')  # incomplete, then continued
    assert last_row(path) == {"step": 1, "a": 2}
    rows = [{"step": 1, "time/evaluation": 9.0}, *({"step": k, "time/steps_per_second": 1.0} for k in range(500))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_row(path, "evaluation") == rows[0]


def test_workers_share_the_memory_of_a_gpu(monkeypatch):
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    for each in (name, "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(each, raising=False)
    assert schedule.memory_share(3) == {name: "0.300"}
    assert schedule.memory_share(1) == {}
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.2")
    assert schedule.memory_share(3) == {}
