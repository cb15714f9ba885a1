"""A run that was stopped and resumed leaves the same bytes as one that was not."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal

import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from safetensors.numpy import load_file

from fidec import dataset_from_arrays, fit, resume
from fidec.errors import CheckpointError, ConfigError, NonFiniteError, OutOfMemoryError, RunError
from fidec.store import files
from fidec.store.rundir import RunDirectory
from fidec.train import dispatch, run
from fidec.train.run import Preempted
from fidec.train.session import Session
from fidec.train.stored import config_of
from helpers import some
from helpers.runs import fingerprint, random_columns, read_rows

STEPS = 120
SETTINGS = {
    "steps": STEPS,
    "seed": 4,
    "batch_size": 8,
    "log_interval": 15,
    "checkpoint_interval": 40,
    "eval_interval": 60,
    "eval_episodes": 3,
    "eval_envs": 1,
    "eval_seeds": "fresh",
    "quiet": True,
}


TINY = {**SETTINGS, "algo": "tiny"}


@pytest.fixture
def dataset():
    return dataset_from_arrays(**random_columns())


@pytest.fixture
def small_dispatches(monkeypatch):
    """Dispatches of seven steps, which fit no interval: a stop may come anywhere."""
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    return tmp_path_factory.mktemp("whole"), {}


@pytest.fixture
def whole(wholes, dataset, tiny_env, compile_cache):
    """whole(env): the directory of an uninterrupted run of the tiny method, with or without an environment."""
    directory, made = wholes

    def run(env: bool = False):
        if env not in made:
            settings = {**TINY, "env": tiny_env} if env else TINY
            made[env] = fit(dataset, directory / f"env-{env}", **settings).directory
        return made[env]

    return run


def status(out) -> tuple[str, int, str | None]:
    content = json.loads((out / "status.json").read_text())
    return content["state"], content["step"], content["reason"]


def test_stopped_at_random_steps(tmp_path, dataset, whole, tiny_env, small_dispatches, stop_at):
    settings = {**TINY, "env": tiny_env, "eval_background": False}  # else it may stop at an earlier step
    expected = fingerprint(whole(env=True), STEPS)
    assert len(read_rows(whole(env=True) / "episodes.jsonl")) == 2 * SETTINGS["eval_episodes"]

    out = tmp_path / "stopped"
    stops = sorted(random.sample(range(1, STEPS), 2))
    stop_at(stops[0])
    with pytest.raises(Preempted, match="SIGTERM: saved at step") as caught:
        fit(dataset, out, **settings)
    assert caught.value.exit_code == 75
    reached = [status(out)[1]]
    for step in stops[1:]:
        stop_at(max(step, reached[-1] + 1))
        with pytest.raises(Preempted):
            resume(out, dataset, quiet=True)
        reached.append(status(out)[1])
    assert status(out)[0] == "preempted"
    assert all(at >= step for at, step in zip(reached, stops, strict=True))
    with pytest.raises(RunError, match="arrays given in Python"):
        resume(out, quiet=True)
    result = resume(out, dataset, quiet=True)
    assert result.step == STEPS
    assert fingerprint(out, STEPS) == expected, f"stopped at {reached}"
    assert status(out) == ("done", STEPS, None)

    again = resume(out, dataset, quiet=True)  # nothing is left to do, and nothing changes
    assert again.evaluation == result.evaluation
    assert fingerprint(out, STEPS) == expected


@pytest.mark.slow  # test_online.py stops and resumes another method with optimisers and targets
def test_fidec_stopped_between_checkpoints(tmp_path, dataset, compile_cache, small_dispatches, stop_at):
    """The method itself, with its optimisers, target and multiplier."""
    settings = {
        **SETTINGS,
        "steps": 40,
        "seed": 5,
        "batch_size": 16,
        "options": {"hidden": (16, 16), "flow_steps": 2},
    }
    fit(dataset, tmp_path / "whole", **settings)
    stop_at(17, signal.SIGINT)
    with pytest.raises(Preempted) as caught:
        fit(dataset, tmp_path / "stopped", **settings)
    assert caught.value.exit_code == 130
    assert status(tmp_path / "stopped") == ("preempted", 22, "SIGINT")
    resume(tmp_path / "stopped", dataset, quiet=True)
    assert fingerprint(tmp_path / "stopped", 40) == fingerprint(tmp_path / "whole", 40)


@pytest.mark.parametrize("evaluation", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_stopped_inside_an_evaluation(tmp_path, dataset, whole, tiny_env, monkeypatch, evaluation):
    """The checkpoint then says that the evaluation is still due, and a resumed run begins with it."""
    settings, expected = {**TINY, "env": tiny_env}, fingerprint(whole(env=True), STEPS)
    step, calls, check = (evaluation + 1) * 60, [0], Session._check_signals

    def interrupt(self):
        calls[0] += self.step == step
        if calls[0] == 17:
            os.kill(os.getpid(), signal.SIGTERM)
        check(self)

    out = tmp_path / "stopped"
    monkeypatch.setattr(Session, "_check_signals", interrupt)
    with pytest.raises(Preempted, match=f"step {step}"):
        fit(dataset, out, **settings)
    assert calls[0] == 17  # it did not wait for the end of the episode
    manifest = json.loads((out / "checkpoints" / f"{step:08d}" / "manifest.json").read_text())
    assert manifest["extra"]["extra"]["evaluated"] is False
    assert len(read_rows(out / "eval.jsonl")) == evaluation
    resume(out, dataset, quiet=True)
    assert fingerprint(out, STEPS) == expected


def test_more_steps_than_planned(tmp_path, dataset, whole):
    """An extended run equals one that was longer from the start, except for the log row of the former end."""
    fit(dataset, tmp_path / "short", **{**TINY, "steps": 45})
    assert resume(tmp_path / "short", dataset, steps=STEPS, quiet=True).step == STEPS
    assert fingerprint(tmp_path / "short", STEPS) == fingerprint(whole(), STEPS)
    fit(dataset, tmp_path / "odd", **{**TINY, "steps": 50})  # an end between two rows of the log
    resume(tmp_path / "odd", dataset, steps=STEPS, quiet=True)
    state = f"checkpoints/{STEPS:08d}/state.safetensors"
    assert fingerprint(tmp_path / "odd", STEPS)[state] == fingerprint(whole(), STEPS)[state]
    rows = [row for row in read_rows(tmp_path / "odd" / "train.jsonl") if row["step"] != 50]
    assert rows == read_rows(whole() / "train.jsonl")
    assert json.loads((tmp_path / "short" / "config.json").read_text())["steps"] == STEPS
    with pytest.raises(ConfigError, match="would be fewer"):
        resume(tmp_path / "short", dataset, steps=STEPS - 1)


def test_a_damaged_checkpoint_costs_time_but_no_bits(tmp_path, dataset, whole, capsys):
    out = tmp_path / "run"
    shutil.copytree(whole(), out)
    newest = out / "checkpoints" / f"{STEPS:08d}" / "state.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[-3] ^= 1
    newest.write_bytes(raw)
    resume(out, dataset, quiet=True)
    printed = capsys.readouterr().err
    assert f"step {STEPS} is damaged and is not used" in printed
    assert "at step 80" in printed
    assert f"step {STEPS} is damaged" in (out / "run.log").read_text()
    assert fingerprint(out, STEPS) == fingerprint(whole(), STEPS)

    for checkpoint in (out / "checkpoints").iterdir():
        (checkpoint / "manifest.json").write_text("{}")
    before = fingerprint(out, STEPS)
    with pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged \(steps 80, 120; .*--overwrite"):
        resume(out, dataset, quiet=True)
    assert capsys.readouterr().err.count("is damaged and is not used") == 2
    assert fingerprint(out, STEPS) == before
    assert status(out)[0] == "done"


def test_a_damaged_log_or_record_is_refused(tmp_path, dataset, whole):
    out = tmp_path / "run"
    shutil.copytree(whole(), out)
    lines = (out / "train.jsonl").read_bytes().splitlines(keepends=True)
    (out / "train.jsonl").write_bytes(lines[0] + lines[1].replace(b"step", b"stop") + b"".join(lines[2:]))
    with pytest.raises(RunError, match=r"train\.jsonl was changed or lost \(damaged lines: 2\).*copy.*--overwrite"):
        resume(out, dataset, quiet=True)
    (out / "train.jsonl").write_bytes(b"".join(lines))
    (out / "environment.json").write_text('{"dataset": [')
    with pytest.raises(RunError, match=r"environment\.json is damaged.*copy.*--overwrite"):
        resume(out, dataset, quiet=True)
    shutil.copy(whole() / "environment.json", out)
    resume(out, dataset, quiet=True)  # restored from a copy: the run is whole again
    assert fingerprint(out, STEPS) == fingerprint(whole(), STEPS)


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        (
            "train",
            JaxRuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 123 bytes."),
            "the device.*123 bytes",
        ),
        ("train", MemoryError("Unable to allocate 3 GiB"), "this machine.*3 GiB"),
        ("read", OSError(errno.ENOMEM, "Cannot allocate memory"), "this machine.*reading .*safetensors"),
    ],
)
def test_too_little_memory_is_no_damage_and_says_what_to_do(
    tmp_path, dataset, whole, monkeypatch, place, error, words
):
    out = tmp_path / "run"
    shutil.copytree(whole(), out)

    def fail(*arguments, **options):
        raise error

    if place == "train":
        monkeypatch.setattr(run, "run_for", fail)
    else:
        monkeypatch.setattr(files, "sha256_file", fail)
    with pytest.raises(OutOfMemoryError, match=f"{words}.*a batch has 8 rows.*GB are free.*--memory-limit"):
        resume(out, dataset, steps=STEPS + 1, quiet=True)
    assert "is damaged" not in (out / "run.log").read_text()


def test_a_non_finite_number_stops_the_run_and_reaches_no_checkpoint(tmp_path, tiny, compile_cache):
    columns = random_columns()
    columns["rewards"][17] = 2e6  # the tiny method divides by zero there
    out = tmp_path / "run"
    with pytest.raises(NonFiniteError, match=r"not finite at step \d+: term"):
        fit(
            dataset_from_arrays(**columns),
            out,
            **{**SETTINGS, "algo": "tiny", "checkpoint_interval": 1, "steps": 500},
        )
    state, _, reason = status(out)
    assert state == "failed"
    assert "term" in some(reason)
    saved = sorted((out / "checkpoints").iterdir())
    assert all(np.isfinite(a).all() for path in saved for a in load_file(path / "state.safetensors").values())
    assert (out / "train.jsonl").read_text().count("null") == 0


def test_other_data_is_rejected(tmp_path, whole):
    with pytest.raises(RunError, match=r"trained on other data.*Restore the data"):
        resume(whole(), dataset_from_arrays(**random_columns(seed=1)), quiet=True)


def test_the_configuration_is_read_back_and_checked(tmp_path, dataset, whole):
    path = tmp_path / "run" / "config.json"
    shutil.copytree(whole(), tmp_path / "run")
    stored = RunDirectory.open(tmp_path / "run", read_only=True).read_config()
    config = config_of(stored)
    assert config.to_json() == stored
    for change in ({"steps": "many"}, {"options": {"jitters": 1.0}}, {"colour": 1}, {"algo": 3}, {"seed": None}):
        path.write_text(json.dumps({**dataclasses.asdict(config), "out": None, **change}))
        with pytest.raises((ConfigError, RunError), match=r"config|option|seed"):
            resume(tmp_path / "run", dataset, quiet=True)


# --- the callback of `fit` --------------------------------------------------------------------------------------


def test_a_callback_gets_every_row_and_can_stop_a_run_that_resumes_exactly(dataset, tiny_env, whole, tmp_path):
    rows = []

    def stop_at_first_evaluation(step, metrics):
        rows.append({"step": step, **metrics})
        return "evaluation/score" in metrics

    out = tmp_path / "run"
    result = fit(dataset, out, env=tiny_env, callback=stop_at_first_evaluation, **TINY)
    assert (result.stopped, result.step) == (True, 60)
    assert result.evaluation == rows[-1]
    status = some(RunDirectory.open(out, read_only=True).read_status())
    assert (status["state"], status["step"], status["reason"]) == ("preempted", 60, "the callback asked to stop")
    seen = [row for row in rows if "training/loss" in row]
    assert seen == read_rows(out / "train.jsonl")
    result = resume(out, dataset, quiet=True, callback=lambda step, metrics: rows.append({"step": step, **metrics}))
    assert not result.stopped
    assert [row for row in rows if "training/loss" in row] == read_rows(out / "train.jsonl")
    assert [row for row in rows if "evaluation/score" in row] == read_rows(out / "eval.jsonl")
    assert fingerprint(out, STEPS) == fingerprint(whole(env=True), STEPS)


def test_an_error_in_a_callback_leaves_the_last_checkpoint(dataset, whole, tmp_path):
    def fail(step, metrics):
        assert isinstance(metrics["training/loss"], float)
        if step == 75:
            raise KeyError("loss")

    out = tmp_path / "run"
    with pytest.raises(KeyError, match="loss"):
        fit(dataset, out, callback=fail, **TINY)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["00000040"]
    assert resume(out, dataset, quiet=True).step == STEPS
    assert fingerprint(out, STEPS) == fingerprint(whole(), STEPS)
