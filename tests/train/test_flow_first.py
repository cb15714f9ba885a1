"""The behaviour flow first: two stages in one run, a flow from another run, held-out episodes."""

from __future__ import annotations

import json
import os
import shutil
import signal

import numpy as np
import pytest

from fidec import dataset_from_arrays, fit, load_policy, resume
from fidec.data import feed
from fidec.data.holdout import hold_out
from fidec.errors import ConfigError, DataError
from fidec.train import dispatch, flow_first
from fidec.train.config import OnlineConfig
from fidec.train.run import Preempted
from fidec.train.validation import Validation
from helpers.algorithms import equal
from helpers.online_envs import WALK
from helpers.runs import fingerprint, online_fingerprint, random_columns, read_rows

STEPS, FLOW = 30, 40
SETTINGS = {
    "steps": STEPS,
    "flow_updates": FLOW,
    "validation": 0.05,
    "batch_size": 8,
    "log_interval": 10,
    "checkpoint_interval": 15,
    "options": {"hidden": (8,), "flow_steps": 2, "proposals": 2},
    "quiet": True,
}

GIVEN = {"flow_updates": 0, "validation": None}  # with a flow of another run


@pytest.fixture(scope="module")
def dataset():
    return dataset_from_arrays(**random_columns(rows=440))  # 22 episodes: one of every 20 is held out


@pytest.fixture(scope="module")
def whole(tmp_path_factory, dataset, compile_cache):
    """An uninterrupted run of both stages."""
    return fit(dataset, tmp_path_factory.mktemp("first") / "whole", **SETTINGS).directory


def prints(run):
    return fingerprint(run, STEPS), fingerprint(run / "flow", FLOW)


def test_both_stages_are_runs_and_the_flow_is_the_first_one_s(whole):
    flow, policy = load_policy(whole / "flow"), load_policy(whole)
    assert flow.algo == "flow_bc"
    assert equal(policy.state.params["flow"], flow.state.params["flow"])
    rows = read_rows(whole / "flow" / "train.jsonl")
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert all(np.isfinite(row["validation/flow_loss"]) for row in rows)
    assert "training/flow_loss" not in read_rows(whole / "train.jsonl")[-1]


# test_chunks.py stops a run inside the first stage.
@pytest.mark.parametrize("stop", [pytest.param(("flow", 13), marks=pytest.mark.slow), ("flow", FLOW), ("rest", 17)])
def test_a_run_stopped_in_either_stage_ends_with_the_same_bytes(tmp_path, dataset, whole, monkeypatch, stop_at, stop):
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))
    out, (stage, step) = tmp_path / "run", stop
    if stage == "rest":
        shutil.copytree(whole, out)
        for name in ("checkpoints", "policy"):
            shutil.rmtree(out / name)
        for name in ("train.jsonl", "status.json"):
            (out / name).unlink()
        stop_at(step)
        with pytest.raises(Preempted):
            resume(out, dataset, quiet=True)
    else:
        stop_at(step)
        with pytest.raises(Preempted, match="--resume " + str(out)):
            fit(dataset, out, **SETTINGS)
        assert json.loads((out / "status.json").read_text())["state"] == "preempted"
    resume(out, dataset, quiet=True)
    assert prints(out) == prints(whole)


def test_a_flow_from_another_run_gives_the_same_run_and_is_copied(tmp_path, dataset, whole):
    other = tmp_path / "other"
    shutil.copytree(whole / "flow", other)
    settings = {**SETTINGS, **GIVEN, "flow": other}
    out = fit(dataset, tmp_path / "run", **{**settings, "steps": 15}).directory
    shutil.rmtree(other)  # a resumed run does not need it
    resume(out, dataset, steps=STEPS, quiet=True)
    assert (out / f"checkpoints/{STEPS:08d}/state.safetensors").read_bytes() == (
        whole / f"checkpoints/{STEPS:08d}/state.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"hidden": (16,)}}, "same --algo.hidden"),
        ({"algo": "fawac", "options": {"hidden": (8,)}}, "fawac cannot be trained with a frozen flow"),
        ({"flow_updates": 5}, "both --flow and --flow-updates"),
        ({"normalize_observations": False}, "observation_mean"),
        ({"algo": "fql", "validation": 0.1, "options": {"hidden": (8,)}}, "imitate the data"),
        ({"validation": 0.9}, "in \\[0, 0.5\\]"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, dataset, whole, changes, words):
    settings = {**SETTINGS, **GIVEN, "flow": whole / "flow", **changes}
    with pytest.raises(ConfigError, match=words):
        fit(dataset, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


ONLINE = {**GIVEN, "env": WALK, "eval_interval": 0, "steps": 15, "online_steps": 12, "log_interval": 10}


@pytest.fixture(scope="module")
def online(tmp_path_factory, dataset, whole):
    """An uninterrupted run with an online phase. The last offline step is between two rows of the log."""
    settings = {**SETTINGS, **ONLINE, "flow": whole / "flow"}
    return fit(dataset, tmp_path_factory.mktemp("online") / "run", **settings).directory


def test_the_flow_stays_as_it_is_online_and_its_loss_is_logged(whole, online):
    assert equal(load_policy(online).state.params["flow"], load_policy(whole / "flow").state.params["flow"])
    rows = {row["step"]: row for row in read_rows(online / "train.jsonl")}
    assert sorted(rows) == [10, 15, 20, 27]
    assert [step for step in rows if "training/flow_loss" in rows[step]] == [20, 27]
    assert all(row["training/loss"] == pytest.approx(sum_of_losses(row), rel=1e-5) for row in rows.values())


def sum_of_losses(row):
    return sum(value for name, value in row.items() if name.startswith("training/") and name.endswith("_loss"))


SLOW = [pytest.param(stops, marks=pytest.mark.slow) for stops in ((7, 20), (16, 24))]


@pytest.mark.parametrize("stops", [(15,), *SLOW], ids=str)
def test_an_online_phase_after_a_frozen_flow_resumes_exactly(
    tmp_path, dataset, whole, online, monkeypatch, stop_at, stops
):
    """Stopped offline, at the border and online."""
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)
    out, total = tmp_path / "run", ONLINE["steps"] + ONLINE["online_steps"]
    stop_at(stops[0])
    with pytest.raises(Preempted):
        fit(dataset, out, **{**SETTINGS, **ONLINE, "flow": whole / "flow"})
    for step in stops[1:]:
        stop_at(step)
        with pytest.raises(Preempted):
            resume(out, dataset, quiet=True)
    resume(out, dataset, quiet=True)
    assert online_fingerprint(out, total) == online_fingerprint(online, total)


@pytest.mark.slow
def test_a_finished_run_with_a_frozen_flow_is_extended_by_an_online_phase(tmp_path, dataset, whole, online):
    settings = {**SETTINGS, **ONLINE, "flow": whole / "flow", "online_steps": 0}
    out, total = fit(dataset, tmp_path / "run", **settings).directory, ONLINE["steps"] + ONLINE["online_steps"]
    resume(out, dataset, online_steps=ONLINE["online_steps"], quiet=True)
    assert online_fingerprint(out, total) == online_fingerprint(online, total)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["fidec", "deflow", "fidec_closed_form", "fql", "fan", "ifql", "qam"])
