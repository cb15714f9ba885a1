"""Jobs side by side: workers, cores, failures, signals, and jobs that another process has. The children are fakes."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fidec.bench import schedule
from fidec.bench.jobs import last_row
from fidec.executors import Request
from fidec.executors.kinds import local
from fidec.executors.kinds.local import LocalPool
from fidec.launch import share_cores
from fidec.store.lock import lock_open_file
from fidec.train.loop import Signals
from helpers import some
from helpers.jobs import FAKE, FakeJob, Notes, seeds_of, wait_for


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))
    monkeypatch.setattr(schedule, "PAUSE", 0.01)


def test_workers_share_the_cores_and_a_failure_does_not_stop_the_others(tmp_path):
    jobs: list[Any] = [FakeJob(tmp_path, f"job{k}", seconds=0.1, code=3 if k == 1 else 0) for k in range(5)]
    notes = Notes()
    states = schedule.run_jobs(jobs, 2, notes, Signals())
    assert notes.most == 2
    assert {job.name: state for job, state in states.items()} == {
        **dict.fromkeys(("job0 0", "job2 0", "job3 0", "job4 0"), "done"),
        "job1 0": "failed",
    }
    (detail,) = filter(None, notes.details)
    assert "FAILED with exit code 3" in detail
    assert f"the end of {jobs[1].directory}" in detail
    assert all(cores in share_cores(2) for job in jobs for cores, _ in job.starts())
    assert all(len(job.starts()) == 1 for job in jobs)

    notes = Notes()  # the same command again runs only the job that failed
    schedule.run_jobs(jobs, 2, notes, Signals())
    assert notes.begun == [("job1 0", "continues", "seed000")]
    assert sorted(notes.ended) == sorted((job.name, "failed" if job is jobs[1] else "done") for job in jobs)


def test_a_signal_stops_all_processes_which_save(tmp_path):
    jobs = [*seeds_of(tmp_path, 2, "a", seconds=60.0), *seeds_of(tmp_path, 3, "b", seconds=60.0)]
    signals = Signals()

    def on_show(running):
        if len(running) == 4 and all(job.starts() for job in running):
            signals(signal.SIGTERM, None)

    states = schedule.run_jobs(jobs, 2, Notes(on_show), signals)
    assert states == dict.fromkeys(jobs[:4], "stopped")
    assert [job.file("saved").exists() for job in jobs] == [True] * 4 + [False]
    assert not any(job.is_busy() for job in jobs)


def test_an_error_in_the_suite_itself_ends_its_processes(tmp_path):
    job: Any = FakeJob(tmp_path, "job", seconds=60.0)

    def on_show(running):
        if running[0].starts():
            raise RuntimeError("a broken terminal")

    with pytest.raises(RuntimeError, match="broken terminal"):
        schedule.run_jobs([job], 1, Notes(on_show), Signals())
    assert not job.is_busy()


def test_a_killed_process_is_reported_and_continued_by_the_next_command(tmp_path):
    """A pack is continued as a pack."""
    jobs = seeds_of(tmp_path, 2, seconds=60.0)

    def kill():
        wait_for(jobs[1].starts)
        pid = next(int(p.name) for p in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _words(p))
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    notes = Notes()
    assert schedule.run_jobs(jobs, 1, notes, Signals()) == dict.fromkeys(jobs, "failed")
    thread.join()
    assert all("was killed by SIGKILL" in detail for detail in notes.details)
    for job in jobs:
        job.want()
    notes = Notes()
    assert schedule.run_jobs(jobs, 1, notes, Signals()) == dict.fromkeys(jobs, "done")
    assert notes.begun == [("job 0", "continues", "seed000"), ("job 1", "continues", "seed000")]
    assert jobs[1].starts()[1][1] == ["--resume", *(str(job.directory) for job in jobs)]


def _words(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_process_of_a_killed_suite_is_waited_for_and_not_run_twice(tmp_path):
    jobs = seeds_of(tmp_path, 2, seconds=0.5)
    # A killed suite leaves its process, which has the locks.
    started = schedule.start(jobs, 0, Notes(), LocalPool(Request()))
    assert started is not None
    wait_for(jobs[1].starts)
    assert all(job.is_busy() for job in jobs)
    notes = Notes()
    assert schedule.run_jobs(jobs, 1, notes, Signals()) == dict.fromkeys(jobs, "done")
    assert notes.begun == [("job 0", "waits for another process that runs it", "seed000")]
    assert [len(job.starts()) for job in jobs] == [1, 1]
    assert some(started.process).wait() == 0


# --- several seeds in one process -----------------------------------------------------------------------------------


def packs(jobs: list[Any]) -> list[list[str]]:
    """The seeds that each process started with."""
    commands = {tuple(words): None for job in jobs for _, words in job.starts()}
    return [list(words[words.index("--seeds") + 1 : words.index("--out")]) for words in commands]


def test_seeds_of_one_method_are_one_process(tmp_path):
    jobs, notes = [*seeds_of(tmp_path, 3, "a"), *seeds_of(tmp_path, 2, "b")], Notes()
    assert set(schedule.run_jobs(jobs, 1, notes, Signals()).values()) == {"done"}
    words = jobs[1].starts()[0][1]
    assert words[:-1] == ["--steps", "9", "--seeds", "0", "1", "2", "--out", str(tmp_path / "a"), "--eval-envs"]
    assert packs(jobs) == [["0", "1", "2"], ["0", "1"]]
    assert notes.begun[:3] == [(f"a {seed}", "starts", "seed000") for seed in range(3)]
    assert notes.most == 3
    assert "the end of" in jobs[0].log.read_text()
    assert jobs[2].log.read_text() == f"starts in one process with others; the output is in {jobs[0].log}\n"
    assert not any(job.is_busy() for job in jobs)


@pytest.mark.parametrize(
    ("seeds", "workers", "expected"),
    [(4, 2, [["0", "1"], ["2", "3"]]), (5, 2, [["0", "1"], ["2", "3"], ["4"]]), (3, 4, [["0"], ["1"], ["2"]])],
)
def test_every_worker_gets_a_pack(tmp_path, seeds, workers, expected):
    jobs = seeds_of(tmp_path, seeds)
    schedule.run_jobs(jobs, workers, Notes(), Signals())
    assert packs(jobs) == expected


def test_online_runs_are_processes_of_their_own(tmp_path):
    jobs = seeds_of(tmp_path, 2, online_steps=5)
    schedule.run_jobs(jobs, 1, Notes(), Signals())
    assert packs(jobs) == [["0"], ["1"]]


def test_a_pack_leaves_out_what_another_process_has_and_what_has_another_state(tmp_path):
    jobs, notes = seeds_of(tmp_path, 5), Notes()
    jobs[1].file("failed").touch()
    jobs[3].file("done").touch()
    with jobs[2].log.open("ab") as log:
        lock_open_file(log)
        started = some(schedule.start(jobs, 0, notes, LocalPool(Request())))
        assert started.jobs == [jobs[0], jobs[4]]
    assert not jobs[2].is_busy()  # its lock was not passed on
    assert some(started.process).wait() == 0
    schedule.run_jobs(jobs, 1, notes, Signals())
    assert [len(job.starts()) for job in jobs] == [1, 1, 1, 0, 1]


def test_a_run_that_fails_in_a_pack_has_its_own_reason(tmp_path):
    jobs, notes = seeds_of(tmp_path, 3), Notes()
    jobs[1].want(code=1)
    states = schedule.run_jobs(jobs, 1, notes, Signals())
    assert list(states.values()) == ["done", "failed", "done"]
    assert notes.details == ["", "FAILED: the reason of job 1", ""]


def test_a_run_that_stops_its_pack_does_not_stop_the_others(tmp_path):
    """Without a result of any run each is tried alone, once."""
    jobs, notes = seeds_of(tmp_path, 3), Notes()
    jobs[1].want(refuses=True)
    states = schedule.run_jobs(jobs, 1, notes, Signals())
    assert {job.name: state for job, state in states.items()} == {"job 0": "done", "job 1": "failed", "job 2": "done"}
    assert notes.said == [f"3 runs failed together, each is tried alone. See {jobs[0].log}"]
    assert [len(job.starts()) for job in jobs] == [2, 2, 2]
    assert f"refused: {jobs[1].directory}" in "".join(notes.details)


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
    assert local.memory_share(3) == {name: "0.300"}
    assert local.memory_share(1) == {}
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.2")
    assert local.memory_share(3) == {}
