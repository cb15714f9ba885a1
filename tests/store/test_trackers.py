"""Trackers get the numbers of a run, and their failures do not stop it. Each is tried offline if it is installed."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fidec.cli import main
from fidec.store import trackers
from fidec.store.logs import RunLog
from fidec.store.trackers import Tracking
from fidec.train.config import RunConfig
from fidec.train.run import train
from helpers.runs import random_columns


class Recorder:
    """A tracker that keeps what it gets, and fails at a step."""

    made: list[Recorder]

    def __init__(self, entry: Any, directory: Path, config: Any):
        self.entry, self.config, self.rows, self.finished = entry, config, [], False
        self.made.append(self)

    def log(self, step, numbers):
        if step == 4:
            raise OSError("no connection")
        self.rows.append((step, numbers))

    def finish(self):
        self.finished = True


@pytest.fixture
def recorded(monkeypatch):
    Recorder.made = []
    monkeypatch.setitem(trackers.TRACKERS, "trackio", Recorder)
    monkeypatch.setattr(trackers, "package", lambda name: None)
    return Recorder.made


def test_numbers_are_passed_on_until_the_tracker_fails(recorded, tmp_path):
    said: list[str] = []
    tracking = Tracking("trackio", tmp_path, {"seed": 1}, said.append)
    for step in range(1, 7):
        tracking.log(step, {"loss": 0.5, "text": "a", "nested": {"a": 1}, "none": None})
    tracking.close()
    (tracker,) = recorded
    assert tracker.rows == [(step, {"loss": 0.5}) for step in (1, 2, 3)]
    assert said == ["trackio failed and is not used from here on: OSError: no connection"]
    assert not tracker.finished
    assert tracker.config == {"seed": 1}


def test_a_resumed_run_continues_with_its_entry(recorded, tmp_path):
    for _ in range(2):
        tracking = Tracking("trackio", tmp_path, {}, print)
        tracking.log(1, {"loss": 1.0})
        tracking.close()
    first, second = recorded
    assert first.entry == second.entry
    assert first.finished
    assert json.loads((tmp_path / "track.json").read_text())["id"] == first.entry["id"]


def test_a_run_gives_its_tracker_all_scalars_of_its_logs(recorded, tmp_path, monkeypatch):
    from fidec.data import dataset_from_arrays

    data = dataset_from_arrays(**random_columns())
    run = tmp_path / "run"
    config = RunConfig(algo="bc", steps=3, log_interval=1, out=run, track="trackio", check_data=False)
    train(config, data, quiet=True)
    (tracker,) = recorded
    assert [step for step, numbers in tracker.rows if "training/loss" in numbers] == [1, 2, 3]
    assert tracker.finished
    assert tracker.config["algo"] == "bc"
    assert tracker.entry["name"].endswith("/run")


def test_a_missing_package_is_named_before_a_directory_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    import numpy as np

    np.savez(tmp_path / "own.npz", **random_columns())
    words = ["train", "--data", f"npz:{tmp_path}/own.npz", "--algo", "bc", "--steps", "2", "--track", "wandb"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert "--track wandb needs the package wandb: pip install 'fidec[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def log_two_runs(name: str, directory: Path) -> None:
    """Two runs at a time, as with several seeds, and one of them twice, as after a resume."""
    logs = []
    for seed in ("seed000", "seed001"):
        path = directory / "runs" / seed
        path.mkdir(parents=True, exist_ok=True)
        log = RunLog(path, tensorboard=False)
        log.tracking = Tracking(name, path, {"seed": seed, "algo.hidden": [8, 8]}, pytest.fail)
        logs.append(log)
    for step in (1, 2):
        for number, log in enumerate(logs):
            log.train(step, {"training/loss": step + 10.0 * number})
    for log in logs:
        log.close()


def test_trackio_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which it reads when it is imported
    pytest.importorskip("trackio", reason="trackio is not installed: pip install 'fidec[trackio]'")
    log_two_runs("trackio", tmp_path)
    (database,) = (tmp_path / "trackio").glob("*.db")
    rows = sqlite3.connect(database).execute("select run_name, step, metrics from metrics order by id").fetchall()
    values = {(name.rpartition("/")[2], step): json.loads(text)["training/loss"] for name, step, text in rows}
    assert values == {(f"seed00{n}", step): step + 10.0 * n for n in (0, 1) for step in (1, 2)}


def test_mlflow_offline(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'fidec[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    log_two_runs("mlflow", tmp_path)
    log_two_runs("mlflow", tmp_path)  # resumed
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("fidec").experiment_id])
    assert len(runs) == 2
    assert {run.data.params["seed"] for run in runs} == {"seed000", "seed001"}
    history = client.get_metric_history(runs[0].info.run_id, "training/loss")
    assert sorted({metric.step for metric in history}) == [1, 2]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'fidec[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log_two_runs("wandb", tmp_path)
    files = sorted((tmp_path / "runs").glob("seed00?/wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    end = time.monotonic() + 30  # its own process writes the file
    while not all(b"training/loss" in path.read_bytes() for path in files):
        assert time.monotonic() < end
        time.sleep(0.1)