def test_every_method_with_a_frozen_flow_can_train_it_online(tmp_path, dataset, whole, algo):
    """The first online update changes the flow; the offline ones did not."""
    small = {"hidden": (8,), "flow_steps": 2}
    settings = {**SETTINGS, **ONLINE, "algo": algo, "options": small, "flow": whole / "flow", "steps": 3}
    settings |= {"online_steps": 2, "online": OnlineConfig(freeze_flow=False)}
    run = fit(dataset, tmp_path / "run", **settings).directory
    steps = [row["step"] for row in read_rows(run / "train.jsonl") if "training/flow_loss" in row]
    assert steps == [5]
    assert not equal(load_policy(run).state.params["flow"], load_policy(whole / "flow").state.params["flow"])


def test_a_flow_of_other_data_is_refused(tmp_path, whole):
    other = dataset_from_arrays(**random_columns(rows=440, seed=1))
    with pytest.raises(ConfigError, match="was trained on other data: their SHA-256"):
        fit(other, tmp_path / "run", **{**SETTINGS, **GIVEN, "flow": whole / "flow"})


def test_whole_episodes_are_held_out(dataset):
    used, held = hold_out(dataset, 0.1)
    assert len(held.episodes) == 2
    assert used.size + held.size == dataset.size
    first, last = dataset.episodes[9]
    np.testing.assert_array_equal(held.observations[: last - first], dataset.observations[first:last])
    np.testing.assert_array_equal(used.observations[:first], dataset.observations[:first])
    with pytest.raises(DataError, match="it has 22 episodes"):
        hold_out(dataset, 0.01)


def test_training_ends_when_the_held_out_loss_stops_improving(tmp_path, dataset, monkeypatch, compile_cache):
    losses = iter([3.0, 2.0, 2.5, 2.4, 2.3, 2.2, 2.1])
    monkeypatch.setattr(Validation, "__call__", lambda self, state: fake(self, next(losses)))

    def fake(self, loss):
        self._add({"validation/flow_loss": loss})
        return {"validation/flow_loss": loss}

    settings = {key: SETTINGS[key] for key in ("batch_size", "log_interval", "checkpoint_interval", "quiet")}
    more = {"algo": "flow_bc", "options": {"hidden": (8,), "flow_steps": 2}, "validation": 0.1, "patience": 3}
    result = fit(dataset, tmp_path / "run", steps=100, **settings, **more)
    assert result.step == 50  # the lowest loss was at step 20
    assert "lowest (2.0000) 3 log intervals ago" in (tmp_path / "run" / "run.log").read_text()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 50
    assert resume(tmp_path / "run", dataset, quiet=True).step == 50


def test_a_signal_while_proposals_are_drawn_is_obeyed_at_once(tmp_path, dataset, whole, monkeypatch):
    """In the second of five batches, at the start and when the run continues."""
    monkeypatch.setattr(flow_first, "ROWS", 100)
    settings = {**SETTINGS, **GIVEN, "flow": whole / "flow", "steps": 15}
    made, out = fit(dataset, tmp_path / "made", **settings).directory, tmp_path / "run"
    calls, take = [0], feed.rows_at

    def take_and_stop(*arguments):
        calls[0] += 1
        if calls[0] in (2, 4):
            os.kill(os.getpid(), signal.SIGTERM)
        return take(*arguments)

    monkeypatch.setattr(feed, "rows_at", take_and_stop)
    for drawn, start in ((2, lambda: fit(dataset, out, **settings)), (4, lambda: resume(out, dataset, quiet=True))):
        with pytest.raises(Preempted, match="saved at step 0") as stopped:
            start()
        assert stopped.value.exit_code == 75
        assert calls[0] == drawn
        status = json.loads((out / "status.json").read_text())
        assert (status["state"], status["step"]) == ("preempted", 0)
    resume(out, dataset, quiet=True)
    assert fingerprint(out, 15) == fingerprint(made, 15)
