"""Policies that act late, and in a range of actions of their own: data, environments and control loops agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from fidec import dataset_from_arrays, evaluate, fit, load_policy, resume
from fidec.data.transforms import PENDING, Pending, delayed
from fidec.envs.wrappers import Delay, fitted
from fidec.errors import ConfigError, DataError, EnvError
from fidec.train.run import Preempted
from fidec.train.training_data import check_fits, data_of
from helpers.own_env import REACH, Reach
from helpers.runs import fingerprint

SETTINGS: dict[str, Any] = {
    "algo": "bc",
    "steps": 20,
    "batch_size": 8,
    "log_interval": 10,
    "checkpoint_interval": 10,
    "options": {"hidden": (8,)},
    "eval_episodes": 2,
    "eval_interval": 10,
    "eval_envs": 1,
    "quiet": True,
}


def rollout(env, actions, seed):
    seen = [env.reset(seed=seed)[0]]
    return seen + [env.step(action)[0] for action in actions]


def record(episodes: int = 20, parts: bool = False):
    rng = np.random.default_rng(0)
    moves = [rng.uniform(-2, 2, (6, 2)).astype(np.float32) for _ in range(episodes)]
    states: list[Any] = [np.array(rollout(Reach(), each, seed)) for seed, each in enumerate(moves)]
    if parts:
        states = [{"arm": each[:, :2], "clock": each[:, 2:]} for each in states]
    rewards = [-np.arange(6.0)] * episodes
    return moves, dataset_from_arrays(states, moves, rewards, action_low=-2.0, action_high=2.0)


@pytest.fixture(autouse=True)
def cache(compile_cache):
    pass


@pytest.mark.parametrize("delay", [1, 3, 9])  # 9 is longer than an episode
def test_late_data_is_what_a_late_environment_shows(delay):
    moves, dataset = record()
    late = delayed(dataset, delay)
    assert late.observations.shape == (120, 3 + 2 * delay)
    for number, (first, stop) in enumerate(late.episodes):
        shown = np.array(rollout(Delay(Reach(), delay), moves[number], number), np.float32)
        assert np.allclose(late.observations[first:stop], shown[:-1], atol=1e-4)
        assert np.allclose(late.next_observations[first:stop], shown[1:], atol=1e-4)
    for name in ("actions", "rewards", "masks", "terminals"):
        assert np.array_equal(getattr(late, name), getattr(dataset, name))


def test_the_actions_on_their_way_are_a_part_of_several():
    single, parts = delayed(record()[1], 2), delayed(record(parts=True)[1], 2)
    assert sorted(parts.observations) == ["arm", "clock", PENDING]
    assert np.array_equal(parts.observations[PENDING], single.observations[:, 3:])
    assert np.array_equal(parts.observations["arm"], single.observations[:, :2])
    with pytest.raises(DataError, match="'pending' already"):
        delayed(parts, 1)


def test_a_single_image_has_no_place_for_actions():
    frames = np.zeros((6, 8, 8, 3), np.uint8)
    dataset = dataset_from_arrays(frames, np.zeros((6, 1), np.float32), np.zeros(6))
    with pytest.raises(DataError, match="Give the image as a part"):
        delayed(dataset, 1)


def test_a_control_loop_gives_what_the_environment_gives():
    env, late = Reach(), Delay(Reach(), 2)
    pending, moves = Pending(2, [-2, -2], [2, 2]), record(1)[0][0]
    shown, plain = rollout(late, moves, 5), rollout(env, moves, 5)
    for step in range(6):
        assert np.array_equal(pending(plain[max(step - 2, 0)]), shown[step])
        pending.add(moves[step])
    pending.reset()
    assert np.array_equal(pending(plain[0]), shown[0])


def test_a_run_with_a_delay_and_a_history_is_evaluated_and_resumed_exactly(tmp_path, stop_at):
    _, dataset = record()
    how = {**SETTINGS, "env": REACH, "delay": 2, "history": 2}
    whole = fit(dataset, tmp_path / "whole", **how)
    policy = load_policy(whole.directory)
    assert (policy.spec.delay, policy.spec.observation_shape) == (2, (14,))
    frames, pending = policy.frames(), policy.pending()
    for observation in np.zeros((3, 3)):
        action = policy(frames(pending(observation)))
        pending.add(action)
    assert action.shape == (2,)
    assert len(evaluate(whole.directory, episodes=2, envs=1)["episodes"]["policy"]) == 2
    stop_at(10)
    with pytest.raises(Preempted):
        fit(dataset, tmp_path / "stopped", **how)
    again = resume(tmp_path / "stopped", dataset, quiet=True)
    assert fingerprint(again.directory, 20) == fingerprint(whole.directory, 20)


def test_a_policy_stays_in_the_range_of_the_data(tmp_path):
    moves, dataset = record()
    run = fit(dataset, tmp_path / "run", env=REACH, action_quantile=0.1, **SETTINGS)
    policy = load_policy(run.directory)
    low, high = (np.asarray(bound) for bound in policy.spec.bounds)
    assert np.allclose(low, np.quantile(np.concatenate(moves), 0.1, axis=0), atol=0.01)
    actions = policy(np.random.default_rng(0).normal(scale=100, size=(50, 3)))
    assert (actions >= low - 1e-5).all()
    assert (actions <= high + 1e-5).all()
    other = tmp_path / "other.npz"  # whose own range is another one
    columns = {name: getattr(dataset, name) for name in ("observations", "rewards", "terminals")}
    np.savez(other, **columns, actions=dataset.actions / 3, action_low=-2.0, action_high=2.0)
    seen = data_of(run.directory, f"npz:{other}")
    check_fits(policy, seen)
    assert np.allclose(policy.spec.to_user_units(seen.actions[0]), dataset.actions[0] / 3, atol=1e-5)


def reached(env: Any) -> list[list[float]]:
    return [env.action_space.low.tolist(), env.action_space.high.tolist()]


def test_an_environment_has_the_bounds_of_the_data_or_is_scaled_to_them():
    """Reach has actions from -2 to 2. The third bounds are those of a policy with quantiles of its data."""
    whole, unit, part = ([-2, -2], [2, 2]), ([-1, -1], [1, 1]), ([-1, -0.5], [1, 0.5])
    assert isinstance(fitted(Reach(), "Reach", whole, whole, False), Reach)
    assert isinstance(fitted(Reach(), "Reach", ([-2, -2.00001], [2, 1.99999]), whole, False), Reach)  # rounded
    assert reached(fitted(Reach(), "Reach", part, whole, False)) == [[-1.0, -0.5], [1.0, 0.5]]
    assert isinstance(fitted(Reach(), "Reach", unit, unit, True), Reach)  # -1 is -2
    assert reached(fitted(Reach(), "Reach", part, unit, True)) == [[-2.0, -1.0], [2.0, 1.0]]
    for data, dimension, words in (
        (unit, 0, "from -2 to 2 in dimension 0, but the data has actions from -1 to 1"),
        (([-2, -2], [2, 2.1]), 1, "from -2 to 2 in dimension 1, but the data has actions from -2 to 2.1"),
    ):
        with pytest.raises(ConfigError, match=f"Reach has actions {words}"):
            fitted(Reach(), "Reach", data, data, False)
        with pytest.raises(ConfigError, match=f"in dimension {dimension}"):
            fitted(Reach(), "Reach", part, data, False)


def test_an_infinite_bound_of_an_environment_is_none():
    """That of the data takes its place."""
    env: Any = Reach()
    env.action_space = Box(np.array([-np.inf, -2], np.float32), np.inf)
    whole, part = ([-3, -2], [5, 2]), ([-1, -1], [1, 1])
    for scale in (False, True):
        assert reached(fitted(env, "Reach", whole, whole, scale)) == [[-3.0, -2.0], [5.0, 2.0]]
        assert reached(fitted(env, "Reach", part, whole, scale)) == [[-1.0, -1.0], [1.0, 1.0]]
    with pytest.raises(ConfigError, match="from -2 to 2 in dimension 1, but the data has actions from -1 to 2"):
        fitted(env, "Reach", ([-3, -1], [5, 2]), ([-3, -1], [5, 2]), False)


def test_a_range_of_actions_is_played_in_the_bounds_of_its_data(tmp_path):
    """The bounds of the data before the quantile are recorded, and compared also when only the policy is there."""
    _, dataset = record()
    run = fit(dataset, tmp_path / "run", action_quantile=0.1, **SETTINGS)
    info = load_policy(run.directory).info
    assert info["action_bounds"] == [[-2.0, -2.0], [2.0, 2.0]]
    assert evaluate(run.directory / "policy", env=REACH, episodes=1, envs=1)["policy"]["n"] == 1
    unit = dataset_from_arrays(dataset.observations, dataset.actions, dataset.rewards, dataset.terminals)
    other = fit(unit, tmp_path / "other", action_quantile=0.1, **SETTINGS).directory
    for place in (other, other / "policy"):
        with pytest.raises(EnvError, match="from -2 to 2 in dimension 0, but the data has actions from -1 to 1"):
            evaluate(place, env=REACH, episodes=1, envs=1)
        assert evaluate(place, env=REACH, episodes=1, envs=1, scale_actions=True)["policy"]["n"] == 1


def test_a_delay_is_not_negative(tmp_path):
    with pytest.raises(ConfigError, match="delay must be at least 0"):
        fit(record()[1], tmp_path / "run", delay=-1, **SETTINGS)
