"""Failures in the online phase: the run stops and is saved, and a resumed run equals one without failures."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fidec import algos, dataset_from_arrays, fit, resume
from fidec.envs.exploration import exploration_seed
from fidec.errors import CheckpointError, EnvError, NonFiniteError, RunError
from fidec.store import trees
from fidec.train import dispatch
from fidec.train.config import OnlineConfig
from fidec.train.policy import Policy
from fidec.train.run import Preempted
from helpers.online_envs import FAULTY_WALK, VARIABLE, Faults, write_faults
from helpers.runs import online_fingerprint, random_columns, read_rows, stored_rows

# Episodes 0, 1, ... of seed 4 have 7, 6, 6, 8, 7, 4, 4, 9, ... steps.
OFFLINE, ONLINE, SEED = 3, 40, 4
SETTINGS: dict[str, Any] = {
    "env": FAULTY_WALK,
    "steps": OFFLINE,
    "online_steps": ONLINE,
    "seed": SEED,
    "batch_size": 8,
    "log_interval": 10,
    "checkpoint_interval": 10,
    "eval_interval": 0,
    "quiet": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "step": {"algo": "tiny"},
    "two environments": {"algo": "tiny", "online": OnlineConfig(envs=2)},
    "overlap": {"algo": "tiny", "online": OnlineConfig(overlap=True)},
    "episode": {"algo": "tiny", "online": OnlineConfig(collect="episode")},
}


def slow(*values: Any):
    """A case of the slow tier: each starts several processes."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def dataset():
    return dataset_from_arrays(**random_columns())


@pytest.fixture(autouse=True)
def _tiny(tiny):
    """The method does not matter here, so it is the cheapest one."""


@pytest.fixture
def set_faults(monkeypatch):
    """set_faults(e2=("raise", 3)): episode 2 fails in its third step, in environments started from now on."""
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)

    def change(**kinds: tuple[str, int]) -> None:
        faults: Faults = {exploration_seed(SEED, int(name[1:])): fault for name, fault in kinds.items()}
        monkeypatch.setenv(VARIABLE, write_faults(faults))

    return change


@pytest.fixture(scope="module")
def good(dataset, tmp_path_factory, compile_cache):
    """good(kind): the directory of a run without failures."""
    made: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.delenv(VARIABLE, raising=False)
                made[kind] = fit(
                    dataset, tmp_path_factory.mktemp("good") / "run", **SETTINGS, **KINDS[kind]
                ).directory
        return made[kind]

    return run


def state(run: Path) -> str:
    return json.loads((run / "status.json").read_text())["state"]


def newest(run: Path) -> int:
    """The step of the newest checkpoint."""
    return int(max(path.name for path in (run / "checkpoints").iterdir()))


def assert_same_rows(rows, expected) -> None:
    jax.tree.map(np.testing.assert_array_equal, tuple(rows), tuple(expected))


# --- environments that fail ------------------------------------------------------------------------------------

WORDS = {
    "raise": r"crashed after 2 steps: RuntimeError: gripper lost",
    "exit": r"crashed after 2 steps: process ended with exit code 7",
    "hang": r"hung after 2 steps: no answer for 2 s",
    "nan": r"returned an invalid value after 2 steps: observation is nan at index \(0,\)",
    "reward": r"returned an invalid value after 2 steps: reward is nan",
    "shape": r"returned an invalid value after 2 steps: observation .*\(2,\)",
}
CASES = [("step", fault) for fault in WORDS]
CASES += [("two environments", "exit"), ("overlap", "raise"), ("episode", "nan")]


NORMAL = [("step", "raise"), ("episode", "nan")]


