"""`fidec suite`: runs as processes, finished runs, failed runs, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fidec.bench.suites import SUITES
from fidec.errors import ConfigError
from fidec.make import make_dataset
from helpers.runs import TASK, fingerprint

OWN = """
summary = "two methods on a user's own data and environment"
methods = ["bc", { name = "iql", options = { learning_rate = 1e30 } }]  # iql fails

[[tasks]]
name = "robot"
env = "fidec_tiny_env:Tiny-v0"
data = "npz:NPZ"

[scale]
steps = 20
eval_episodes = 2
options = { hidden = [8] }
"""
KILLED = """
tasks = [
  "pointmaze-medium-navigate-singletask-task1-v0",
  "pointmaze-medium-navigate-singletask-task2-v0",
  "pointmaze-medium-navigate-singletask-task3-v0",
]
methods = ["bc"]

[scale]
rows = 600
steps = 2_000
eval_interval = 1_000
eval_episodes = 2
batch_size = 32
checkpoint_interval = 50
log_interval = 50
options = { hidden = [16, 16] }
"""


@pytest.fixture
def own(npz, tmp_path, plugin_site, tiny_env, monkeypatch):
    """A TOML file with two methods on the small npz data set and the tiny environment."""
    monkeypatch.setenv("PYTHONPATH", str(plugin_site))
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace("NPZ", str(npz)))
    return path


def test_a_users_suite_runs_reports_a_failure_and_continues(cli, own, tmp_path):
    for name in ("tyro", "random"):  # the processes of a suite import no packages from the working directory
        (tmp_path / f"{name}.py").write_text("raise ImportError('imported from the working directory')")
    code, out, err = cli("suite", "run", own, "--out", "suite")
    assert code == 1
    assert "1/2 robot bc, seed 0: done" in err
    assert "2/2 robot iql, seed 0: FAILED" in err
    assert "not finite at step" in err  # the end of its log
    assert "1 of 2 runs failed: 2/2 robot iql, seed 0" in err
    assert (tmp_path / "suite" / "table.md").read_text() == out
    assert "| task | bc |" in out

    policy = tmp_path / "suite" / "robot" / "bc-recommended" / "seed000" / "policy" / "model.safetensors"
    before = policy.stat().st_mtime_ns
    argv = (own, "--out", "suite", "--algos", "bc")
    code, again, err = cli("suite", "run", *argv)
    assert code == 0, err
    assert "robot bc, seed 0: there already" in err
    assert (again, policy.stat().st_mtime_ns) == (out, before)

    found = json.loads(cli("suite", "table", *argv, "--format", "json")[1])
    assert (found["runs"][0]["method"], found["lines"][0]["unit"]) == ("bc", "success in percent")
    assert 0 <= found["runs"][0]["score"] <= 100
    assert cli("suite", "table", *argv, "--format", "csv")[1].splitlines()[1].startswith("task,own,robot,bc,")

    code, out, err = cli("suite", "run", *argv, "--steps", 40)
    assert (code, out) == (ConfigError.exit_code, "")
    assert f"another configuration than {own} asks for (steps 20, not 40; " in err


def test_a_misspelt_environment_is_found_before_a_process_starts(cli, own, tmp_path):
    own.write_text(own.read_text().replace("Tiny-v0", "Tinny-v0"))
    for argv in ((), ("--dry-run",)):
        code, out, err = cli("suite", "run", own, "--out", "suite", *argv)
        assert (code, out) == (ConfigError.exit_code, "")
        assert f"{own}: robot: Gymnasium has no environment 'Tinny-v0'" in err
    assert not (tmp_path / "suite").exists()


def test_a_signal_stops_the_suite_which_says_how_to_continue(cli, own, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(jobs, workers, watcher, signals, pool):
        os.kill(os.getpid(), signal.SIGTERM)
        return {jobs[0]: "stopped"}

    monkeypatch.setattr("fidec.bench.schedule.run_jobs", interrupted)
    code, out, err = cli("suite", "run", own, "--out", "suite")
    assert (code, out) == (75, "")
    assert "SIGTERM: stopped in 1/2 robot bc, seed 0. The same command continues" in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_missing_data_that_cannot_be_made_is_reported_with_the_command_that_gets_it(cli):
    argv = ("suite", "run", "d4rl-adroit", "--scale", "small", "--algos", "bc", "--tasks", "pen-human-v1")
    code, out, err = cli(*argv)
    assert (code, out) == (1, "")
    assert "1/1 pen-human-v1 bc, seed 0: has no data." in err
    assert "fidec data get" in err
    assert "1 of 1 runs have no data" in err


def start_suite(tmp_path: Path, out: str) -> subprocess.Popen:
    argv = ("suite", "run", "kill.toml", "--workers", "2", "--out", out, "--data-dir", "data")
    return subprocess.Popen([sys.executable, "-m", "fidec", *argv], cwd=tmp_path, stdout=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_killed_suite_ends_like_one_that_was_not_interrupted(tmp_path):
    """The suite and one of its two processes are killed. The next suite waits for the other process."""
    (tmp_path / "kill.toml").write_text(KILLED)
    make_dataset(TASK, 600, directory=tmp_path / "data", seed=7, episode_rows=60, progress=False)
    suite = start_suite(tmp_path, "alone")
    try:
        table = suite.communicate(timeout=900)[0]
        assert suite.returncode == 0

        suite = start_suite(tmp_path, "killed")
        end = time.monotonic() + 600
        saved = "killed/*/*/*/checkpoints/*/state.safetensors"
        while len({path.parents[1] for path in tmp_path.glob(saved)}) < 2:  # both can be resumed
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
        (("table", "demo-online"), ("no run of suite 'demo-online'", "finished", "nothing to print")),
        (("run", "demo", "--scale", "small"), ("has a size of its own",)),
        (("run", "paper", "--workers", "0"), ("--workers must be at least 1",)),
        (("rnu", "demo"), ("did you mean run?",)),
    ],
)
def test_wrong_arguments(cli, argv, words):
    code, out, err = cli("suite", *argv)
    assert code != 0
    assert out == ""
    assert all(word in err for word in words)


def test_dry_run_prints_the_commands(cli):
    code, out, err = cli("suite", "run", "demo", "--dry-run")
    assert code == 0
    lines = out.splitlines()
    methods = [variant.method for variant in SUITES.get("demo").variants]
    assert [line.split()[line.split().index("--algo") + 1] for line in lines] == methods
    assert all(line.endswith("# cost unknown") for line in lines)
    assert "the cost of 12 is unknown" in err


def test_the_list_names_every_suite_also_those_of_installed_packages(cli, tmp_path, monkeypatch):
    """An installed package adds a suite with an entry point."""
    site = tmp_path / "site"
    info = site / "fidec_own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fidec-own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fidec.suites]\nown = fidec_own:SUITE\n")
    (site / "own.toml").write_text('tasks = ["scene-*"]\nmethods = ["bc"]\nsummary = "of another package"\n')
    (site / "fidec_own.py").write_text(
        "from pathlib import Path\nfrom fidec.bench.suites import read_suite\n"
        "SUITE = read_suite(Path(__file__).with_name('own.toml'))\n"
    )
    monkeypatch.syspath_prepend(str(site))
    listed = {row["name"]: row for row in json.loads(cli("suite", "list", "--json")[1])}
    assert set(listed) == {*SUITES.builtin(), "own"}
    assert len(listed["own"]["tasks"]) == 5
    assert "of another package" in cli("suite", "list")[1]
