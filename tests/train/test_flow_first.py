"""The behaviour flow first: two stages in one run, a flow from another run, held-out episodes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from typing import Any

import numpy as np
import pytest

from fidec import dataset_from_arrays, fit, load_policy, resume
from fidec.data import batches
from fidec.data.transforms import hold_out
from fidec.errors import ConfigError, DataError, RunError
from fidec.store import trees
from fidec.train import dispatch, pretrained_flow
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.run import Preempted, resume_all
from fidec.train.validation import Validation
from helpers.algorithms import equal
from helpers.faults import contents, move_run
from helpers.online_envs import WALK
from helpers.own_env import REACH
from helpers.room_env import ROOM, room_columns
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


def test_a_run_that_is_moved_in_its_first_stage_is_resumed_at_its_new_place(tmp_path, dataset, whole, monkeypatch):
    run, save, moved = tmp_path / "run", trees.save_flat, []

    def moving(path, *arguments):
        if (run / "flow" / "checkpoints" / "00000015").exists() and not moved:
            moved.append(move_run("renamed", run, whole))
        save(path, *arguments)

    monkeypatch.setattr(trees, "save_flat", moving)
    with pytest.raises(RunError, match=f"no longer at {run}: .*--resume {tmp_path}/moved\\."):
        fit(dataset, run, **SETTINGS)
    assert contents(run) == contents(whole)
    assert prints(resume(moved[0], dataset, quiet=True).directory) == prints(whole)


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
        ({"normalize_observations": False}, "observation mean"),
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
    with pytest.raises(ConfigError, match="was trained on other data: the recorded SHA-256"):
        fit(other, tmp_path / "run", **{**SETTINGS, **GIVEN, "flow": whole / "flow"})


def test_a_flow_that_would_see_other_observations_than_the_networks_is_refused(tmp_path, whole):
    """Networks of another run keep its statistics."""
    other = dataset_from_arrays(**random_columns(rows=440, seed=1))
    with pytest.raises(ConfigError, match="--init-from and --flow-updates"):
        fit(other, tmp_path / "run", **{**SETTINGS, "init_from": whole})
    assert not (tmp_path / "run").exists()


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
    monkeypatch.setattr(pretrained_flow, "ROWS", 100)
    settings = {**SETTINGS, **GIVEN, "flow": whole / "flow", "steps": 15}
    made, out = fit(dataset, tmp_path / "made", **settings).directory, tmp_path / "run"
    calls, take = [0], batches.gather_batch

    def take_and_stop(*arguments):
        calls[0] += 1
        if calls[0] in (2, 4):
            os.kill(os.getpid(), signal.SIGTERM)
        return take(*arguments)

    monkeypatch.setattr(batches, "gather_batch", take_and_stop)
    for drawn, start in ((2, lambda: fit(dataset, out, **settings)), (4, lambda: resume(out, dataset, quiet=True))):
        with pytest.raises(Preempted, match="saved at step 0") as stopped:
            start()
        assert stopped.value.exit_code == 75
        assert calls[0] == drawn
        status = json.loads((out / "status.json").read_text())
        assert (status["state"], status["step"]) == ("preempted", 0)
    resume(out, dataset, quiet=True)
    assert fingerprint(out, 15) == fingerprint(made, 15)


# Options that change data or rows. Online the environment is WALK unless a case names another; None: not online.
SECOND = {"buffer": dataset_from_arrays(**random_columns(rows=100, seed=3), name="second"), "env": None}
WIDE = {"action_low": (-2.0,), "action_high": (2.0,), "env": REACH}
CASES: dict[str, dict[str, Any]] = {
    "data": {"env": REACH, **WIDE},
    "buffer": SECOND,
    "buffer_fraction": {**SECOND, "buffer_fraction": 0.25},
    "action_low": WIDE,
    "action_high": WIDE,
    "action_quantile": {"action_quantile": 0.05},
    "reward_rule": {"reward_rule": "sparse"},
    "init_from": {"algo": "fidec", "options": SETTINGS["options"]},  # from the fixture `whole`
    "memory_limit": {"memory_limit": 0.0, "env": None},
    "seed": {"seeds": (1, 2), "env": None},
    "validation": {"validation": 0.1},
    "patience": {"patience": 1},
    "chunk": {"chunk": 2},
    "n_step": {"n_step": 2},
    "replan": {"chunk": 3, "replan": 2},
    "ensemble": {"chunk": 3, "replan": 1, "ensemble": 0.1},
    "value_start": {"value_start": "data"},
    "reward_scale": {"reward_scale": "data"},
    "batch_size": {"batch_size": 5},
    "frame_stack": {"frame_stack": 2, "env": ROOM},
    "delay": {"delay": 2},
    "history": {"history": 2},
    "normalize_observations": {"normalize_observations": False},
    "augment": {"augment": 1.0, "frame_stack": 2, "env": ROOM},
    "all of vectors": {"delay": 2, "action_quantile": 0.05, "chunk": 2, "history": 2, "validation": 0.1},
    "a delay and a buffer": {**SECOND, "delay": 2, "action_quantile": 0.05},
    "a delay and seeds": {"seeds": (1, 2), "delay": 2, "action_quantile": 0.05, "env": None},
}
# A task brings data of its own.
OTHERS = {
    *("task", "env", "algo", "preset", "options", "online", "steps", "online_steps", "flow", "flow_updates", "out"),
    *("check_data", "data_dir", "devices", "split_critics", "track", "success_timing"),
    *("candidates", "noise"),
    *("eval_interval", "eval_episodes", "eval_seeds", "eval_envs", "eval_background", "eval_timeout"),
    *("log_interval", "checkpoint_interval", "keep_checkpoints", "scale_actions"),
}
SMALL = {**SETTINGS, "algo": "fql", "flow_updates": 5, "validation": None, "steps": 4, "eval_interval": 0}
SMALL |= {"log_interval": 2, "checkpoint_interval": 2, "options": {"hidden": (8,), "flow_steps": 2}}


# Of the others only the rows differ, not the data.
NORMAL = {"data", "buffer_fraction", "action_quantile", "delay", "history", "replan", "normalize_observations"}
NORMAL |= {"validation", "a delay and a buffer", "a delay and seeds"}


def crossed():
    """(case, whether it goes on online)."""
    both = [(name, online) for name, case in CASES.items() for online in {False, case.get("env", WALK) is not None}]
    normal = [(name, False) for name in NORMAL] + [("all of vectors", True)]
    return [pytest.param(*each, marks=() if each in normal else pytest.mark.slow) for each in both]


def test_every_option_of_the_data_is_crossed_with_the_flow_stage():
    """A new option is a case if it changes data or rows, else one of the others."""
    assert {name for name in CASES if " " not in name} | OTHERS == {f.name for f in dataclasses.fields(RunConfig)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory, dataset):
    """The data of each environment."""
    path, columns = tmp_path_factory.mktemp("sources") / "wide.npz", random_columns(rows=440)
    np.savez(path, **{**columns, "actions": 2 * columns["actions"]})
    room = dataset_from_arrays(**room_columns(4), name="room")
    return {REACH: f"npz:{path}", ROOM: room, WALK: dataset, None: dataset}


@pytest.mark.parametrize(("case", "online"), crossed())
def test_an_option_of_the_data_with_the_flow_stage(tmp_path, sources, whole, monkeypatch, stop_at, case, online):
    """The flow is trained on the data of the rest, and a run stopped in every phase ends with the same bytes."""
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 3))
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)
    how = {**SMALL, "env": WALK, **CASES[case]}
    data, seeds = sources[how["env"]], how.get("seeds")
    given = (None if isinstance(data, str) else data, how.get("buffer"))
    how |= {"online_steps": 6} if online else {"env": None}
    how |= {"init_from": whole} if case == "init_from" else {}
    total, print_of = how["steps"] + 6 * online, online_fingerprint if online else fingerprint

    def runs(name):
        out = tmp_path / name
        return [out] if seeds is None else [out / f"seed{seed:03d}" for seed in seeds]

    def go_on():
        if seeds is None:
            resume(tmp_path / "run", *given, quiet=True)
        else:
            resume_all(runs("run"), *given, quiet=True)

    fit(data, tmp_path / "whole", **how)
    stop_at(2)  # of the flow's updates
    with pytest.raises(Preempted):
        fit(data, tmp_path / "run", **how)
    if online:
        stop_at(total - 2)
        with pytest.raises(Preempted):
            go_on()
    go_on()
    for made, again in zip(runs("whole"), runs("run"), strict=True):
        records = [json.loads((each / "environment.json").read_text()) for each in (made, made / "flow")]
        for kind in ("dataset", "buffer"):
            assert len({(record.get(kind) or {}).get("sha256") for record in records}) == 1
        assert fingerprint(again / "flow", SMALL["flow_updates"]) == fingerprint(made / "flow", SMALL["flow_updates"])
        assert print_of(again, total) == print_of(made, total)
