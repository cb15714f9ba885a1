"""A run that was stopped and resumed leaves the same bytes as one that was not."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from fidec import dataset_from_arrays, fit, resume
from fidec.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from fidec.train import loop
from fidec.train.run import Preempted
from fidec.train.session import Session
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
    "quiet": True,
}


@pytest.fixture
def dataset():
    return dataset_from_arrays(**random_columns())


@pytest.fixture
def small_dispatches(monkeypatch):
    """Dispatches of seven steps, which fit no interval: a stop may come anywhere."""
    monkeypatch.setattr(loop.Pace, "next", lambda self, left: min(left, 7))


def status(out) -> tuple[str, int, str | None]:
    found = json.loads((out / "status.json").read_text())
    return found["state"], found["step"], found["reason"]


def test_stopped_at_random_steps(tmp_path, dataset, tiny_env, compile_cache, small_dispatches, stop_at):
    settings = {**SETTINGS, "algo": "tiny", "env": tiny_env}
    result = fit(dataset, tmp_path / "whole", **settings)
    whole = fingerprint(tmp_path / "whole", STEPS)
    assert result.step == STEPS
    assert len(read_rows(tmp_path / "whole" / "episodes.jsonl")) == 2 * SETTINGS["eval_episodes"]

    out = tmp_path / "stopped"
    stops = sorted(random.sample(range(1, STEPS), 3))
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
    assert resume(out, dataset, quiet=True).step == STEPS
    assert fingerprint(out, STEPS) == whole, f"stopped at {reached}"
    assert status(out) == ("done", STEPS, None)

    again = resume(out, dataset, quiet=True)  # nothing is left to do, and nothing changes
    assert again.evaluation == result.evaluation
    assert fingerprint(out, STEPS) == whole


def test_fidec_stopped_between_checkpoints(tmp_path, dataset, compile_cache, small_dispatches, stop_at):
    """The method itself, with its optimisers, target and multiplier."""
    # Seed, batch and networks are those of test_loop.py: the same program need not be compiled twice.
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


@pytest.mark.parametrize("evaluation", [0, 1])
def test_stopped_inside_an_evaluation(tmp_path, dataset, tiny_env, compile_cache, monkeypatch, evaluation):
    """The checkpoint then says that the evaluation is still to be made, and resuming begins with it."""
    settings = {**SETTINGS, "algo": "tiny", "env": tiny_env}
    fit(dataset, tmp_path / "whole", **settings)
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
    assert fingerprint(out, STEPS) == fingerprint(tmp_path / "whole", STEPS)


def test_more_steps_than_planned(tmp_path, dataset, tiny, compile_cache):
    """A finished run goes on as if it had been longer from the start; its old end stays in the logs."""
    settings = {**SETTINGS, "algo": "tiny"}
    fit(dataset, tmp_path / "whole", **settings)
    fit(dataset, tmp_path / "short", **{**settings, "steps": 45})
    assert resume(tmp_path / "short", dataset, steps=STEPS, quiet=True).step == STEPS
    assert fingerprint(tmp_path / "short", STEPS) == fingerprint(tmp_path / "whole", STEPS)
    fit(dataset, tmp_path / "odd", **{**settings, "steps": 50})  # an end between two rows of the log
    resume(tmp_path / "odd", dataset, steps=STEPS, quiet=True)
    state = f"checkpoints/{STEPS:08d}/state.safetensors"
    assert fingerprint(tmp_path / "odd", STEPS)[state] == fingerprint(tmp_path / "whole", STEPS)[state]
    rows = [row for row in read_rows(tmp_path / "odd" / "train.jsonl") if row["step"] != 50]
    assert rows == read_rows(tmp_path / "whole" / "train.jsonl")
    fit(dataset, tmp_path / "other", **{**settings, "seed": 5})
    assert fingerprint(tmp_path / "other", STEPS) != fingerprint(tmp_path / "whole", STEPS)
    assert json.loads((tmp_path / "short" / "config.json").read_text())["steps"] == STEPS
    with pytest.raises(ConfigError, match="would be fewer"):
        resume(tmp_path / "short", dataset, steps=STEPS - 1)


def test_a_damaged_checkpoint_costs_time_but_no_bits(tmp_path, dataset, tiny, compile_cache, stop_at, capsys):
    settings = {**SETTINGS, "algo": "tiny"}
    fit(dataset, tmp_path / "whole", **settings)
    out = tmp_path / "stopped"
    fit(dataset, out, **{**settings, "steps": 90})
    newest = out / "checkpoints" / "00000090" / "state.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[-3] ^= 1
    newest.write_bytes(raw)
    resume(out, dataset, steps=STEPS, quiet=True)
    said = capsys.readouterr().err
    assert "step 90 is damaged and is not used" in said
    assert "at step 80" in said
    assert "step 90 is damaged" in (out / "run.log").read_text()
    assert fingerprint(out, STEPS) == fingerprint(tmp_path / "whole", STEPS)


def test_without_any_good_checkpoint_nothing_is_overwritten(tmp_path, dataset, tiny, compile_cache, capsys):
    out = tmp_path / "run"
    fit(dataset, out, **{**SETTINGS, "algo": "tiny"})
    for checkpoint in (out / "checkpoints").iterdir():
        (checkpoint / "manifest.json").write_text("{}")
    before = fingerprint(out, STEPS)
    with pytest.raises(CheckpointError, match=r"every checkpoint .* is damaged \(steps 80, 120\).*--overwrite"):
        resume(out, dataset, quiet=True)
    assert capsys.readouterr().err.count("is damaged and is not used") == 2
    assert fingerprint(out, STEPS) == before
    assert status(out)[0] == "failed"


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
    assert "term" in reason
    saved = sorted((out / "checkpoints").iterdir())
    assert all(np.isfinite(a).all() for path in saved for a in load_file(path / "state.safetensors").values())
    assert (out / "train.jsonl").read_text().count("null") == 0


def test_other_data_is_refused(tmp_path, dataset, tiny, compile_cache):
    fit(dataset, tmp_path / "run", **{**SETTINGS, "algo": "tiny"})
    other = dataset_from_arrays(**random_columns(seed=1))
    with pytest.raises(RunError, match=r"trained on other data.*Restore the data"):
        resume(tmp_path / "run", other, quiet=True)
    with pytest.raises(RunError, match="arrays given in Python"):
        resume(tmp_path / "run", quiet=True)


def test_arrays_with_an_environment_must_be_given_again(tmp_path, dataset, tiny_env, compile_cache):
    fit(dataset, tmp_path / "run", **{**SETTINGS, "algo": "tiny", "env": tiny_env})
    with pytest.raises(RunError, match="arrays given in Python"):
        resume(tmp_path / "run", quiet=True)
    assert resume(tmp_path / "run", dataset, quiet=True).step == STEPS


def test_the_configuration_survives_its_file(tmp_path, dataset, tiny, compile_cache):
    from fidec.train.config import RunConfig

    fit(dataset, tmp_path / "run", **{**SETTINGS, "algo": "tiny", "options": {"jitter": 0.5}})
    path = tmp_path / "run" / "config.json"
    config = RunConfig.from_json(json.loads(path.read_text()))
    assert config.to_json() == json.loads(path.read_text())
    assert config.options == tiny.TinyConfig(jitter=0.5)
    for change in ({"steps": "many"}, {"options": {"jitters": 1.0}}, {"colour": 1}, {"algo": 3}, {"seed": None}):
        path.write_text(json.dumps({**dataclasses.asdict(config), "out": None, **change}))
        with pytest.raises(ConfigError):
            resume(tmp_path / "run", dataset, quiet=True)
