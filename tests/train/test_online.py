"""The online phase: it equals a simple loop, and stopping it anywhere changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fidec import algos, dataset_from_arrays, fit, load_policy, resume, rng
from fidec.data import replay
from fidec.envs.exploration import exploration_seed
from fidec.errors import ConfigError, RunError
from fidec.train import dispatch
from fidec.train.collect import Collector
from fidec.train.config import OnlineConfig
from fidec.train.run import Preempted
from fidec.types import Batch
from helpers import ring_of, some
from helpers.online_envs import UNREPEATABLE, WALK, Walk
from helpers.runs import online_fingerprint, random_columns, read_rows, stored_rows

OFFLINE, ONLINE = 20, 60
SETTINGS = {
    "env": WALK,
    "steps": OFFLINE,
    "online_steps": ONLINE,
    "seed": 4,
    "batch_size": 8,
    "log_interval": 15,
    "checkpoint_interval": 25,
    "eval_interval": 40,
    "eval_episodes": 2,
    "eval_envs": 1,
    "quiet": True,
}
SMALL: dict[str, Any] = {"hidden": (8,)}
KINDS = {
    "rebrac": ("rebrac", {"steps": 0}),  # uses next actions
    "three environments": ("tiny", {"online": OnlineConfig(envs=3)}),
    "overlap": ("tiny", {"online": OnlineConfig(overlap=True)}),
    "rlpd": ("rlpd", {"steps": 0, "online": OnlineConfig(updates=2, random_steps=7)}),
    "episode": ("tiny", {"online": OnlineConfig(collect="episode")}),
    "calql": ("calql", {}),  # whole episodes, returns
    "small ring": ("tiny", {"online": OnlineConfig(capacity=210)}),  # 200 offline rows: they are overwritten
    "frozen": ("fidec", {"online": OnlineConfig(freeze_flow=True)}),
    "chunks": ("rebrac", {"chunk": 3, "n_step": 4, "replan": 2, "ensemble": 0.1, "online": OnlineConfig(envs=2)}),
    "chunks of a flow that was trained first": (
        "fql",
        {"flow_updates": 10, "validation": 0.0, "chunk": 2, "n_step": 3},
    ),
    "chunks of whole episodes": ("calql", {"chunk": 2}),
}


NORMAL = ("chunks",)  # and whole episodes below, with a signal in the middle of one


@pytest.fixture
def dataset():
    return dataset_from_arrays(**random_columns())


@pytest.fixture(autouse=True)
def walk(monkeypatch, compile_cache, tiny):
    """Check signals after every round, so that a stop may come anywhere. The tiny method is used where it can be."""
    monkeypatch.setattr(dispatch, "DISPATCH_SECONDS", 0.0)


def train(dataset, out: Path, kind: str, **changes):
    algo, settings = KINDS[kind]
    evaluations = {} if kind == "three environments" else {"eval_interval": 0}
    options = {} if algo == "tiny" else SMALL
    return fit(dataset, out, algo=algo, options=options, **{**SETTINGS, **evaluations, **settings, **changes})


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    return tmp_path_factory.mktemp("whole"), {}


@pytest.fixture
def whole(wholes, dataset):
    """whole(kind): the directory of the uninterrupted run, made once, and its last step."""
    directory, made = wholes

    def run(kind: str) -> tuple[Path, int]:
        if kind not in made:
            made[kind] = train(dataset, directory / kind, kind)
        return made[kind].directory, made[kind].step

    return run


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in NORMAL else pytest.mark.slow) for k in KINDS])
def test_stopped_anywhere_and_resumed_is_uninterrupted(dataset, whole, tmp_path, stop_at, kind):
    uninterrupted, total = whole(kind)
    # Each stop starts new processes. They fall before and after evaluations, checkpoints, ends of episodes.
    stops = {"three environments": [OFFLINE - 7, OFFLINE + 41], "calql": [OFFLINE + 19], "episode": [OFFLINE + 19]}
    stops = stops.get(kind, [total - 27])
    stop_at(stops[0])
    with pytest.raises(Preempted):
        train(dataset, tmp_path / "stopped", kind)
    for step in stops[1:]:
        stop_at(step)
        with pytest.raises(Preempted):
            resume(tmp_path / "stopped", dataset, quiet=True)
    resume(tmp_path / "stopped", dataset, quiet=True)
    assert online_fingerprint(tmp_path / "stopped", total) == online_fingerprint(uninterrupted, total)


def test_another_seed_compiles_nothing(dataset, whole, compile_cache, tmp_path):
    """Keys are arguments of the compiled programs, so the whole run with another seed finds all of them compiled."""
    whole("three environments")
    before = {path.name for path in compile_cache.glob("*-cache")}
    assert any(name.startswith("jit_steps") for name in before)
    train(dataset, tmp_path / "other", "three environments", seed=SETTINGS["seed"] + 1)
    assert {path.name for path in compile_cache.glob("*-cache")} == before


def test_an_offline_run_that_is_extended_equals_one_with_an_online_phase(dataset, whole, tmp_path):
    train(dataset, tmp_path / "later", "three environments", online_steps=0)
    assert not (tmp_path / "later" / "replay").exists()
    resume(tmp_path / "later", dataset, online_steps=ONLINE, quiet=True)
    assert online_fingerprint(tmp_path / "later", OFFLINE + ONLINE) == online_fingerprint(
        whole("three environments")[0], OFFLINE + ONLINE
    )


@pytest.mark.slow
def test_more_online_steps_go_on_where_the_run_ended(dataset, whole, tmp_path):
    """In the middle of an episode, and in a larger buffer. Only the logs tell, by the rows of the former end."""
    train(dataset, tmp_path / "longer", "rebrac", online_steps=33)
    assert not stored_rows(tmp_path / "longer").terminals[-1]
    resume(tmp_path / "longer", dataset, online_steps=ONLINE, quiet=True)
    ours, theirs = (online_fingerprint(run, ONLINE) for run in (tmp_path / "longer", whole("rebrac")[0]))
    logs = {"train.jsonl", "eval.jsonl", "episodes.jsonl"}
    assert {n: v for n, v in ours.items() if n not in logs} == {n: v for n, v in theirs.items() if n not in logs}


def test_it_equals_a_simple_loop(dataset, tmp_path):
    """One step, one row, one update: an environment in this process, and one ring for all rows."""
    steps = 20
    online = OnlineConfig(capacity=1000)
    run = train(dataset, tmp_path / "run", "rebrac", online_steps=steps, eval_interval=0, online=online)
    algorithm = algos.make("rebrac", load_policy(run.policy).spec, **SMALL)
    ring = ring_of(dataset.batch(), 1000)
    state = jax.jit(algorithm.init)(rng.stream(4, "init"))
    update, explore = jax.jit(algorithm.update), jax.jit(some(algorithm.explore))
    sample, follow = jax.jit(replay.sample, static_argnums=2), jax.jit(replay.follow)
    keys = {name: rng.stream(4, name) for name in ("batch", "update", "explore")}

    def learn(state, number):
        batch = sample(ring, rng.at(keys["batch"], number), 8)
        return update(state, batch, rng.at(keys["update"], number))[0]

    env, episode, t = Walk(), 0, 0
    seen = env.reset(seed=exploration_seed(4, 0))[0]
    for number in range(steps):
        action = np.asarray(explore(state, seen, rng.at(keys["explore"], episode, t)))
        following, reward, terminated, truncated, _ = env.step(action)
        row = Batch(*(np.asarray([x], np.float32) for x in (seen, action, reward, not terminated, following, action)))
        ring = follow(ring, row, np.int32([ring.position - 1 if t else -1]))
        seen, t = following, t + 1
        if terminated or truncated:
            episode, t = episode + 1, 0
            seen = env.reset(seed=exploration_seed(4, episode))[0]
        state = learn(state, number)
    session_state = loaded(run.directory, steps)
    for name, ours in flat(state).items():
        np.testing.assert_allclose(session_state[name], ours, rtol=2e-4, atol=2e-5, err_msg=name)
    rows = stored_rows(run.directory)
    np.testing.assert_allclose(
        rows.batch.observations, ring.rows.observations[200 : 200 + steps], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(rows.batch.masks, ring.rows.masks[200 : 200 + steps])


def loaded(run: Path, step: int) -> dict[str, np.ndarray]:
    from fidec.store import trees

    found = trees.load_flat(run / "checkpoints" / f"{step:08d}" / "state.safetensors")
    return {name.removeprefix("state/"): array for name, array in found.items() if name.startswith("state/")}


def flat(state) -> dict[str, np.ndarray]:
    from fidec.store import trees

    return trees.flatten_tree(state)


def test_a_signal_in_the_middle_of_an_episode_abandons_it(dataset, whole, tmp_path, monkeypatch):
    """The signal comes when some steps of an episode are made. The resumed run collects the whole episode again."""
    calls, received = [0], Collector.receive

    def receive(self):
        calls[0] += 1
        if calls[0] == 15:  # in the third episode of this seed: the first have seven and six steps
            os.kill(os.getpid(), signal.SIGTERM)
        return received(self)

    monkeypatch.setattr(Collector, "receive", receive)
    with pytest.raises(Preempted):
        train(dataset, tmp_path / "run", "episode")
    stored = stored_rows(tmp_path / "run")
    assert stored.terminals[-1]
    assert stored.count < calls[0]
    resume(tmp_path / "run", dataset, quiet=True)
    uninterrupted, total = whole("episode")
    assert online_fingerprint(tmp_path / "run", total) == online_fingerprint(uninterrupted, total)


def settings_of(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())["online"]


def test_an_offline_run_is_extended_by_an_online_phase_with_its_own_options(dataset, tmp_path, monkeypatch):
    """What cannot be leaves the configuration as it was. Rewards are shifted as the data's were."""
    data = dataclasses.replace(dataset, info={"reward_shift": -1.0})
    run = train(data, tmp_path / "run", "overlap", steps=1, online_steps=0).directory
    config = (run / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="less than the 200 offline transitions"):
        resume(run, data, online_steps=9, online=OnlineConfig(capacity=100), quiet=True)
    for place, words in (
        ("buffer", "buffer of 9 online transitions takes"),
        ("opening", "larger than the memory limit"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"fidec.train.{place}.free_memory", lambda: 10.0)
            with pytest.raises(ConfigError, match=words):
                resume(run, data, online_steps=9, quiet=True)
    with pytest.raises(ConfigError, match=r"has no online phase: --online\.updates needs --online-steps"):
        resume(run, data, online=OnlineConfig(updates=2), quiet=True)
    assert (run / "config.json").read_bytes() == config

    resume(run, data, online_steps=5, online=OnlineConfig(updates=3, random_steps=2), quiet=True)
    options = settings_of(run)
    assert (options["updates"], options["random_steps"], options["reward_shift"]) == (3, 2, -1.0)
    rows, env = stored_rows(run), Walk()
    env.reset(seed=exploration_seed(4, 0))
    np.testing.assert_allclose(rows.batch.rewards[0], env.step(rows.batch.actions[0])[1] - 1.0, rtol=1e-5)

    with pytest.raises(ConfigError, match=r"only online\.max_failures can change"):
        resume(run, data, online_steps=9, online=OnlineConfig(updates=2), quiet=True)
    with pytest.raises(ConfigError, match="5 online steps; --online-steps 3 would be fewer"):
        resume(run, data, online_steps=3, quiet=True)
    with pytest.raises(ConfigError, match="only --online-steps can be increased"):
        resume(run, data, steps=6, quiet=True)
    resume(run, data, online_steps=5, online=OnlineConfig(max_failures=2), quiet=True)
    assert (settings_of(run)["updates"], settings_of(run)["max_failures"]) == (3, 2)


def test_rows_are_what_the_environment_did(dataset, tmp_path):
    """Terminated rows do not bootstrap and cut-off ones do; no row leads from one episode into another."""
    changes = {"online": OnlineConfig(reward_shift=-1.0, envs=2), "log_interval": 20, "eval_interval": 0}
    run = train(dataset, tmp_path / "run", "overlap", **changes).directory
    rows = stored_rows(run)
    assert rows.count == ONLINE
    logged = {row["episode"]: row for row in read_rows(run / "exploration.jsonl")}
    assert len(logged) > 6
    for episode, row in logged.items():
        own = np.flatnonzero(rows.episodes == episode)
        own = own[np.argsort(rows.steps[own])]
        assert (exploration_seed(4, episode), row["length"]) == (row["seed"], 4 + row["seed"] % 6)
        assert rows.steps[own].tolist() == list(range(row["length"]))
        assert rows.terminals[own].tolist() == [False] * (len(own) - 1) + [True]
        even = row["length"] % 2 == 0
        assert rows.batch.masks[own].tolist() == [1.0] * (len(own) - 1) + [0.0 if even else 1.0]
        assert (row["success"], row["status"]) == (float(even), "ok")
        np.testing.assert_array_equal(rows.batch.observations[own[1:]], rows.batch.next_observations[own[:-1]])
        np.testing.assert_allclose(rows.batch.rewards[own].sum() + len(own), row["return"], rtol=1e-5)
    last = read_rows(run / "train.jsonl")[-1]
    assert (last["online/steps"], last["online/buffer"]) == (ONLINE, 200 + ONLINE)
    assert last["online/offline_share"] == 200 / (200 + ONLINE)
    assert last["exploration/episodes"] == len(logged)
    by_step = {row["step"]: row for row in read_rows(run / "train.jsonl")}
    recent = [row for row in logged.values() if 40 < row["step"] <= 60]
    assert by_step[60]["exploration/return"] == pytest.approx(np.mean([row["return"] for row in recent]))
    assert sorted(by_step) == [20, 40, 60, 80]
    assert "online/steps" not in by_step[20]


def test_an_environment_that_cannot_be_repeated_continues_with_the_next_episode(dataset, tmp_path, stop_at):
    stop_at(OFFLINE + 41)
    with pytest.raises(Preempted):
        train(dataset, tmp_path / "run", "small ring", env=UNREPEATABLE)
    before = stored_rows(tmp_path / "run")
    assert not before.terminals[-1]  # it was in the middle of an episode
    resume(tmp_path / "run", dataset, quiet=True)
    after = stored_rows(tmp_path / "run")
    assert after.count == ONLINE
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[: before.count]), tuple(before), tuple(after))
    assert (after.episodes[before.count], after.steps[before.count]) == (before.episodes[-1] + 1, 0)
    assert "not deterministic" in (tmp_path / "run" / "run.log").read_text()


def test_what_cannot_be_is_refused_before_anything_is_written(dataset, tmp_path):
    def refused(match, algo="fql", **changes):
        with pytest.raises((ConfigError, RunError), match=match):
            fit(dataset, tmp_path / "run", algo=algo, options=SMALL, **{**SETTINGS, **changes})

    refused("bc is not trained online", "bc")
    refused("srpo is not trained online", "srpo")
    refused("name a --task, or a Gymnasium id", env=None)
    refused("online.collect must be episode", "calql", online=OnlineConfig(collect="step"))
    refused("no behaviour flow that can be frozen", "rebrac", online=OnlineConfig(freeze_flow=True))
    refused("omit --buffer", buffer=dataset)
    with pytest.raises(ConfigError, match="one environment and no overlap"):
        OnlineConfig(collect="episode", envs=2)
    assert not (tmp_path / "run").exists()
