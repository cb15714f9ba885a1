"""`fidec suite`: jobs as processes of their own, skipped when done, reported when they fail, and the table."""

from __future__ import annotations

import dataclasses
import json
import os
import signal

import pytest

from fidec import algos
from fidec.data.make import make_dataset
from fidec.errors import ConfigError
from fidec.report import table
from fidec.tasks.suites import DEMO, SUITES
from fidec.train.config import resolve_options
from fidec.train.loop import Signals
from fidec.train.suite import jobs, run

SMALL = dataclasses.replace(
    DEMO,
    name="small",
    task="pointmaze-medium-navigate-singletask-task1-v0",
    rows=1_000,
    steps=20,
    eval_interval=20,
    eval_episodes=2,
    common={"hidden": (8,), "discount": 0.9},
    methods={"bc": {}, "fql": {"alpha": -1.0}},  # refused by FQL
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SUITES, "small", SMALL)


def test_a_suite_runs_reports_a_failure_and_goes_on_where_it_was(cli, small, tmp_path, monkeypatch):
    code, out, err = cli("suite", "run", "small", "--out", "suite")
    assert code == 1
    assert "1/2 bc, seed 0: done" in err
    assert "2/2 fql, seed 0: FAILED" in err
    assert "alpha must not be negative" in err  # the end of its log
    assert "1 of 2 runs failed: 2/2 fql, seed 0" in err
    assert (tmp_path / "suite" / "table.md").read_text() == out
    assert out.splitlines()[0] == "| method | own settings | success | 95 % interval | ms/update |"
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["bc"]

    monkeypatch.setitem(SUITES, "small", dataclasses.replace(SMALL, methods={"bc": {}}))
    policy = tmp_path / "suite" / "bc-seed000" / "policy" / "model.safetensors"
    before = policy.stat().st_mtime_ns
    code, again, err = cli("suite", "run", "small", "--out", "suite")
    assert code == 0
    assert "bc, seed 0: there already" in err
    assert (again, policy.stat().st_mtime_ns) == (out, before)

    (row,) = json.loads(cli("suite", "table", "small", "--out", "suite", "--format", "json")[1])
    assert (row["method"], row["steps"], row["n"]) == ("bc", 20, 2)
    assert 0 <= row["low"] <= row["success"] <= row["high"] <= 1
    header, line = cli("suite", "table", "small", "--out", "suite", "--format", "csv")[1].splitlines()
    assert header.split(",") == list(table.COLUMNS)
    assert line.startswith(f"bc,0,20:{row['success']}")

    code, out, err = cli("suite", "run", "small", "--out", "suite", "--steps", 40)
    assert (code, out) == (ConfigError.exit_code, "")
    assert "other settings than suite 'small' asks for (steps 20, not 40)" in err


def test_a_signal_stops_the_suite_which_says_how_to_go_on(cli, small, monkeypatch):
    started, before = [], signal.getsignal(signal.SIGTERM)

    def interrupted(job, on_wait, signals):
        started.append(job.algo)
        os.kill(os.getpid(), signal.SIGTERM)
        return 75

    monkeypatch.setattr("fidec.cli.suite._make_data", lambda *_: None)
    monkeypatch.setattr("fidec.train.suite.run", interrupted)
    code, out, err = cli("suite", "run", "small", "--out", "suite")
    assert (code, out, started) == (75, "", ["bc"])
    assert "SIGTERM: stopped in 1/2 bc, seed 0. The same command goes on" in err
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_the_run_of_a_stopped_suite_has_saved(tmp_path):
    """The real process: it is told once it trains, and leaves a run that can be resumed."""
    data = tmp_path / "data"
    make_dataset(SMALL.task, 1_000, directory=data, seed=0, workers=1)
    suite = dataclasses.replace(SMALL, eval_interval=10_000_000)
    (job,) = jobs(suite, out=tmp_path, data_dir=data, methods=("bc",), seeds=(0,), steps=10_000_000)
    signals = Signals()

    def on_wait(line):
        if (job.directory / "train.jsonl").exists():
            signals(signal.SIGTERM, None)

    assert run(job, on_wait, signals) == 75
    assert job.state() == "preempted"
    assert list((job.directory / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run", "dmo"), ("no suite 'dmo'", "did you mean demo?")),
        (("run", "demo", "--algos", "sac"), ("has no method sac", "fidec")),
        (("table", "demo"), ("no run of suite 'demo'", "finished")),
        (("rnu", "demo"), ("Did you mean `fidec suite run`?",)),
    ],
)
def test_what_a_suite_cannot_do_it_says(cli, argv, words):
    code, out, err = cli("suite", *argv)
    assert code != 0
    assert out == ""
    assert all(word in err for word in words)


def test_dry_run_prints_commands_that_parse(cli):
    code, out, _ = cli("suite", "run", "demo", "--dry-run")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[line.split().index("--algo") + 1] for line in lines] == list(DEMO.methods)
    assert all(line.startswith("fidec train --task cube-single-play-singletask-task2-v0") for line in lines)
    assert cli("suite", "list")[1].splitlines()[1].startswith("demo")


def test_the_demo_suite_has_every_offline_method_with_options_that_exist(tmp_path):
    online = {"calql", "rlpd"}
    own = {name for name in algos.names() if algos.get(name).make.__module__.startswith("fidec.")}
    assert set(DEMO.methods) == own - online
    for job in jobs(DEMO, out=tmp_path, data_dir=tmp_path, methods=tuple(DEMO.methods), seeds=(0, 1), steps=10):
        options = resolve_options(job.algo, "recommended", DEMO.task, **job.options())
        assert options.hidden == (128, 128, 128)
