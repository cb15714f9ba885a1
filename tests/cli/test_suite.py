"""`fidec suite`: jobs as processes of their own, skipped when done, reported when they fail, and the table."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fidec.bench.scale import Scale
from fidec.bench.schedule import Outcome
from fidec.bench.suites import DEMO, SUITES, Variant
from fidec.errors import ConfigError
from fidec.make import make_dataset
from fidec.report import table
from helpers.runs import TASK, fingerprint

SIZE = Scale(
    name="test",
    summary="tiny",
    rows=1_000,
    steps=20,
    eval_interval=20,
    eval_episodes=2,
    averaged=1,
    options={"hidden": (8,), "discount": 0.9},
)
SMALL = dataclasses.replace(
    DEMO,
    name="small",
    tasks=(TASK,),
    variants=(Variant("bc"), Variant("fql", options={"learning_rate": 1e30})),  # which does not end well
    scale=SIZE,
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(SUITES, "small", SMALL)


def test_a_suite_runs_reports_a_failure_and_goes_on_where_it_was(cli, small, tmp_path, monkeypatch):
    code, out, err = cli("suite", "run", "small", "--out", "suite")
    assert code == 1
    assert "1/2 bc, seed 0: done" in err
    assert "2/2 fql, seed 0: FAILED" in err
    assert "not finite at step" in err  # the end of its log
    assert "1 of 2 runs failed: 2/2 fql, seed 0" in err
    assert (tmp_path / "suite" / "table.md").read_text() == out
    assert out.splitlines()[0] == "| method | own settings | success | 95 % interval | ms/update |"
    assert [line.split()[1] for line in out.splitlines()[2:]] == ["bc"]

    monkeypatch.setitem(SUITES, "small", dataclasses.replace(SMALL, variants=(Variant("bc"),)))
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
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(jobs, workers, watcher, signals):
        os.kill(os.getpid(), signal.SIGTERM)
        return [Outcome(jobs[0], "stopped")]

    monkeypatch.setattr("fidec.bench.data.provide", lambda *_: {})
    monkeypatch.setattr("fidec.bench.run.see_through", interrupted)
    code, out, err = cli("suite", "run", "small", "--out", "suite")
    assert (code, out) == (75, "")
    assert "SIGTERM: stopped in 1/2 bc, seed 0. The same command goes on" in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_data_that_cannot_be_made_is_named_with_what_gets_it(cli, tmp_path):
    argv = ("suite", "run", "d4rl-adroit", "--scale", "small", "--algos", "bc", "--tasks", "pen-human-v1")
    code, out, err = cli(*argv)
    assert (code, out) == (1, "")
    assert "1/1 pen-human-v1 bc, seed 0: lacks its data." in err
    assert "fidec data get" in err
    assert "1 of 1 runs lack their data" in err
    assert json.loads((tmp_path / "runs" / "d4rl-adroit-small" / "scale.json").read_text())["name"] == "small"


# The suite of the test below, in a process that can be killed; its jobs are plain `fidec train`.
PROGRAM = """
import dataclasses, sys
from fidec.cli import main
from fidec.bench.scale import Scale
from fidec.bench.suites import DEMO, SUITES, Variant
size = Scale("test", "tiny", 600, 2000, 1000, 2, 1, batch_size=32, checkpoint_interval=50, log_interval=50,
             options={"hidden": (16, 16)})
