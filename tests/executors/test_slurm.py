"""Slurm: through submitit's local executor, which needs no Slurm, and on a real Slurm if this machine has one.

A real Slurm of one node is started by `tests/executors/slurm.sh`.
"""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from fidec.bench import schedule
from fidec.errors import ConfigError
from fidec.executors import EXECUTORS, Request
from fidec.executors.kinds import slurm
from fidec.train.loop import Signals
from helpers.jobs import FAKE, Notes, seeds_of

pytest.importorskip("submitit")
HAS_SLURM = shutil.which("sinfo") and subprocess.run(["sinfo", "-h"], capture_output=True).stdout
needs_slurm = pytest.mark.skipif(not HAS_SLURM, reason="no Slurm answers here: tests/executors/slurm.sh starts one")


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))
    monkeypatch.setattr(slurm, "ASK_EVERY", 1.0)
    monkeypatch.chdir(tmp_path)

    def make(count: int, group: str, **wanted):
        jobs = seeds_of(tmp_path, count, group, **wanted)
        for job in jobs:
            job.progress = lambda: SimpleNamespace(step=0)
            job.directory.mkdir()
        return jobs

    return make


def run(jobs, directory, notes, hours=0.1, **settings):
    request = Request(workers=2, directory=directory, settings=settings, hours=hours)
    with EXECUTORS.get("slurm").open(request) as pool:
        return schedule.run_jobs(jobs, 2, notes, Signals(), pool)


def test_a_fraction_of_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="Slurm gives whole GPUs"), EXECUTORS.get("slurm").open(Request(gpus=0.5)):
        pass


@pytest.mark.slow
def test_jobs_end_and_fail_as_on_this_machine(fakes, tmp_path):
    jobs, notes = [*fakes(2, "a"), *fakes(1, "b", code=3)], Notes()
    states = run(jobs, tmp_path, notes, cluster="local")
    assert [states[job] for job in jobs] == ["done", "done", "failed"]
    assert "FAILED with exit code 3" in "".join(notes.details)
    assert not list(tmp_path.glob("slurm/*.code"))


@pytest.mark.slow
def test_a_job_whose_time_is_over_saves_is_queued_again_and_continues(fakes, tmp_path, monkeypatch):
    """submitit sends SIGUSR2 as Slurm does. The second attempt finds the run and resumes it."""
    jobs, notes, submitted = fakes(1, "a", seconds=300.0), Notes(), []
    submit = slurm.SlurmPool.submit
    monkeypatch.setattr(slurm.SlurmPool, "submit", lambda *words: submitted.append(1) or submit(*words))

    def on_show(running):
        if jobs[0].starts():
            (jobs[0].directory / "config.json").touch()
            jobs[0].want(seconds=0.0)

    notes.on_show = on_show
    # A minute, and the signal comes half a minute before.
    assert run(jobs, tmp_path, notes, hours=1 / 60, cluster="local") == {jobs[0]: "done"}
    assert jobs[0].file("saved").exists()
    assert jobs[0].starts()[1][1] == ["--resume", str(jobs[0].directory)]
    assert len(submitted) == 1  # the engine queued it again, not the suite


@needs_slurm
@pytest.mark.slow
def test_an_array_of_a_real_slurm_is_requeued_and_continues(fakes, tmp_path):
    jobs, notes = [*fakes(1, "a", seconds=60.0), *fakes(1, "b"), *fakes(1, "c", code=3)], Notes()
    requeued = []

    def on_show(running):
        if jobs[0].starts() and not requeued:
            (jobs[0].directory / "config.json").touch()
            jobs[0].want(seconds=0.0)
            ids = subprocess.run(["squeue", "-h", "-r", "-o", "%i"], capture_output=True, text=True).stdout.split()
            requeued.extend(sorted(ids)[:1])
            subprocess.run(["scontrol", "requeue", requeued[0]], check=True)

    notes.on_show = on_show
    states = run(jobs, tmp_path, notes)
    assert requeued
    assert [states[job] for job in jobs] == ["done", "done", "failed"]
    assert jobs[0].file("saved").exists()  # by SIGTERM
    assert jobs[0].starts()[-1][1] == ["--resume", str(jobs[0].directory)]
