"""A run with a damaged file is named, and does not keep a suite from its other runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fidec.bench import schedule, table, time_estimate
from fidec.bench.scores import read_run
from fidec.errors import FidecError
from fidec.store.rundir import RunDirectory
from fidec.train.loop import Signals
from helpers.faults import mutated
from helpers.suites import own_jobs, write_run


@pytest.fixture
def runs(tmp_path):
    """Two finished runs of bc and none of fql."""
    made = own_jobs(tmp_path, "robot")
    for job in made[:2]:
        write_run(job, [10.0 + job.seed] * len(job.plan.evaluations), unit="return")
    return made


def read_everything(job) -> None:
    """What a suite, its table, its board and its estimate of time read of a run; only a FidecError may come out."""

    def read_status():
        RunDirectory.open(job.directory, read_only=True).read_status()

    for read in (lambda: job.state(any_data=True), lambda: read_run(job), read_status, job.progress):
        with suppress(FidecError):
            read()
    time_estimate.estimate(job, [job])


@pytest.mark.parametrize("name", ["config.json", "environment.json", "status.json", "run.json"])
def test_a_damaged_json_file_is_an_error_of_fidec(runs, name):
    path = runs[0].directory / name
    good = json.loads(path.read_text())
    good.pop("sha256", None)  # a run of an older version, or one that was written to deceive
    for text in mutated(json.dumps(good), 40):
        path.write_text(text)
        read_everything(runs[0])


@pytest.mark.parametrize("name", ["eval", "time", "train"])
def test_a_damaged_log_is_an_error_of_fidec(runs, name):
    path = runs[0].directory / f"{name}.jsonl"
    row = {"step": 20, "evaluation/score": 1.0, "evaluation/return": 1.0, "time/steps_per_second": 2.0}
    for text in mutated(json.dumps(row), 40):
        path.write_text(text + "\n")
        read_everything(runs[0])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda path: path.write_text(path.read_text().replace('"seed"', '"sead"'))),
        ("config.json", Path.unlink),
        ("status.json", lambda path: path.write_text('{"state": 3}')),
        ("environment.json", lambda path: path.write_text("{}")),
        ("eval.jsonl", lambda path: path.write_text('{"step": 20, "evaluation/score": "good"}\n')),
    ],
)
def test_the_table_has_the_other_runs(runs, name, change, capsys):
    change(runs[0].directory / name)
    report = table.report(runs, None)
    assert [run.job.seed for run in report.runs] == [1]
    assert f"left out: {runs[0].directory}" in capsys.readouterr().err


class Notes:
    def __init__(self):
        self.started, self.ended = [], {}

    def print(self, text):
        pass

    def job_started(self, job, how, log):
        self.started.append(job)

    def job_ended(self, job, state, detail=""):
        self.ended[job] = state, detail

    def update(self, running, waiting):
        pass


def test_the_other_jobs_are_run(runs, monkeypatch, tmp_path, capsys):
    (runs[0].directory / "config.json").unlink()
    states, damaged = schedule.read_states(runs)
    assert [states[job] for job in runs[1:]] == ["done", "new", "new"]
    assert str(runs[0].directory) in damaged[runs[0]]
    monkeypatch.setattr(schedule, "check_environments", lambda jobs: None)
    schedule.dry_run(runs)
    assert (
        f"{runs[0].name}: is damaged and is not run. {runs[0].directory} has no config.json"
        in capsys.readouterr().out
    )

    notes: Any = Notes()  # damaged after the suite looked at it
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", "import sys; sys.exit(3)"))
    monkeypatch.setattr(schedule, "PAUSE", 0.01)
    schedule.run_jobs([runs[0], runs[2]], 1, notes, Signals())
    assert notes.started == [runs[2]]
    assert notes.ended[runs[0]][0] == notes.ended[runs[2]][0] == "failed"
    assert "has no config.json" in notes.ended[runs[0]][1]
    assert (runs[0].directory / "eval.jsonl").stat().st_size > 0
