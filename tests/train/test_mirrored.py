"""Runs at URLs: trained here, mirrored, continued elsewhere with the same bits; read by every command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fidec
from fidec import dataset_from_arrays, fit, load_policy, resume
from fidec.errors import RunError
from fidec.store import staging
from fidec.store.remote import Store
from fidec.store.remote_run import TakenOver
from fidec.train import run as module
from fidec.train.run import Preempted
from helpers.faults import contents, move_run
from helpers.runs import check_error, fingerprint, random_columns
from helpers.stores import memory_store

URL = "memory://bucket/runs/x"
STEPS = 60
SETTINGS = {"algo": "tiny", "batch_size": 8, "log_interval": 15, "checkpoint_interval": 20, "quiet": True}
WORDS = ("--algo", "tiny", "--batch-size", 8, "--log-interval", 15, "--checkpoint-interval", 20, "--steps", STEPS)


@pytest.fixture
def faults(monkeypatch, tmp_path):
    monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / "machine-1"))
    with memory_store(monkeypatch) as faults:
        yield faults


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Go to another machine: to another staging directory."""
    return lambda name="machine-2": monkeypatch.setenv("FIDEC_STAGE_DIR", str(tmp_path / name))


@pytest.fixture
def dataset(tiny, compile_cache):
    return dataset_from_arrays(**random_columns())


@pytest.fixture
def uninterrupted(dataset, tmp_path):
    """The fingerprint of a local run."""
    return fingerprint(fit(dataset, tmp_path / "local", steps=STEPS, **SETTINGS).directory, STEPS)


def names_at(url: str) -> set[str]:
    found = next(staging.snapshots(Store(url), pytest.fail))
    return set(found.files)


def test_a_run_at_a_url_is_the_local_run(faults, dataset, uninterrupted, elsewhere):
    result = fit(dataset, f"{URL}/", steps=STEPS, **SETTINGS)
    assert result.url == URL
    assert fingerprint(result.directory, STEPS) == uninterrupted
    elsewhere()
    copy = staging.local_run(URL, whole=True)
    assert copy != result.directory
    assert fingerprint(copy, STEPS) == uninterrupted
    assert json.loads((copy / "status.json").read_text())["state"] == "done"
    assert json.loads((copy / "config.json").read_text())["out"] == URL
    assert "lock" not in names_at(URL)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_continued_on_another_machine_has_the_same_bits(
    faults, dataset, uninterrupted, elsewhere, stop_at, monkeypatch, how
):
    if how == "stopped":
        stop_at(30)
        with pytest.raises(Preempted, match=f"Continue with: fidec train --resume {URL}"):
            fit(dataset, URL, steps=STEPS, **SETTINGS)
    else:  # after its first checkpoint the machine is gone, and all that it had not mirrored

        def die(step, metrics):
            if step == 30:
                faults.fail = lambda name, number: ConnectionError("gone")
                raise SystemError("killed")

        with pytest.raises(SystemError):
            fit(dataset, URL, steps=STEPS, callback=die, **SETTINGS)
        faults.fail = lambda name, number: None
    elsewhere()
    result = resume(URL, dataset, quiet=True)
    assert result.step == STEPS
    assert fingerprint(result.directory, STEPS) == uninterrupted
    elsewhere("machine-3")
    assert fingerprint(staging.local_run(URL, whole=True), STEPS) == uninterrupted


def test_a_run_that_was_stopped_before_its_first_checkpoint_continues(faults, dataset, uninterrupted, elsewhere):
    with pytest.raises(SystemError):
        fit(dataset, URL, steps=STEPS, callback=lambda step, metrics: exec("raise SystemError"), **SETTINGS)
    elsewhere()
    assert fingerprint(resume(URL, dataset, quiet=True).directory, STEPS) == uninterrupted


def test_an_unreachable_store_does_not_stop_training(faults, dataset, uninterrupted, capsys):
    def cut(step, metrics):
        down = 15 <= step < 50  # at both checkpoints before the end
        faults.fail = lambda name, number: ConnectionError("no route") if down else None

    result = fit(dataset, URL, steps=STEPS, callback=cut, **SETTINGS)
    said = (result.directory / "run.log").read_text()
    assert said.count("is mirrored later") == 1
    assert fingerprint(staging.local_run(URL, whole=True), STEPS) == uninterrupted


def test_a_run_that_could_not_be_mirrored_says_how(faults, dataset, uninterrupted):
    def cut(step, metrics):
        faults.fail = lambda name, number: ConnectionError("no route")

    with pytest.raises(RunError, match=f"cannot be reached.*machine-1.*Mirror it with: fidec train --resume {URL}"):
        fit(dataset, URL, steps=STEPS, callback=cut, **SETTINGS)
    faults.fail = lambda name, number: None
    assert not any(name.startswith("checkpoints") for name in names_at(URL))
    result = resume(URL, dataset, quiet=True)  # nothing is left to train
    assert fingerprint(staging.local_run(URL, whole=True), STEPS) == fingerprint(result.directory, STEPS)
    assert fingerprint(result.directory, STEPS) == uninterrupted


def test_a_run_stops_when_another_machine_takes_over(faults, dataset, elsewhere):
    def other(step, metrics):
        if step == 30:
            elsewhere()
            resume(URL, dataset, quiet=True)

    with pytest.raises(TakenOver, match="was continued by process"):
        fit(dataset, URL, steps=STEPS, callback=other, **SETTINGS)
    copy = staging.local_run(URL)
    assert json.loads((copy / "status.json").read_text())["state"] == "done"


