"""Chunks of actions: a chunk of one step changes nothing, and longer ones are trained, played, stored and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import dataset_from_arrays, evaluate, fit, load_policy, resume, rng
from fidec.algos.common.base import METHODS
from fidec.audit import run as audits
from fidec.errors import ConfigError
from fidec.train import dispatch
from fidec.train.acting import PUBLISHED, episode_policy
from fidec.train.action_chunks import ChunkExecutor, Player, weights
from fidec.train.run import Preempted
from fidec.types import Spec
from helpers.algorithms import equal, fast_jit, make_batch
from helpers.online_envs import WALK
from helpers.runs import fingerprint, random_columns

SMALL: dict[str, Any] = {"hidden": (8,)}
FIDEC = {**SMALL, "flow_steps": 2}
SETTINGS = {
    "steps": 30,
    "batch_size": 8,
    "log_interval": 10,
    "checkpoint_interval": 10,
    "quiet": True,
    "eval_envs": 2,
}
CHUNKS = {"chunk": 3, "replan": 2, "n_step": 4}


@pytest.fixture(autouse=True)
def cache(compile_cache):
    pass


@pytest.fixture
def dataset():
    return dataset_from_arrays(**random_columns())


def test_lanes_play_their_chunks_and_choose_a_new_one_after_some_steps():
    playing, calls = ChunkExecutor(Spec((1,), 6, chunk=3, replan=2), 2), []

    def at(episodes, steps, seen=0.0):
        def choose():
            calls.append((tuple(episodes), tuple(steps)))
            number = 100.0 * np.array(episodes) + 10.0 * np.array(steps)
            return number[:, None] + np.array([0, 0.1, 1, 1.1, 2, 2.1])

        return playing(choose, np.full((2, 1), seen), np.array(episodes), np.array(steps)).tolist()

    assert np.allclose(at([0, 1], [0, 0]), [[0, 0.1], [100, 100.1]])
    assert np.allclose(at([0, 1], [1, 0]), [[1, 1.1], [100, 100.1]])  # the second lane still waits for its step
    assert np.allclose(at([0, 1], [2, 1]), [[20, 20.1], [101, 101.1]])
    assert np.allclose(at([2, 1], [0, 1]), [[200, 200.1], [101, 101.1]])  # a new episode
    at([2, 1], [0, 1], seen=1.0)  # the first lane was asked before its environment had answered
    assert [steps for _, steps in calls] == [(0, 0), (2, 1), (0, 1), (0, 1)]


def test_the_weights_of_overlapping_chunks():
    spec = Spec((1,), 5, chunk=5, replan=2, ensemble=0.5)  # a step is in up to three chunks
    first, second, fifth = weights(spec, np.array([1, 2, 4]))
    assert first.tolist() == [1, 0, 0]  # the episode has one chunk so far
    # The older of two chunks has i = 0. Of three, the oldest has its last action here.
    assert np.allclose(second, np.array([np.exp(-0.5), 1, 0]) / (1 + np.exp(-0.5)))
    assert np.allclose(fifth, np.array([np.exp(-1), np.exp(-0.5), 1]) / (1 + np.exp(-0.5) + np.exp(-1)))
    assert weights(spec, np.array([5]))[0, 2] == 0  # it has no action for this step
    for rate in (-1e4, 1e4):  # the newest, or the oldest chunk alone
        extreme = weights(Spec((1,), 5, chunk=5, replan=2, ensemble=rate), np.array([4]))[0]
        assert extreme.tolist() == ([1, 0, 0] if rate < 0 else [0, 0, 1])


def test_lanes_and_the_player_take_the_same_mean_of_chunks():
    spec = Spec((1,), 6, chunk=3, replan=1, ensemble=0.3)
    chunks = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    playing = ChunkExecutor(spec, 1)
    player = Player(lambda observation: chunks[int(observation[0]), :].reshape(3, 2), spec)
    for episode in range(2):
        player.reset()
        for step in range(6):
            start = max(0, step - 2)
            factors = np.exp(-0.3 * np.arange(step - start + 1))
            each = [chunks[k].reshape(3, 2)[step - k] for k in range(start, step + 1)]  # the oldest first
            expected = sum(w * a for w, a in zip(factors, each, strict=True)) / factors.sum()
            lanes = playing(
                lambda step=step: chunks[[step]], np.full((1, 1), step), np.array([episode]), np.array([step])
            )
            assert np.allclose(lanes[0], expected, atol=1e-6)
            assert np.array_equal(player(np.array([step])), lanes[0])


def test_an_ensemble_needs_chunks_that_overlap(dataset, tmp_path):
    with pytest.raises(ConfigError, match="smaller --replan"):
        fit(dataset, tmp_path / "run", algo="bc", chunk=3, ensemble=0.1, **SETTINGS)
    with pytest.raises(ConfigError, match="chunks that overlap: replan 3"):
        Spec((1,), 6, chunk=3, replan=2, ensemble=0.1).played(replan=3)


def test_a_chunk_of_one_step_is_the_plain_method_bit_for_bit(dataset, tmp_path):
    plain = fit(dataset, tmp_path / "plain", algo="rebrac", options=SMALL, **SETTINGS)
    chunk = fit(dataset, tmp_path / "chunk", algo="rebrac", options=SMALL, chunk=1, n_step=1, replan=1, **SETTINGS)
    states = [jax.tree.leaves(load_policy(run.directory).state) for run in (plain, chunk)]
    assert all(np.array_equal(*pair) for pair in zip(*states, strict=True))
    names = ("train.jsonl", "policy/model.safetensors")
    assert all((plain.directory / name).read_bytes() == (chunk.directory / name).read_bytes() for name in names)


SOME = ("iql",)


@pytest.mark.parametrize(
    "algo", [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in METHODS.builtin()]
)
def test_what_is_not_in_the_data_teaches_nothing(algo):
    """A chunk is cut by the end of its trajectory: values do not depend on what stands in place of the rest.

    Nor do policies, except for generative models, whose input it is a part of.
    """
    method, spec = METHODS.get(algo), Spec((4,), 2).chunked(3)
    algorithm = method.build(method.configure(**SMALL if hasattr(method.config, "hidden") else {}), spec)
    valid = np.ones((8, 3))
    valid[2, 1:] = valid[3, 2:] = 0
    batch = make_batch(actions=6, valid=valid, masks=np.ones(8))
    other = batch._replace(actions=jnp.where(batch.action_weights == 0, 0.5, batch.actions))
    assert not equal(batch.actions, other.actions)
    state, update = fast_jit(algorithm.init)(jax.random.key(0)), fast_jit(algorithm.update)
    results = [update(state, each, jax.random.key(1))[0] for each in (batch, other)]
    models = {"flow", "denoiser", "policy", "residual"} | ({"actor"} if algo == "cac" else set())
    learned = [{name: each.params[name] for name in each.params.keys() - models} for each in results]
    assert learned[0] or algo == "flow_bc"
    assert equal(*learned)
    assert not equal(results[0], update(state, batch._replace(valid=jnp.ones((8, 3))), jax.random.key(1))[0])


def train(dataset, out: Path, **changes):
    first = {"flow_updates": 20, "validation": 0.1}
    return fit(dataset, out, algo="fidec", options=FIDEC, **{**SETTINGS, **CHUNKS, **first, **changes})


def test_a_stopped_run_with_chunks_and_the_flow_first_is_resumed_exactly(dataset, tmp_path, stop_at, monkeypatch):
    whole = train(dataset, tmp_path / "whole", env=WALK, eval_interval=20, eval_episodes=2)
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))
    stop_at(14)
    with pytest.raises(Preempted):
        train(dataset, tmp_path / "stopped", env=WALK, eval_interval=20, eval_episodes=2)
    resume(tmp_path / "stopped", dataset, quiet=True)
    assert fingerprint(tmp_path / "stopped", 30) == fingerprint(whole.directory, 30)


def test_a_player_an_evaluation_and_a_plain_loop_take_the_same_actions(dataset, tmp_path):
    """Without noise, one action for an observation: what is left is which observations the policy is asked for."""
    run = fit(dataset, tmp_path / "run", algo="fidec", options=FIDEC, chunk=3, **SETTINGS)
    policy = load_policy(run.directory)
    env = gymnasium.make(WALK)
    for replan in (1, 2, 3):
        player, returns = policy.player(replan=replan, noise=0), []
        for episode in evaluate(run.directory, env=WALK, episodes=3, noise=0, replan=replan)["episodes"]["refined"]:
            observation, _ = env.reset(seed=episode["seed"])
            player.reset()
            total, steps, done = 0.0, 0, False
            chunk = np.zeros((3, 2))
            while not done:
                if steps % replan == 0:
                    chunk = policy(observation, noise=0)
                action = player(observation)
                np.testing.assert_array_equal(action, chunk[steps % replan])
                observation, reward, terminated, truncated, _ = env.step(action)
                total, steps, done = total + float(reward), steps + 1, terminated or truncated
            returns.append((total, steps))
            assert returns[-1] == (pytest.approx(episode["return"], abs=1e-4), episode["length"])
    with pytest.raises(ConfigError, match="replan must lie between 1 and chunk, 3, not 4"):
        policy.player(replan=4)


@pytest.mark.slow
def test_an_audit_measures_whole_chunks(dataset, tmp_path):
    run = fit(dataset, tmp_path / "run", algo="fidec", options=FIDEC, chunk=3, **SETTINGS)
    result = audits.audit(load_policy(run.directory), dataset, states=8, samples=2)
    assert result["action_dim"] == 6
    assert result["neighbours"]["refined"]["median"] > 0


def test_the_budget_is_that_of_a_whole_chunk():
    """The same displacement of every step costs as many budgets as there are steps; a KL counts them by itself."""
    build = METHODS.get("fidec").configure
    assert build(constraint="isotropic").build_constraint().chunk_factor(5) == 5.0
    assert build(constraint="renoised", scale="half").build_constraint().chunk_factor(5) == 1.0
    assert build(constraint="path").build_constraint().chunk_factor(5) == 1.0
    spec, key = Spec((2,), 2), jax.random.key(0)
    algorithm = METHODS.get("deflow").build(METHODS.get("deflow").configure(**SMALL), spec.chunked(5))
    transport = algorithm.transport
    assert transport is not None
    moved = transport(fast_jit(algorithm.init)(key), np.zeros((4, 2), np.float32))
    base = jax.random.uniform(key, (4, 10))
    expected = 5 * np.mean(np.asarray(moved.displacement(base)) ** 2, axis=-1)
    np.testing.assert_allclose(moved.penalty(base, key), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"chunk": 21}, r"--chunk 21 is longer than every episode .* the longest has 20 steps"),
        ({"chunk": 2, "replan": 3}, "--replan 3 is more than --chunk 2"),
        ({"chunk": 3, "n_step": 2}, "--n-step 2 is less than --chunk 3"),
        ({"algo": "bc", "n_step": 2}, "--n-step is for methods that learn a value: bc"),
    ],
)
def test_wrong_lengths_are_named(dataset, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        fit(dataset, tmp_path / "run", **{"algo": "fql", **SETTINGS, **options})
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_flow_for_chunks_of_another_length_is_refused(dataset, tmp_path):
    flow = fit(dataset, tmp_path / "flow", algo="flow_bc", options=SMALL, chunk=2, **SETTINGS).directory
    with pytest.raises(ConfigError, match="its chunk is 2, that of this run 3"):
        fit(dataset, tmp_path / "run", algo="fql", options=SMALL, flow=flow, chunk=3, **SETTINGS)
    run = fit(dataset, tmp_path / "other", algo="fql", options=SMALL, flow=flow, chunk=2, n_step=5, **SETTINGS)
    assert run.step == 30


@pytest.mark.slow
def test_an_evaluated_lane_draws_from_the_key_of_the_step_at_which_its_chunk_was_chosen(dataset, tmp_path):
    policy = load_policy(fit(dataset, tmp_path / "run", algo="fidec", options=FIDEC, chunk=3, **SETTINGS).directory)
    key = rng.stream(0, "evaluate")
    observations = np.random.default_rng(0).normal(size=(2, *policy.spec.observation_shape)).astype(np.float32)
    together = episode_policy(policy.algorithm, policy.state, key, policy.spec, PUBLISHED)
    for step in range(6):
        actions = together(observations, np.array([4, 9]), np.full(2, step))
        whole = policy.algorithm.act(policy.state, observations[1], rng.at(key, 9, step - step % 3))
        np.testing.assert_allclose(actions[1], np.asarray(whole).reshape(3, 2)[step % 3], atol=1e-5)