@pytest.mark.parametrize(("kind", "fault"), [case if case in NORMAL else slow(*case) for case in CASES])
def test_a_failure_stops_and_saves_the_run_which_can_be_resumed(dataset, good, set_faults, tmp_path, kind, fault):
    out, expected = tmp_path / "run", good(kind)
    words = rf"episode 2 \(seed {exploration_seed(SEED, 2)}, lane \d\) {WORDS[fault]}"
    set_faults(e2=(fault, 3))
    patience: dict[str, Any] = {"eval_timeout": 2.0} if fault == "hang" else {}
    with pytest.raises(EnvError, match=words) as first:
        fit(dataset, out, **SETTINGS, **KINDS[kind], **patience)
    assert state(out) == "failed"
    rows, whole = stored_rows(out), stored_rows(expected)
    # Episodes 0 and 1, and 2 steps of episode 2. A whole episode that is not finished is made again.
    collected = {"step": 15, "overlap": 15, "episode": 13}.get(kind, rows.count)
    assert rows.count == collected
    step = OFFLINE + collected + (kind == "overlap")  # its update was made while the environment failed
    assert newest(out) == step
    assert_same_rows(rows, jax.tree.map(lambda column: column[: rows.count], tuple(whole)))
    if (kind, fault) == ("step", "raise"):
        with pytest.raises(EnvError) as again:  # it fails again
            resume(out, dataset, quiet=True)
        assert str(again.value) == str(first.value)
        assert (state(out), newest(out)) == ("failed", step)
    set_faults()
    resume(out, dataset, quiet=True)
    assert online_fingerprint(out, OFFLINE + ONLINE) == online_fingerprint(expected, OFFLINE + ONLINE)


@pytest.mark.slow
@pytest.mark.parametrize("online", [39, 40])
def test_what_is_due_after_an_overlapped_step_that_fails(dataset, good, set_faults, tmp_path, online):
    """In the run's last step, or where a row is logged: the updates are made, the transition and the row are not."""
    out = tmp_path / "run"
    whole = stored_rows(good("overlap"))
    episode, step = int(whole.episodes[online - 1]), int(whole.steps[online - 1])
    settings = {**SETTINGS, "log_interval": 21}  # step 42 is online step 39
    expected = fit(dataset, tmp_path / "good", **settings, **KINDS["overlap"]).directory
    set_faults(**{f"e{episode}": ("raise", step + 1)})
    with pytest.raises(EnvError, match="gripper lost"):
        fit(dataset, out, **settings, **KINDS["overlap"])
    assert (state(out), newest(out)) == ("failed", OFFLINE + online)
    assert OFFLINE + online not in [row["step"] for row in read_rows(out / "train.jsonl")]
    set_faults()
    resume(out, dataset, quiet=True)
    assert online_fingerprint(out, OFFLINE + ONLINE) == online_fingerprint(expected, OFFLINE + ONLINE)


def test_some_failures_may_be_allowed(dataset, set_faults, tmp_path):
    """Two environments, two failures of one kind and another; the third stops. No row is missing or double."""
    out = tmp_path / "run"
    set_faults(e1=("raise", 3), e4=("exit", 0), e6=("nan", 2))
    kind: dict[str, Any] = {"algo": "tiny", "online": OnlineConfig(envs=2, max_failures=2)}
    with pytest.raises(EnvError, match=r"episode 6 .* after 1 step: observation is nan"):
        fit(dataset, out, **SETTINGS, **kind)
    logged = {row["episode"]: row for row in read_rows(out / "exploration.jsonl")}
    assert len(logged) == len(read_rows(out / "exploration.jsonl"))
    assert {episode: row["status"] for episode, row in logged.items() if row["status"] != "ok"} == {
        1: "crashed",
        4: "crashed",
    }
    assert (logged[1]["length"], logged[1]["success"], logged[4]["length"], logged[4]["return"]) == (2, None, 0, 0.0)
    messages = (out / "run.log").read_text()
    assert messages.count("The run continues with the next episode") == 2
    assert f"episode 1 (seed {exploration_seed(SEED, 1)}, lane 1) crashed after 2 steps" in messages
    check_complete(stored_rows(out), logged)

    resume(out, dataset, online=OnlineConfig(max_failures=3), quiet=True)
    logged = {row["episode"]: row for row in read_rows(out / "exploration.jsonl")}
    assert logged[6]["status"] == "invalid"
    check_complete(stored_rows(out), logged)
    assert stored_rows(out).count == ONLINE