def test_the_directory_of_another_run_is_not_mirrored(faults, dataset, uninterrupted, elsewhere, tmp_path, capsys):
    """While the files of a state are uploaded, another run takes the place of the local directory."""
    other = fit(dataset, tmp_path / "other", seed=1, steps=STEPS, **SETTINGS).directory
    stage: list[Path] = []

    def replace(name, number):
        saved = list(Path(tmp_path, "machine-1").glob("*/x/checkpoints/00000040"))
        if saved and not stage and name == "put_file":
            stage.append(saved[0].parents[1])
            move_run("renamed", stage[0], other)

    faults.fail = replace
    with pytest.raises(RunError, match=f"no longer at {tmp_path}/machine-1/.*/x"):
        fit(dataset, URL, steps=STEPS, **SETTINGS)
    assert capsys.readouterr().err.count("no longer at") == 0
    assert contents(stage[0]) == contents(other)
    elsewhere()
    assert fingerprint(resume(URL, dataset, quiet=True).directory, STEPS) == uninterrupted


def test_seeds_are_mirrored_each_by_itself(faults, dataset, elsewhere):
    results = fit(dataset, URL, seeds=(0, 1), steps=20, **SETTINGS)
    assert [result.url for result in results] == [f"{URL}/seed000", f"{URL}/seed001"]
    assert fingerprint(staging.local_run(f"{URL}/seed001", whole=True), 20) == fingerprint(results[1].directory, 20)


def test_a_store_that_refuses_is_found_before_training(faults, dataset):
    faults.fail = lambda name, number: PermissionError("Forbidden")
    with pytest.raises(RunError, match="no permission to list manifests"):
        fit(dataset, URL, steps=STEPS, callback=lambda step, metrics: pytest.fail("trained"), **SETTINGS)


def test_overwriting_a_run_at_a_url(faults, dataset):
    first = fit(dataset, URL, steps=20, **SETTINGS)
    with pytest.raises(RunError, match="holds a run already"):
        fit(dataset, URL, steps=20, seed=1, **SETTINGS)
    before = fingerprint(first.directory, 20)
    second = fit(dataset, URL, steps=20, seed=1, overwrite=True, **SETTINGS)
    assert fingerprint(second.directory, 20) != before
    assert fingerprint(staging.local_run(URL, whole=True), 20) == fingerprint(second.directory, 20)


def test_policies_and_other_runs_are_read_from_urls(faults, dataset, elsewhere):
    result = fit(dataset, URL, steps=20, **SETTINGS)
    elsewhere()
    expected = load_policy(result.directory)(np.ones(3))
    for place in (URL, Path(URL), f"{URL}/policy"):
        np.testing.assert_array_equal(load_policy(place)(np.ones(3)), expected)
    started = fit(dataset, "memory://bucket/runs/y", steps=20, init_from=Path(URL), **SETTINGS)
    assert "starts from" in (started.directory / "run.log").read_text()


def test_commands_read_runs_from_urls(faults, tiny, cli, npz, compile_cache, elsewhere, tmp_path):
    code, out, err = cli("train", "--data", f"npz:{npz}", *WORDS, "--out", URL)
    assert code == 0, err
    assert f"mirrored to {URL}" in out
    assert "machine-1" in err
    elsewhere()
    code, out, err = cli("report", f"{URL}/", "--out", tmp_path / "r.html")
    assert (code, out) == (0, f"report: {tmp_path / 'r.html'}\n"), err
    check_error(cli("eval", "memory://bucket/nothing"), 1, "there is no run at memory://bucket/nothing")
    check_error(cli("eval", "s4://bucket/x"), 2, "URL scheme 's4'")
    check_error(cli("train", "--resume", "memory://bucket/nothing"), 1, "there is no run at")
    for argv in (("sweep", "--data", f"npz:{npz}", "--algo", "tiny", "--out", URL), ("report", URL, "--out", URL)):
        check_error(cli(*argv), 2, f"--out {URL}", "needs a path of this machine")


@pytest.mark.slow
def test_a_run_at_a_url_is_evaluated_and_compared(faults, tiny, tiny_env, cli, npz, compile_cache, elsewhere):
    evaluated = ("--env", tiny_env, "--eval-interval", 30, "--eval-episodes", 2, "--eval-envs", 1)
    code, _, err = cli("train", "--data", f"npz:{npz}", *WORDS, *evaluated, "--out", URL)
    assert code == 0, err
    elsewhere()
    for argv, words in (
        (("eval", URL, "--episodes", 2), "episodes"),
        (("compare", URL), "tiny"),
        (("export", URL, "--to", "numpy", "--out", "exported"), "compared with the policy"),
    ):
        code, out, err = cli(*argv)
        assert code == 0, (argv, err)
        assert words in out, argv
    assert fidec.compare([URL]).comparisons


@pytest.mark.slow
def test_a_flow_that_is_trained_first_is_mirrored_and_continued(
    faults, compile_cache, elsewhere, tmp_path, monkeypatch
):
    dataset = dataset_from_arrays(**random_columns())
    options = {"hidden": (8, 8)}
    settings = {**SETTINGS, "algo": "fidec", "options": options, "flow_updates": 40, "steps": 20}
    whole = fit(dataset, tmp_path / "local", **settings)

    def die(step, metrics):
        if step == 30:
            faults.fail = lambda name, number: ConnectionError("gone")
            raise SystemError("killed")

    train_all = module._train_all
    with monkeypatch.context() as patch:  # killed while the flow is trained
        patch.setattr(module, "_train_all", lambda starts, quiet, callback=None: train_all(starts, quiet, die))
        with pytest.raises(SystemError):
            fit(dataset, URL, **settings)
    faults.fail = lambda name, number: None
    assert "flow/checkpoints/00000020/state.safetensors" in names_at(URL)
    elsewhere()
    assert fingerprint(resume(URL, dataset, quiet=True).directory, 20) == fingerprint(whole.directory, 20)
