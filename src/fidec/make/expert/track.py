"""OGBench's environments for experts, with a state that can be put away and taken up again."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import mujoco as _mujoco
import numpy as np

from fidec.make.expert.features import upright
from fidec.make.expert.recipes import ExpertRecipe
from fidec.quiet import quiet

mujoco: Any = _mujoco  # compiled functions without type stubs


def _open(env_id: str) -> Any:
    """OGBench's environment; directions and rewards come with its wrappers."""
    from ogbench.online_locomotion import ant, ant_ball, humanoid, wrappers

    class Ball(ant_ball.AntBallEnv):
        def render(self) -> Any:
            # OGBench renders once when it is made, to place a camera. Nobody looks here.
            camera = SimpleNamespace(lookat=np.zeros(3))
            self.mujoco_renderer: Any = SimpleNamespace(viewer=SimpleNamespace(cam=camera), close=lambda: None)

    if env_id == "online-antball-v0":
        env = Ball()
        os.unlink(env.fullpath)  # OGBench leaves it in the directory for temporary files.
        return env
    if env_id == "online-humanoid-v0":
        return wrappers.DMCHumanoidXYWrapper(humanoid.HumanoidEnv())
    return wrappers.GymXYWrapper(ant.AntEnv())


class Track:
    """One walker. What it draws comes from its arguments and from NumPy's global generator: seed both."""

    def __init__(self, recipe: ExpertRecipe):
        with quiet():
            self._env = _open(recipe.env_id)
        self._body = self._env.unwrapped
        self._directed = self._env is not self._body
        self._length = recipe.episode_steps
        self._kind = mujoco.mjtState.mjSTATE_INTEGRATION
        self.action_dim = int(self._body.action_space.shape[0])
        self.age = 0

    def reset(self, seed: int) -> np.ndarray:
        self.age = 0
        return self._env.reset(seed=seed)[0]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Observation, reward, whether the walker failed, whether its time is over."""
        observation, reward, failed, _, _ = self._env.step(action)
        self.age += 1
        return observation, float(reward), bool(failed), self.age >= self._length

    @property
    def xy(self) -> np.ndarray:
        return self._body.data.qpos[:2].copy()

    @property
    def up(self) -> float:
        return float(upright(self._body.data.qpos[3:7]))

    def get_state(self) -> np.ndarray:
        physics = np.empty(mujoco.mj_stateSize(self._body.model, self._kind))
        mujoco.mj_getState(self._body.model, self._body.data, physics, self._kind)
        aim = self._env.z if self._directed else self._body.cur_goal_xy
        return np.concatenate([[self.age], aim, physics])

    def set_state(self, state: np.ndarray) -> None:
        self.age, aim, physics = int(state[0]), state[1:3].copy(), state[3:]
        if self._directed:
            self._env.z, self._env.num_steps = aim, self.age
        else:
            self._body.set_goal(aim)
        mujoco.mj_setState(self._body.model, self._body.data, physics, self._kind)
        mujoco.mj_step1(self._body.model, self._body.data)  # The humanoid's step begins with the second half.
