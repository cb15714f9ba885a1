"""Fitted Q evaluation on problems whose values are known, and the sentences about it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, rng
from fidec.audit import fitted_q
from fidec.audit.values import NOTE, _difference, _summary, check_values, estimate_values, value_sentences
from fidec.data import dataset_from_arrays
from fidec.errors import ConfigError
from fidec.train.policy import Policy
from helpers.runs import random_columns

QUICK: dict[str, Any] = {"hidden": (32, 32), "batch_size": 64, "learning_rate": 5e-3, "quiet": True}


def bandit(rows: int = 2000):
    """One step: the reward is 1 - (a - s)^2, the logged action is random."""
    generator = np.random.default_rng(0)
    states, actions = generator.uniform(-1, 1, (2, rows, 1)).astype(np.float32)
    rewards = 1 - ((actions - states) ** 2)[:, 0]
    return dataset_from_arrays(observations=states, actions=actions, rewards=rewards, terminals=np.ones(rows, bool))


def test_values_of_a_bandit_are_its_mean_rewards():
    data = bandit()
    states = data.observations

    def draw(state, observations, key):
        return {"base": jnp.zeros_like(observations), "refined": 0.8 * observations}

    fitted = fitted_q.fit(draw, None, data, data.spec, discount=0.9, updates=400, **QUICK)
    truth = {"base": 1 - np.mean(states**2), "refined": 1 - np.mean((0.2 * states) ** 2)}
    for name, heads in fitted.heads.items():
        assert heads.shape == (fitted_q.HEADS,)
        assert heads.mean() == pytest.approx(truth[name], abs=0.03)
    gain = _difference(fitted.heads["base"], fitted.heads["refined"])
    assert gain["low"] <= truth["refined"] - truth["base"] <= gain["high"]
    assert gain["low"] > 0
    assert gain["percent"]["mean"] == pytest.approx(100 * gain["mean"] / fitted.heads["base"].mean())


PLACES, DISCOUNT = 4, 0.8


@pytest.fixture(scope="module")
def ring():
    """Four places on a ring. A positive action moves on, a negative one stays. A step from place 0 pays 1.

    Episodes begin in place 1 and are cut after 12 steps. Actions are random.
    """
    generator = np.random.default_rng(0)
    columns: dict[str, list] = {name: [] for name in ("observations", "actions", "rewards", "truncations")}
    following = []
    for _ in range(150):
        place = 1
        for step in range(12):
            action = generator.choice([-1.0, 1.0])
            columns["observations"].append(np.eye(PLACES)[place])
            columns["actions"].append([action])
            columns["rewards"].append(float(place == 0))
            columns["truncations"].append(step == 11)
            place = (place + (action > 0)) % PLACES
            following.append(np.eye(PLACES)[place])
    arrays: dict[str, Any] = {
        name: np.asarray(column, bool if name == "truncations" else np.float32) for name, column in columns.items()
    }
    return dataset_from_arrays(**arrays, next_observations=np.asarray(following, np.float32))


@pytest.mark.parametrize("chunk", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_values_of_deterministic_policies_on_a_ring(ring, chunk):
    def draw(state, observations, key):
        ones = jnp.ones((*observations.shape[:-1], chunk))
        return {"base": -ones, "refined": ones}  # stay, and move on

    spec = ring.spec.chunked(chunk)
    fitted = fitted_q.fit(draw, None, ring, spec, discount=DISCOUNT, updates=600, **QUICK)
    moving = DISCOUNT**3 / (1 - DISCOUNT**4)  # paid after three steps, then every fourth
    assert fitted.heads["refined"].mean() == pytest.approx(moving, abs=0.05)
    assert fitted.heads["base"].mean() == pytest.approx(0.0, abs=0.05)
    for name, truth in (("refined", moving), ("base", 0.0)):
        summary = _summary(fitted.heads[name])
        assert summary["low"] - 0.02 <= truth <= summary["high"] + 0.02


def test_the_mean_value_settles_within_the_updates():
    rate = fitted_q.target_rate_for(10_000, 0.99)
    assert 10_000 / fitted_q.time_constant(rate, 0.99) == pytest.approx(fitted_q.SETTLED)
    assert fitted_q.target_rate_for(100, 0.99) == fitted_q.TARGET_RATES[1]  # not more: targets would be unstable
    assert fitted_q.target_rate_for(10**6, 0.9) == fitted_q.TARGET_RATES[0]


def test_every_head_draws_as_many_episodes_as_there_are():
    weights = fitted_q.bootstrap(30, 0)
    assert weights.shape == (30, fitted_q.HEADS)
    assert (weights.sum(axis=0) == 30).all()
    assert len({tuple(head) for head in weights.T}) == fitted_q.HEADS
    assert (fitted_q.bootstrap(30, 1) != weights).any()


def policy_of(name: str, data, **options) -> Policy:
    method = algos.get(name)
    config = method.configure(hidden=(8,), **options)
    return Policy(name, config, data.spec, method.build(config, data.spec).init(rng.stream(0, "init")))


def test_a_policy_without_a_base_policy_has_its_own_value_only(compile_cache):
    data = dataset_from_arrays(**random_columns())
    result = estimate_values(policy_of("bc", data), data, updates=3, hidden=(8,))
    assert result["discount"] == 0.99
    assert not {"difference", "base", "refined"} & result.keys()
    first, second, *others = value_sentences(result)
    assert first.startswith("value estimated ")
    assert "no base policy" in first
    assert second == NOTE
    assert any("time constants" in text for text in others)  # three updates
    repeated = estimate_values(policy_of("bc", data), data, updates=3, hidden=(8,))
    np.testing.assert_array_equal(repeated["policy"]["of_each_head"], result["policy"]["of_each_head"])
    other = estimate_values(policy_of("bc", data), data, updates=3, hidden=(8,), seed=1)
    assert (other["policy"]["of_each_head"] != result["policy"]["of_each_head"]).any()


def test_what_cannot_be_estimated_is_refused():
    columns = random_columns()
    data = dataset_from_arrays(**columns)
    without = dataset_from_arrays(**{name: column for name, column in columns.items() if name != "rewards"})
    policy = policy_of("bc", data)
    assert check_values(policy, data) == 0.99  # a method without a discount
    assert check_values(policy, data, discount=0.5) == 0.5
    assert check_values(policy_of("iql", data, discount=0.9), data) == 0.9
    with pytest.raises(ConfigError, match="no rewards"):
        estimate_values(policy, without)
    with pytest.raises(ConfigError, match=r"--discount must lie in \[0, 1\), not 1"):
        estimate_values(policy, data, discount=1.0)
    with pytest.raises(ConfigError, match="--updates must be at least 1"):
        estimate_values(policy, data, updates=0)


def result_of(base: np.ndarray, refined: np.ndarray, **changed):
    return {
        "note": NOTE,
        "discount": 0.9,
        "updates": 1000,
        "heads": 5,
        "episodes": 20,
        "time_constant": 100.0,
        "returns_of_data": 98.0,
        "possible": [0.0, 200.0],
        "base": _summary(base),
        "refined": _summary(refined),
        "difference": _difference(base, refined),
        **changed,
    }


def test_the_first_sentence_has_the_gain_in_percent_of_the_base():
    base = np.array([99.0, 100.0, 101.0, 100.0, 100.0])
    text = value_sentences(result_of(base, base + np.array([7.0, 8.0, 9.0, 8.0, 8.0])))
    assert text[0].startswith("values estimated +8 % [+6, +10]: refined 108 [")
    assert text[1] == NOTE
    assert not any("WARNING" in line for line in text)
    negative = value_sentences(result_of(-base, -base + 8.0))[0]
    assert negative.startswith("values estimated +8 % [+8, +8]")  # a higher value is a gain, whatever the sign
    unknown = value_sentences(result_of(base - 100.0, base - 92.0))[0]
    assert unknown.startswith("values estimated +8 [+8, +8]")  # no percent of a value that may be zero


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"possible": [0.0, 50.0]}, "any policy lies in [0, 50]"),
        ({"time_constant": 500.0}, "2.0 time constants"),
        ({"episodes": 1}, "one episode"),
        ({"chunk": 5, "replan": 2}, "whole chunks of 5 steps; the policy plays 2"),
    ],
)
def test_limits_of_the_estimate_are_said(changed, words):
    base = np.array([99.0, 100.0, 101.0, 100.0, 100.0])
    assert any(words in line for line in value_sentences(result_of(base, base, **changed)))
