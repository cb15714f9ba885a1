"""D4RL's Adroit: rewards in closed form and against gymnasium-robotics, ends, successes, seeds."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from fidec.envs.factory import make
from fidec.envs.families.d4rl import RULES, Adroit, Outcome, Rules, make_adroit
from fidec.errors import ConfigError

# What gymnasium-robotics 1.2.1 to 1.4.2 adds with the wrong sign: the distance between these two.
PALM_TERM = {"door": ("S_handle", "site"), "hammer": ("Object", "body"), "relocate": ("Object", "body")}


@pytest.fixture(params=RULES)
def hand(request):
    pytest.importorskip("gymnasium_robotics")
    env: Any = make_adroit(request.param)
    env.task = request.param
    yield env
    env.close()


def state(bodies=(), sites=(), hinge=0.0, speed=0.0):
    """Stands for MuJoCo's data: places by name, one joint, three equal velocities."""
    bodies, sites = ({name: np.array(xyz, float) for name, xyz in dict(places).items()} for places in (bodies, sites))
    return SimpleNamespace(
        body=lambda name: SimpleNamespace(xpos=bodies[name]),
        site=lambda name: SimpleNamespace(xpos=sites[name]),
        joint=lambda name: SimpleNamespace(qpos=np.array([hinge])),
        qvel=np.full(3, speed),
    )


@pytest.mark.parametrize(
    ("angle", "bonus", "achieved"), [(0.0, 0, False), (0.5, 2, False), (1.2, 10, False), (1.5, 20, True)]
)
def test_door_by_hand(angle, bonus, achieved):
    data = state(sites={"S_grasp": (0, 0, 0.5), "S_handle": (0, 0.4, 0.2)}, hinge=angle, speed=10.0)
    expected = bonus - 0.1 * 0.5 - 0.1 * (angle - 1.57) ** 2 - 1e-5 * 300
    assert RULES["door"].judge(data) == (pytest.approx(expected), achieved, False)


@pytest.mark.parametrize(("depth", "bonus", "achieved"), [(0.05, 0, False), (0.015, 25, False), (0.005, 100, True)])
def test_hammer_by_hand(depth, bonus, achieved):
    places = {
        "S_grasp": (0.3, 0, 0.1),
        "tool": (0, 0.2, 0.1),
        "S_target": (0, 0, 0.1),
        "nail_goal": (0, 0, 0.1 + depth),
    }
    data = state(bodies={"Object": (0, 0, 0.1)}, sites=places, speed=1.0)
    expected = 2 + bonus - 0.1 * 0.3 - 0.2 - 10 * depth - 1e-2 * 3**0.5
    assert RULES["hammer"].judge(data) == (pytest.approx(expected), achieved, False)


@pytest.mark.parametrize(
    ("height", "left", "bonus", "achieved"),
    [(0.03, 0.3, 0, False), (0.2, 0.3, 0, False), (0.2, 0.08, 10, True), (0.2, 0.01, 30, True)],
)
def test_relocate_by_hand(height, left, bonus, achieved):
    places = {"S_grasp": (0.1, 0, height), "target": (left, 0, height)}
    data = state(bodies={"Object": (0, 0, height)}, sites=places)
    lifted = height > 0.04
    expected = bonus - 0.1 * 0.1 + lifted * (1 - 0.5 * abs(left - 0.1) - 0.5 * left)
    assert RULES["relocate"].judge(data) == (pytest.approx(expected), achieved, False)


@pytest.mark.parametrize(
    ("tilt", "height", "bonus", "achieved", "over"),
    [
        (0.0, 0.2, 60, True, False),
        (0.4, 0.2, 10, False, False),
        (1.2, 0.2, 0, False, False),
        (0, 0.07, -5, False, True),
    ],
)
def test_pen_by_hand(tilt, height, bonus, achieved, over):
    place = np.array([0, 0, height])
    along = 0.1 * np.array([np.sin(tilt), 0, np.cos(tilt)])
    places = {"object_top": place + along, "object_bottom": place - along, "eps_ball": (0, 0, 0.2)}
    data = state(bodies={"Object": place}, sites=places | {"target_top": (0, 0, 1), "target_bottom": (0, 0, 0.5)})
    expected = bonus + np.cos(tilt) - (0.2 - height)
    assert RULES["pen"].judge(data) == (pytest.approx(expected), achieved, over)


def test_rewards_are_gymnasiums_but_for_one_sign(hand):
    base, rng = hand.unwrapped, np.random.default_rng(0)
    theirs, step = [], base.step
    base.step = lambda action: (result := step(action), theirs.append(result[1]))[0]
    hand.reset(seed=0)
    for _ in range(30):
        _, reward, *_ = hand.step(rng.uniform(-1, 1, hand.action_space.shape))
        name, kind = PALM_TERM.get(hand.task, ("S_grasp", "site"))
        away = np.linalg.norm(base.data.site("S_grasp").xpos - getattr(base.data, kind)(name).xpos)
        assert min(abs(reward - theirs[-1]), abs(reward - (theirs[-1] - 0.2 * away))) < 1e-9


def test_episodes_have_d4rls_length_and_follow_from_the_seed(hand):
    def play(seed, steps):
        rng, seen = np.random.default_rng(5), [hand.reset(seed=seed)[0]]
        for _ in range(steps):
            action = 0.1 * rng.uniform(-1, 1, hand.action_space.shape).astype(np.float32)
            observation, _, terminated, truncated, _ = hand.step(action)
            seen.append(observation)
            if terminated or truncated:
                break
        return np.stack(seen)

    rules = RULES[hand.task]
    first, other, again = play(3, 1000), play(4, 5), play(3, 20)
    assert first.shape == (rules.horizon + 1, rules.observation)
    assert hand.action_space == gymnasium.spaces.Box(-1, 1, (rules.action,), np.float32)
    np.testing.assert_array_equal(first[:21], again)
    assert not np.array_equal(first[0], other[0])


def test_a_dropped_pen_ends_the_episode():
    pytest.importorskip("gymnasium_robotics")
    env: Any = make("pen-human-v1")
    env.reset(seed=0)
    base = env.unwrapped
    base.data.joint("OBJTx").qpos[0] += 0.3  # its first axis points down
    _, reward, terminated, truncated, info = env.step(np.zeros(24, np.float32))
    assert (terminated, truncated) == (True, False)
    assert reward < -3
    assert info == {"success": 0.0, "goal_achieved": False}


class Still(gymnasium.Env):
    """Nothing happens; `data` says whether the goal is met."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    data = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 7.0, True, True, {"success": True}


@pytest.mark.parametrize(("name", "enough"), [("pen", 20), ("door", 25), ("hammer", 25), ("relocate", 25)])
def test_a_success_needs_more_than_20_or_25_steps_at_the_goal(name, enough):
    assert RULES[name].enough == enough
    env: Any = Adroit(Still(), Rules(lambda data: Outcome(-1.0, data), 200, enough, 1, 1))
    for _ in range(2):  # a reset forgets
        env.reset()
        base = env.unwrapped
        base.data = True
        results = [env.step(None) for _ in range(enough + 1)]
        assert [r[4]["success"] for r in results] == [0.0] * enough + [1.0]
        assert results[0][1:4] == (-1.0, False, False)  # what the environment itself says is not used
        base.data = False
        assert env.step(None)[4] == {"success": 1.0, "goal_achieved": False}  # as D4RL counts: not only the last


def test_without_gymnasium_robotics_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(ConfigError, match=r"pip install 'fidec\[d4rl\]'"):
        make("door-human-v1")
