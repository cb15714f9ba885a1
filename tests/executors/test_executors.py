"""Executors: their register, GPUs of local workers, and one attempt at a job on behalf of a worker that may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidec.bench import schedule
from fidec.errors import ConfigError
from fidec.executors import EXECUTORS, LOST, Request, Work, attempt
from fidec.executors.kinds import local
from fidec.launch import launch
from fidec.train.loop import Signals
from helpers.jobs import FAKE, Notes, seeds_of, wait_for


def test_the_register_has_the_engines_and_names_a_misspelt_one():
    assert EXECUTORS.builtin() == ["local", "ray", "slurm"]
    with pytest.raises(ConfigError, match="no executor 'slrum'; did you mean slurm"):
        EXECUTORS.get("slrum")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"gpus": 1.5}, "--gpus must be a fraction"), ({"cpus": 0}, "--cpus must be more than 0")],
)
def test_resources_that_make_no_sense(options, words):
    with pytest.raises(ConfigError, match=words):
        Request(**options)


def test_an_option_that_an_executor_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="--on local has no --hours"), EXECUTORS.get("local").open(Request(hours=1)):
        pass


# --- GPUs of local workers ------------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    """A machine with as many GPUs as `gpus(N)` says."""
    for name in ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    return lambda count: monkeypatch.setattr(local, "count_gpus", lambda: count)


def shares(workers: int, wanted: float | None = None) -> list[tuple[str | None, str | None]]:
    """The GPUs and the part of their memory that each worker's process is given."""
    seen: list[dict[str, str]] = []

    def launched(*words: str, environ: dict[str, str], **_: Any) -> SimpleNamespace:
        seen.append(environ)
        return SimpleNamespace()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "launch", launched)
        pool = local.LocalPool(Request(workers, gpus=wanted))
        for slot in range(workers):
            pool.submit(slot, Work((), (), (), Path()), [SimpleNamespace(fileno=lambda: 1)])  # type: ignore[list-item]
    names = ("CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    return [(environ.get(names[0]), environ.get(names[1])) for environ in seen]


def test_each_worker_sees_its_own_gpu(gpus):
    gpus(2)
    assert shares(2) == [("0", None), ("1", None)]
    assert shares(4) == [("0", "0.450"), ("1", "0.450")] * 2
    assert shares(4, 0.5) == [("0", "0.450"), ("0", "0.450"), ("1", "0.450"), ("1", "0.450")]
    assert shares(2, 0) == [("", None)] * 2
    gpus(4)
    assert shares(2, 2) == [("0,1", None), ("2,3", None)]
    gpus(0)
    assert shares(2) == [(None, "0.450")] * 2


def test_the_users_choice_of_gpus_stays(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert shares(2) == [(None, "0.450")] * 2


# --- an attempt -----------------------------------------------------------------------------------------------------

JOB = """
import signal, sys, time
out = sys.argv[1]
def stop(*_):
    open(out + '.saved', 'w').close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
open(out + '.begun', 'w').close()
print('said something', flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


def job(directory: Path, seconds: float = 0.0, code: int = 0) -> Work:
    argv = ("-c", JOB, str(directory / "job"), str(seconds), str(code))
    return Work(argv, ("-c", "import sys; print('again', *sys.argv[1:])"), [directory / "run"], directory / "log")


def test_an_attempt_has_the_exit_code_and_the_output_of_its_job(tmp_path, monkeypatch):
    assert attempt.run(attempt.describe(job(tmp_path, code=3), 1)) == 3
    assert (tmp_path / "log").read_text() == "said something\n"
    kill = Work(("-c", "import os; os.kill(os.getpid(), 9)"), (), (), tmp_path / "log")
    assert attempt.run(attempt.describe(kill, 1)) == -signal.SIGKILL
    monkeypatch.setenv("FIDEC_EXAMPLE", "passed on")
    monkeypatch.setenv("SECRET_EXAMPLE", "stays here")
    monkeypatch.delenv("NPROC", raising=False)
    environ = attempt.describe(job(tmp_path), 2)["environ"]
    assert environ["FIDEC_EXAMPLE"] == "passed on"
    assert "SECRET_EXAMPLE" not in environ
    assert environ["NPROC"] == "2"  # the threads of XLA
    monkeypatch.setenv("NPROC", "5")
    assert attempt.describe(job(tmp_path), 2)["environ"]["NPROC"] == "5"


def test_a_second_attempt_continues_the_runs_that_have_begun(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").touch()
    assert attempt.run(attempt.describe(job(tmp_path), 1)) == 0
    assert (tmp_path / "log").read_text() == f"again {tmp_path / 'run'}\n"


def test_a_machine_without_the_shared_directory_says_so(tmp_path, capfd):
    assert attempt.run({**attempt.describe(job(tmp_path), 1), "directory": str(tmp_path / "none")}) == 1
    assert "same shared file system" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_job_saves_and_stops_if_its_worker_is_killed_or_interrupted(tmp_path, number):
    """SIGKILL leaves the worker no time to say anything: its end of the pipe closes."""
    script = "import json, sys; from fidec.executors import attempt; sys.exit(attempt.run(json.loads(sys.argv[1])))"
    worker = launch("-c", script, json.dumps(attempt.describe(job(tmp_path, seconds=60), 1)), stdout=subprocess.PIPE)
    wait_for((tmp_path / "job.begun").exists)
    worker.send_signal(number)
    code = worker.wait()
    assert code == (LOST if number == signal.SIGINT else -number)
    wait_for((tmp_path / "job.saved").exists)


def test_a_second_interrupt_does_not_leave_a_job_that_is_saving(tmp_path):
    script = "import json, sys; from fidec.executors import attempt; sys.exit(attempt.run(json.loads(sys.argv[1])))"
    slow = JOB.replace(
        "open(out + '.saved'", "open(out + '.saving', 'w').close(); time.sleep(1)\n    open(out + '.saved'"
    )
    work = job(tmp_path, seconds=60)._replace(argv=("-c", slow, str(tmp_path / "job"), "60", "0"))
    worker = launch("-c", script, json.dumps(attempt.describe(work, 1)))
    wait_for((tmp_path / "job.begun").exists)
    worker.send_signal(signal.SIGINT)
    wait_for((tmp_path / "job.saving").exists)
    worker.send_signal(signal.SIGINT)
    assert worker.wait() == LOST
    assert (tmp_path / "job.saved").exists()


# --- jobs that an engine loses --------------------------------------------------------------------------------------


class LosingPool(local.LocalPool):
    """Processes of this machine that count as remote. The first `losses` of them are killed after they began."""

    remote, retries = True, 3

    def __init__(self, losses: int):
        super().__init__(Request())
        self.losses = losses

    def submit(self, slot, work, files):
        starts = Path(f"{work.runs[-1]}.starts")
        before = starts.stat().st_size if starts.exists() else 0
        process = super().submit(slot, work, files)
        if self.losses:
            self.losses -= 1
            wait_for(lambda: starts.exists() and starts.stat().st_size > before)
            process.kill()
        return process

    def batch(self):
        return nullcontext()


@pytest.mark.parametrize(("losses", "state"), [(3, "done"), (4, "failed")])
def test_a_lost_job_is_submitted_again_a_few_times(tmp_path, monkeypatch, losses, state):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))
    monkeypatch.setattr(schedule, "PAUSE", 0.01)
    jobs, notes = seeds_of(tmp_path, 2, seconds=0.5), Notes()
    for each in jobs:
        each.progress = lambda: SimpleNamespace(step=0)
    states = schedule.run_jobs(jobs, 1, notes, Signals(), LosingPool(losses))
    assert states == dict.fromkeys(jobs, state)
    assert len(jobs[0].starts()) == 4
    assert jobs[1].starts()[-1][1][0] == "--resume"
    assert notes.said == [f"2 runs were stopped and are continued. See {jobs[0].log}"] * 3
    assert len(notes.ended) == 2  # each ends once
    assert not any(each.is_busy() for each in jobs)  # the suite gave its locks back


def test_progress_makes_up_for_losses(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))
    monkeypatch.setattr(schedule, "PAUSE", 0.01)
    (each,) = seeds_of(tmp_path, 1, seconds=0.2)
    each.progress = lambda: SimpleNamespace(step=len(each.starts()))
    assert schedule.run_jobs([each], 1, Notes(), Signals(), LosingPool(6)) == {each: "done"}


def test_the_process_of_an_attempt_does_not_load_jax():
    code = "import sys, fidec.executors.attempt; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0