tasks = tuple(f"pointmaze-medium-navigate-singletask-task{k}-v0" for k in (1, 2, 3))
SUITES["kill"] = dataclasses.replace(DEMO, name="kill", tasks=tasks, variants=(Variant("bc"),), scale=size)
sys.exit(main(sys.argv[1:]))
"""


def start_suite(tmp_path: Path, out: str) -> subprocess.Popen:
    argv = ("suite", "run", "kill", "--workers", "2", "--out", out, "--data-dir", "data")
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *argv], cwd=tmp_path, stdout=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_suite_killed_in_the_middle_ends_as_one_that_was_left_alone(tmp_path):
    """Two workers. The suite and one of its children are killed; the other child lives on, and is waited for."""
    make_dataset(TASK, 600, directory=tmp_path / "data", seed=7, episode_rows=60, progress=False)
    suite = start_suite(tmp_path, "alone")
    try:
        table = suite.communicate(timeout=900)[0]
        assert suite.returncode == 0

        suite = start_suite(tmp_path, "killed")
        end = time.monotonic() + 600
        saved = "killed/*/*/*/checkpoints/*/state.safetensors"
        while len({path.parents[1] for path in tmp_path.glob(saved)}) < 2:  # both have begun, and can be resumed
            assert suite.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        orphans = children(suite.pid)
        suite.kill()
        os.kill(orphans[0], signal.SIGKILL)
        suite.communicate()
        suite = start_suite(tmp_path, "killed")
        assert suite.communicate(timeout=900)[0] == table
        assert suite.returncode == 0
    finally:
        suite.terminate()
        suite.communicate()
    runs = sorted(path.relative_to(tmp_path / "alone") for path in tmp_path.glob("alone/*/*/seed000"))
    assert len(runs) == 3
    for run in runs:
        assert fingerprint(tmp_path / "killed" / run, 2000) == fingerprint(tmp_path / "alone" / run, 2000)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run", "dmo"), ("no suite 'dmo'", "did you mean demo?")),
        (("run", "demo", "--algos", "sac"), ("has no method sac", "fidec")),
        (("table", "demo"), ("no run of suite 'demo'", "finished")),
        (("run", "demo", "--scale", "small"), ("has a size of its own",)),
        (("run", "paper-online", "--algos", "fql", "bc"), ("bc is not trained online",)),
        (("run", "paper", "--online-steps", "5"), ("'paper' is offline", "leave --online-steps out")),
        (("curves", "demo-online"), ("no run of suite 'demo-online'", "nothing to draw")),
        (("run", "paper", "--tasks", "cube"), ("no task 'cube'", "*cube*")),
        (("run", "paper", "--workers", "0"), ("--workers must be at least 1",)),
        (("run", "paper", "--sources", "door-human-v1"), ("expected TASK=SOURCE",)),
        (("rnu", "demo"), ("did you mean run?",)),
    ],
)
def test_what_a_suite_cannot_do_it_says(cli, argv, words):
    code, out, err = cli("suite", *argv)
    assert code != 0
    assert out == ""
    assert all(word in err for word in words)


def test_dry_run_prints_commands_that_parse(cli):
    code, out, err = cli("suite", "run", "demo", "--dry-run")
    assert code == 0
    lines = out.splitlines()
    methods = [variant.method for variant in DEMO.variants]
    assert [line.split()[line.split().index("--algo") + 1] for line in lines] == methods
    assert all(line.startswith("fidec train --task cube-single-play-singletask-task2-v0") for line in lines)
    assert all(line.endswith("# cost unknown") for line in lines)  # nothing is invented
    assert "12 runs, 0 done; of 12 the cost is unknown" in err
    assert cli("suite", "list")[1].splitlines()[-1].startswith("demo")
    code, out, _ = cli("suite", "run", "paper-online", "--dry-run")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 14 * 9)  # the paper's eight methods, and FiDec as recommended
    assert all(line.startswith("fidec train --task") and "--online-steps 1000000 " in line for line in lines)
    assert all(("--steps 0 " in line) == ("--algo rlpd " in line) for line in lines)


def test_dry_run_measures_if_asked(cli):
    argv = (
        "suite",
        "run",
        "ogbench-state",
        "--scale",
        "small",
        "--dry-run",
        "--algos",
        "bc",
        "--tasks",
        "cube-single-*",
    )
    code, out, err = cli(*argv, "--measure")
    assert code == 0
    assert out.count("(timed now, without evaluations)") == 5
    assert "5 to go will take about" in err