def check_complete(rows, logged: dict[int, dict]) -> None:
    """Each episode's rows are there once, in order, and one leads to the next."""
    for episode in np.unique(rows.episodes):
        found = np.flatnonzero(rows.episodes == episode)
        assert rows.steps[found].tolist() == list(range(len(found)))
        np.testing.assert_array_equal(rows.batch.observations[found[1:]], rows.batch.next_observations[found[:-1]])
        if episode in logged:
            assert len(found) == logged[episode]["length"]
            assert rows.terminals[found].sum() == (logged[episode]["status"] == "ok")
            np.testing.assert_allclose(rows.batch.rewards[found].sum(), logged[episode]["return"], rtol=1e-5)


@pytest.mark.slow
def test_a_failure_in_a_round_that_is_made_again_is_logged_once(dataset, set_faults, tmp_path):
    """Both environments fail in the same round, and one failure is allowed: the round counts for nothing."""
    out = tmp_path / "run"
    set_faults(e0=("raise", 3), e1=("raise", 3))
    online = OnlineConfig(envs=2, max_failures=1)
    with pytest.raises(EnvError, match="episode 1"):
        fit(dataset, out, algo="tiny", **SETTINGS, online=online)
    assert stored_rows(out).count == 4
    assert not (out / "exploration.jsonl").exists() or not read_rows(out / "exploration.jsonl")
    resume(out, dataset, online=OnlineConfig(max_failures=2), quiet=True)
    rows = read_rows(out / "exploration.jsonl")
    assert [(row["episode"], row["status"], row["length"]) for row in rows[:2]] == [
        (0, "crashed", 2),
        (1, "crashed", 2),
    ]
    check_complete(stored_rows(out), {row["episode"]: row for row in rows})
    assert len({row["episode"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_a_failed_episode_of_whole_episodes_is_logged_with_its_own_return(dataset, set_faults, tmp_path):
    set_faults(e1=("raise", 5))
    online = OnlineConfig(collect="episode", max_failures=1)
    out = fit(dataset, tmp_path / "run", algo="tiny", **SETTINGS, online=online).directory
    logged = {row["episode"]: row for row in read_rows(out / "exploration.jsonl")}
    assert (logged[1]["status"], logged[1]["length"]) == ("crashed", 4)
    check_complete(stored_rows(out), logged)


@pytest.mark.slow
def test_more_online_steps_where_the_last_round_was_larger_than_needed(dataset, good, set_faults, tmp_path):
    """Two environments make 7 steps in 4 rounds; going on to 40 is as if that had been asked at once."""
    out, expected = tmp_path / "run", good("two environments")
    fit(dataset, out, **{**SETTINGS, "online_steps": 7}, **KINDS["two environments"])
    resume(out, dataset, online_steps=ONLINE, quiet=True)
    assert_same_rows(stored_rows(out), stored_rows(expected))


# --- disks that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "number"), [("checkpoints", 1), slow("checkpoints", 2), slow("replay", 0), slow("replay", 1)]
)
def test_a_full_disk(dataset, good, set_faults, tmp_path, monkeypatch, where, number):
    """Checkpoint 0 is the hand-over's. With its first one after that the run finds a segment that nothing lists."""
    out, save, calls = tmp_path / "run", trees.save_flat, {"replay": 0, "checkpoints": 0}

    def full(path, *arguments, **options):
        place = next((name for name in calls if name in Path(path).parts), None)
        if place is not None:
            calls[place] += 1
            if place == where and calls[place] > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trees, "save_flat", full)
        with pytest.raises(RunError, match=r"the disk is full: could not write .*a run goes on with --resume"):
            fit(dataset, out, **SETTINGS, **KINDS["step"])
    assert state(out) == "failed"
    segments = sorted(path.name for path in (out / "replay").iterdir())
    assert len(segments) == number  # one for each checkpoint of the phase, and the one before which it stopped
    resume(out, dataset, quiet=True)
    assert online_fingerprint(out, OFFLINE + ONLINE) == online_fingerprint(good("step"), OFFLINE + ONLINE)


def test_damaged_segments(dataset, good, set_faults, stop_at, tmp_path):
    """Of the newest alone: the checkpoint before it does. Of one that all checkpoints list: nothing does."""
    out, lost = tmp_path / "run", tmp_path / "lost"
    stop_at(OFFLINE + 24)
    with pytest.raises(Preempted):
        fit(dataset, out, **SETTINGS, **KINDS["step"])
    shutil.copytree(out, lost)
    segments = sorted((out / "replay").iterdir())
    assert len(segments) == 3  # of the steps 10, 20 and 27
    flip(segments[-1])
    resume(out, dataset, quiet=True)
    assert f"the checkpoint of step 27 is damaged and is not used: {segments[-1]}" in (out / "run.log").read_text()
    assert online_fingerprint(out, OFFLINE + ONLINE) == online_fingerprint(good("step"), OFFLINE + ONLINE)

    flip(lost / "replay" / segments[0].name)
    before = {path: path.read_bytes() for path in (lost / "replay").iterdir()}
    with pytest.raises(CheckpointError, match=r"every checkpoint .*\(steps 20, 27; .*0000\.safetensors.*copy"):
        resume(lost, dataset, quiet=True)
    assert {path: path.read_bytes() for path in (lost / "replay").iterdir()} == before
    assert state(lost) == "preempted"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def test_a_first_episode_that_fails(dataset, set_faults, tmp_path):
    """Failures before anything was collected are logged once and counted, also after a resume."""
    out = tmp_path / "run"
    set_faults(e0=("raise", 1), e1=("raise", 1), e2=("raise", 1))
    with pytest.raises(EnvError, match="episode 2"):
        fit(dataset, out, algo="tiny", **SETTINGS, online=OnlineConfig(max_failures=2))
    assert [row["episode"] for row in read_rows(out / "exploration.jsonl")] == [0, 1]
    with pytest.raises(EnvError, match="episode 2"):
        resume(out, dataset, quiet=True)
    assert [row["episode"] for row in read_rows(out / "exploration.jsonl")] == [0, 1]
    set_faults()
    resume(out, dataset, quiet=True)
    assert stored_rows(out).episodes[0] == 2


# --- numbers that fail -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loss_that_is_not_finite(dataset, set_faults, tmp_path):
    """A reward of 1e30 makes the tiny method's term infinite: the run stops; the checkpoint before it is intact."""
    out = tmp_path / "run"
    set_faults(e2=("huge", 3))
    online = OnlineConfig(sampling="balanced")
    with pytest.raises(NonFiniteError, match=r"not finite at step \d+.*: .*term.*checkpoint is older") as first:
        fit(dataset, out, algo="tiny", **SETTINGS, online=online)
    before = newest(out)
    leaves = trees.load_flat(out / "checkpoints" / f"{before:08d}" / "state.safetensors").values()
    assert all(np.isfinite(leaf).all() for leaf in leaves if leaf.dtype.kind == "f")
    with pytest.raises(NonFiniteError) as again:
        resume(out, dataset, quiet=True)
    assert str(again.value) == str(first.value)
    assert newest(out) == before
    assert state(out) == "failed"


# --- every method ----------------------------------------------------------------------------------------------

ONLINE_METHODS = [name for name in algos.names() if not algos.get(name).offline_only]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ONLINE_METHODS)
def test_every_method_is_fine_tuned(dataset, set_faults, compile_cache, tmp_path, monkeypatch, algo):
    saved: list[list[np.ndarray]] = []  # the policy after the offline phase, and at the end
    monkeypatch.setattr(
        Policy, "save", lambda self, directory: saved.append([np.array(leaf) for leaf in jax.tree.leaves(self.state)])
    )
    settings = {**SETTINGS, "steps": 2, "online_steps": 9, "log_interval": 100, "checkpoint_interval": 100}
    out = fit(dataset, tmp_path / "run", algo=algo, options={"hidden": (8, 8)}, **settings).directory
    last = read_rows(out / "train.jsonl")[-1]
    assert all(np.isfinite(value) for value in last.values())
    assert (last["step"], last["online/steps"], last["exploration/episodes"]) == (11, 9, 1)
    before, after = saved
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True) if a.ndim)
    rows = stored_rows(out)
    assert rows.count == 9
    assert np.abs(rows.batch.actions).max() <= 1
