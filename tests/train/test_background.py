"""Evaluation in the background: training goes on, and the run is one that waits, also if it was stopped."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from fidec import dataset_from_arrays, fit, resume
from fidec.errors import EnvError
from fidec.train import dispatch
from fidec.train.run import Preempted
from fidec.train.session import Session
from helpers.online_envs import Gated
from helpers.runs import fingerprint, random_columns, read_rows

STEPS = 60
SETTINGS = {
    "algo": "tiny",
    "steps": STEPS,
    "batch_size": 8,
    "log_interval": 5,
    "checkpoint_interval": 20,
    "eval_interval": 20,
    "eval_episodes": 2,
    "eval_envs": 1,
    "quiet": True,
}
GATE = 35  # evaluations are made from step 20 on; those of the gated environment wait for this row of the log


@pytest.fixture
def dataset(tiny, compile_cache, monkeypatch):
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))
    return dataset_from_arrays(**random_columns())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("background"), []


@pytest.fixture
def waiting(dataset, made):
    """The directory of a run that waits for its evaluations."""
    directory, runs = made
    if not runs:
        runs.append(fit(dataset, directory / "run", env=Gated, **SETTINGS, eval_background=False).directory)
    return runs[0]


def open_gate_at(monkeypatch, gate: Path, step: int) -> None:
    show = Session.show

    def open_gate(self, reached):
        if reached >= step:
            gate.touch()
        show(self, reached)

    monkeypatch.setattr(Session, "show", open_gate)


def manifest(out: Path, step: int) -> dict:
    return json.loads((out / "checkpoints" / f"{step:08d}" / "manifest.json").read_text())["extra"]["extra"]


def test_a_checkpoint_waits_for_an_earlier_evaluation(dataset, tmp_path, monkeypatch):
    """So every checkpoint either has the rows of an evaluation, or says that it is due."""
    saved, gate = [], tmp_path / "gate"
    open_gate_at(monkeypatch, gate, 25)
    save = Session.save_policy
    monkeypatch.setattr(
        Session, "save_policy", lambda self: (saved.append((self.step, self.evaluated, self.evaluation)), save(self))
    )
    settings = {**SETTINGS, "checkpoint_interval": 30}
    fit(dataset, tmp_path / "run", env=partial(Gated, gate), **settings, eval_background=True)
    found = [(step, done, evaluation and evaluation["step"]) for step, done, evaluation in saved]
    assert found == [(20, False, None), (30, True, 20), (40, False, 20), (60, True, 60)]


def test_a_signal_during_an_evaluation_returns_to_its_step(dataset, waiting, tmp_path, stop_at):
    """It does not wait for the environment, which hangs."""
    out, gate = tmp_path / "run", tmp_path / "gate"
    env = partial(Gated, gate)
    stop_at(27)
    with pytest.raises(Preempted, match="saved at step 20"):
        fit(dataset, out, env=env, **SETTINGS, eval_background=True)
    assert json.loads((out / "status.json").read_text())["step"] == 20
    assert manifest(out, 20)["evaluated"] is False
    assert not read_rows(out / "eval.jsonl")
    gate.touch()
    resume(out, dataset, env=env, quiet=True)
    assert fingerprint(out, STEPS) == fingerprint(waiting, STEPS)


@pytest.mark.parametrize(
    "moment", [pytest.param(20, marks=pytest.mark.slow), 34, pytest.param(41, marks=pytest.mark.slow)]
)
def test_training_goes_on_and_the_files_are_those_of_a_run_that_waits_also_if_it_is_killed(
    dataset, waiting, tmp_path, monkeypatch, moment
):
    """The environment steps only after training has passed the step that is evaluated.

    A copy of the directory is what a killed process leaves behind. A run that goes on from it repeats the evaluation.
    """
    out, gate, copy = tmp_path / "run", tmp_path / "gate", tmp_path / "killed"
    env = partial(Gated, gate)
    open_gate_at(monkeypatch, gate, GATE)
    show = Session.show

    def copy_at(self, reached):
        if reached >= moment and not copy.exists():
            shutil.copytree(out, copy)
        show(self, reached)

    monkeypatch.setattr(Session, "show", copy_at)
    made = fit(dataset, out, env=env, **SETTINGS, eval_background=True)
    assert gate.exists()
    assert [row["step"] for row in read_rows(out / "eval.jsonl")] == [20, 40, 60]
    assert made.evaluation == {**read_rows(waiting / "eval.jsonl")[-1]}
    resume(copy, dataset, env=env, quiet=True)
    assert fingerprint(copy, STEPS) == fingerprint(out, STEPS) == fingerprint(waiting, STEPS)


@pytest.mark.slow
def test_an_environment_that_cannot_start_again_ends_the_run_and_it_resumes(dataset, waiting, tmp_path):
    out, broken = tmp_path / "run", tmp_path / "broken"

    def make_env():
        if broken.exists():
            raise OSError("no simulator")
        if out.exists():  # training has begun: this first environment breaks at its first step
            broken.touch()
        return Gated(broken=broken)

    with pytest.raises(EnvError, match="no simulator"):
        fit(dataset, out, env=make_env, **SETTINGS, eval_background=True)
    assert json.loads((out / "status.json").read_text())["state"] == "failed"
    broken.unlink()
    resume(out, dataset, env=Gated, quiet=True)
    assert [row["step"] for row in read_rows(out / "eval.jsonl")] == [20, 40, 60]


def test_it_is_on_where_there_are_two_cores_and_off_with_a_callback(dataset, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(Session, "start_environments", lambda self: found.append(self.background))
    monkeypatch.setattr(Session, "done", property(lambda self: bool(found)))
    cores = {"two": [0, 1], "one": [0]}
    for name, usable in cores.items():
        monkeypatch.setattr("fidec.train.opening.usable_cores", lambda usable=usable: usable)
        found.clear()
        fit(dataset, tmp_path / name, env=Gated, **SETTINGS)
        assert found == [name == "two"]
    found.clear()
    fit(dataset, tmp_path / "callback", env=Gated, **SETTINGS, eval_background=True, callback=lambda *_: None)
    assert found == [False]
