"""What an environment's process answers, called in this process."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from fidec.envs.factory import make
from fidec.envs.worker import Invalid, _commands, _describe_spaces, describe
from fidec.errors import ConfigError, EnvError
from helpers.lane_envs import Counter


def commands(env):
    return _commands(env, _describe_spaces(env))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nan", r"^observation is nan at index \(0,\)$"),
        ("reward", "^reward is nan; expected a finite number that float32 can hold$"),
        ("shape", r"observation has shape \(2,\), its space says \(6,\)"),
    ],
)
def test_an_invalid_value_is_named(fault, words):
    ask = commands(Counter({3: fault}))
    ask["reset"](3)
    for _ in range(2):
        ask["step"](np.zeros(2))
    with pytest.raises(Invalid, match=words):
        ask["step"](np.zeros(2))


class Recorder(gymnasium.Env):
    """Remembers its actions and returns what it is told."""

    observation_space = Box(-1, 1, (1,), np.float64)

    def __init__(self, low=-1.0, high=1.0, info=None, old_api=False, result=()):
        self.action_space = Box(low, high, (2,), np.float32)
        self.info, self.old_api, self.actions = info or {}, old_api, []
        self.result = dict(result)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1) if self.old_api else (np.zeros(1), {})

    def step(self, action):
        self.actions.append(action)
        parts = {"observation": np.zeros(1), "reward": 1, "terminated": False, "truncated": False, "info": self.info}
        result = tuple((parts | self.result).values())
        return result[:4] if self.old_api else result


def test_actions_are_clipped_and_scaled_to_the_box():
    env = Recorder(0.0, 10.0)
    ask = commands(env)
    for action in (-3.0, 0.0, 1.0):
        ask["step"](np.full(2, action))
    assert [action.tolist() for action in env.actions] == [[0, 0], [5, 5], [10, 10]]
    assert env.actions[0].dtype == np.float32


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({}, None),
        ({"success": True}, 1.0),
        ({"is_success": np.False_}, 0.0),
        ({"success": 0.5, "is_success": 1}, 0.5),
        ({"success": np.array([True])}, 1.0),
    ],
)
def test_success_and_float32_observations(info, success):
    ask = commands(Recorder(info=info))
    assert ask["reset"](0).dtype == np.float32
    assert ask["step"](np.zeros(2))[1:] == (1.0, False, False, success)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("success", np.array([1, 0]), r"'\[1 0\]'; expected one number"),
        ("success", "yes", "'yes'; expected one number"),
        ("success", float("nan"), "nan; expected 0 or 1, or a number between them"),
        ("success", -1, "-1.0; expected 0 or 1, or a number between them"),
        ("success", 100.0, "100.0; expected 0 or 1, or a number between them"),
        ("reward", "1.5", "'1.5'; expected one number"),
        ("reward", None, "'None'; expected one number"),
        ("reward", [[1.0], [2.0, 3.0]], r"'\[\[1.0\], \[2.0, 3.0\]\]'; expected one number"),
        ("reward", float("-inf"), "-inf; expected a finite number that float32 can hold"),
        ("reward", 1e39, r"1e\+39; expected a finite number that float32 can hold"),
        ("terminated", "False", "'False'; expected one number"),
    ],
)
def test_a_success_a_reward_or_an_end_that_cannot_be_is_named(name, value, words):
    env = Recorder(info={name: value}) if name == "success" else Recorder(result={name: value})
    with pytest.raises(Invalid, match=rf"^{name} is {words}$"):
        commands(env)["step"](np.zeros(2))


def test_an_error_is_located_in_the_code_of_the_user():
    """Neither in fidec, which says what it was doing, nor in a library that the user called."""
    gymnasium.register("Absent-v0", lambda **_: np.load("absent.npy"))
    with pytest.raises(EnvError) as caught:
        make("gymnasium:Absent-v0")
    assert re.search(
        r"^EnvError: cannot make .*FileNotFoundError: .* \(test_worker\.py:\d+\)$", describe(caught.value)
    )


def test_the_old_gym_interface_is_named():
    ask = commands(Recorder(old_api=True))
    with pytest.raises(Invalid, match=r"reset\(\) returned a ndarray; Gymnasium's returns \(observation, info\)"):
        ask["reset"](0)
    with pytest.raises(Invalid, match=r"step\(\) returned 4 values; .*terminated, truncated, info"):
        ask["step"](np.zeros(2))


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        ("action_space", Discrete(3), r"Recorder has the action space Discrete\(3\); expected a Box with one axis"),
        ("action_space", Box(-1, 1, (2, 2)), "expected a Box with one axis"),
        ("action_space", Box(-np.inf, np.inf, (2,)), "expected finite bounds"),
        ("observation_space", Discrete(3), "the observation space Discrete"),
        ("observation_space", Dict(a=Dict(b=Box(0, 1))), "in the part 'a'.*FlattenObservation makes one of a Dict"),
    ],
)
def test_spaces_that_cannot_be_used_are_refused(space, value, words):
    env = Recorder()
    setattr(env, space, value)
    with pytest.raises(ConfigError, match=words):
        _describe_spaces(env)
