"""D4RL's Adroit tasks on gymnasium-robotics' hand.

The scenes, observations, actions and starts equal D4RL's. The rewards, ends and horizons do not: in
gymnasium-robotics a dropped pen does not end an episode, every episode has 200 steps, and the term that leads the
palm to the object has changed its sign without a new version of the environment. All three are therefore computed
here from the state of the simulator.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from fidec.extras import require


class Outcome(NamedTuple):
    """The reward and the end of a state."""

    reward: float
    achieved: bool  # D4RL's `goal_achieved`
    over: bool = False


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b))


def pen(data: Any) -> Outcome:
    """Turn the pen as the target is turned; a drop costs 5 and ends the episode."""
    place = data.body("Object").xpos
    distance = _distance(place, data.site("eps_ball").xpos)
    ours = data.site("object_top").xpos - data.site("object_bottom").xpos
    wanted = data.site("target_top").xpos - data.site("target_bottom").xpos
    likeness = float(ours @ wanted / (np.linalg.norm(ours) * np.linalg.norm(wanted)))
    near, dropped = distance < 0.075, bool(place[2] < 0.075)
    aligned = near and likeness > 0.95
    reward = likeness - distance + 10.0 * (near and likeness > 0.9) + 50.0 * aligned - 5.0 * dropped
    return Outcome(reward, aligned, dropped)


def door(data: Any) -> Outcome:
    """Open the door."""
    angle = float(data.joint("door_hinge").qpos[0])
    reward = -0.1 * _distance(data.site("S_grasp").xpos, data.site("S_handle").xpos)
    reward -= 0.1 * (angle - 1.57) ** 2 + 1e-5 * float(np.sum(data.qvel**2))
    reward += 2.0 * (angle > 0.2) + 8.0 * (angle > 1.0) + 10.0 * (angle > 1.35)
    return Outcome(reward, angle >= 1.35)


def hammer(data: Any) -> Outcome:
    """Drive the nail into the board."""
    handle, head, nail = data.body("Object").xpos, data.site("tool").xpos, data.site("S_target").xpos
    left = _distance(nail, data.site("nail_goal").xpos)
    reward = -0.1 * _distance(data.site("S_grasp").xpos, handle) - _distance(head, nail) - 10.0 * left
    reward -= 1e-2 * float(np.linalg.norm(data.qvel))
    reward += 2.0 * bool(handle[2] > 0.04 and head[2] > 0.04) + 25.0 * (left < 0.02) + 75.0 * (left < 0.01)
    return Outcome(reward, left < 0.01)


def relocate(data: Any) -> Outcome:
    """Take the ball to the target."""
    palm, ball, target = data.site("S_grasp").xpos, data.body("Object").xpos, data.site("target").xpos
    left = _distance(ball, target)
    reward = -0.1 * _distance(palm, ball)
    if ball[2] > 0.04:
        reward += 1.0 - 0.5 * _distance(palm, target) - 0.5 * left
    reward += 10.0 * (left < 0.1) + 20.0 * (left < 0.05)
    return Outcome(reward, left < 0.1)


@dataclass(frozen=True)
class Rules:
    """One task as D4RL defines it."""

    judge: Callable[[Any], Outcome]
    horizon: int
    enough: int  # a success in `evaluate_success` has more than this many steps with the goal achieved
    observation: int  # numbers in an observation
    action: int


RULES = {
    "pen": Rules(pen, 100, 20, 45, 24),
    "door": Rules(door, 200, 25, 39, 28),
    "hammer": Rules(hammer, 200, 25, 46, 26),
    "relocate": Rules(relocate, 200, 25, 39, 30),
}


class Adroit(gymnasium.Wrapper):
    """D4RL's reward and end of a task.

    `info["success"]` is 1 from the step on at which D4RL's `evaluate_success` counts the episode: the goal was
    achieved in more than 20 steps (pen) or 25 (the others). `info["goal_achieved"]` is about the current state.
    """

    def __init__(self, env: gymnasium.Env, rules: Rules):
        super().__init__(env)
        self.rules, self._achieved = rules, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._achieved = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any):
        observation, *_ = self.env.step(action)
        base: Any = self.env.unwrapped
        reward, achieved, over = self.rules.judge(base.data)
        self._achieved += achieved
        success = float(self._achieved > self.rules.enough)
        return observation, reward, over, False, {"success": success, "goal_achieved": bool(achieved)}


def make_adroit(name: str, render_mode: str | None = None) -> gymnasium.Env:
    """pen, door, hammer or relocate with D4RL's rules and time limit."""
    rules = RULES[name]
    import_robotics()
    module = importlib.import_module(f"gymnasium_robotics.envs.adroit_hand.adroit_{name}")
    env = getattr(module, f"AdroitHand{name.capitalize()}Env")(reward_type="dense", render_mode=render_mode)
    camera = importlib.import_module("mujoco").MjvCamera()  # near the hand, for videos
    camera.lookat[:], camera.distance, camera.elevation = (0, 0, 0.15), 1.2, -35
    env.custom_camera = camera
    return gymnasium.wrappers.TimeLimit(Adroit(env, rules), rules.horizon)


def import_robotics() -> Any:
    """The package gymnasium_robotics, without its notice about reward functions that are not used here."""
    with contextlib.redirect_stderr(io.StringIO()):
        return require("gymnasium_robotics", "d4rl", "an environment of gymnasium-robotics (Adroit, AntMaze, ...)")
