"""What only separate processes show: exit codes, signals, the lock, and a real environment from start to end."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from helpers.runs import TASK, fingerprint, read_rows

TINY = ("--algo", "tiny", "--batch-size", 8, "--log-interval", 2000, "--checkpoint-interval", 20_000)


def wait_for(condition, process, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_signals_locks_and_exit_codes(processes, npz, compile_cache, tmp_path):
    out = tmp_path / "run"
    long = ("train", "--data", f"npz:{npz}", *TINY, "--out", out, "--steps", 10**8)

    running = processes.start(*long, cache=compile_cache)
    wait_for(lambda: list(out.glob("checkpoints/[0-9]*")), running)
    second = processes.run("train", "--resume", out, cache=compile_cache)
    assert second.returncode == 75
    assert f"in use by process {running.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 75, err
    assert "SIGTERM: saved at step" in err
    assert f"fidec train --resume {out}" in err
    assert "Traceback" not in err

    running = processes.start("train", "--resume", out, cache=compile_cache)
    wait_for(lambda: (out / "run.log").exists() and (out / "status.json").read_text().count("running"), running)
    before = json.loads((out / "status.json").read_text())["step"]
    wait_for(lambda: json.loads((out / "status.json").read_text())["step"] > before, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "SIGINT: saved at step" in err
    assert "Traceback" not in err


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    from fidec.make import make_dataset

    directory = tmp_path_factory.mktemp("maze")
    make_dataset(TASK, 120, directory=directory, seed=7, episode_rows=60, progress=False)
    return directory


def test_a_real_task_from_start_to_end(processes, maze, compile_cache, tmp_path):
    """Two processes, a real environment: train and evaluate, then evaluate again to the same rows."""
    out = tmp_path / "run"
    trained = processes.run(
        *("train", "--task", TASK, "--data-dir", maze, "--out", out, "--steps", 200, "--algo", "tiny", "--json"),
        *("--log-interval", 100, "--checkpoint-interval", 100, "--eval-episodes", 2, "--eval-envs", 2),
        cache=compile_cache,
    )
    assert trained.returncode == 0, trained.stderr
    result = json.loads(trained.stdout)
    assert (result["step"], result["evaluation"]["evaluation/n"]) == (200, 2)
    assert json.loads((out / "environment.json").read_text())["dataset"]["sha256"]
    before = fingerprint(out, 200)

    again = processes.run("eval", out, "--episodes", 2, "--base", "--json", cache=compile_cache)
    assert again.returncode == 0, again.stderr
    rows = read_rows(out / "episodes.jsonl")
    found = json.loads(again.stdout)["episodes"]
    assert [{"step": 200, **row} for row in found["refined"]] == rows
    assert [row["status"] for row in found["base"]] == ["ok", "ok"]
    assert fingerprint(out, 200) == before


def test_a_closed_pipe_is_no_error(processes):
    process = processes.start("tasks")
    os.close(process.stdout.fileno())
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""
