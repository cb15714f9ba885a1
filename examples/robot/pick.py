"""A pick task with two cameras, as a stand-in for a real robot: a gripper on three rails has to lift a cube.

The observation is a dictionary of a vector and two images of different sizes:

    state   (10,)         gripper x y z, opening, velocity of x y z; cube x y z, as a marker tracker would give it
    front   (48, 64, 3)   a fixed camera
    wrist   (32, 32, 3)   a camera on the gripper

An action moves the target of the rails (x, y, z; up to 2 cm a step) and opens (+1) or closes (-1) the gripper. A step
takes 0.1 s. The reward is -1 a step, and 0 at the step at which the cube is 8 cm above the table, which ends the
task.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

mujoco: Any = importlib.import_module("mujoco")  # its names are made when it is loaded, unseen by type checkers

SCENE = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast" cone="elliptic" impratio="10"/>
  <visual><quality shadowsize="0"/></visual>
  <default>
    <geom friction="1.5 0.05 0.001" condim="4"/>
    <position kp="400" dampratio="1"/>
  </default>
  <worldbody>
    <light pos="0 0 1.5" dir="0 0 -1" castshadow="false"/>
    <geom name="table" type="plane" size="0.4 0.4 0.01" rgba="0.75 0.7 0.62 1"/>
    <camera name="front" pos="0 -0.55 0.4" xyaxes="1 0 0 0 0.6 0.8" fovy="45"/>
    <body name="cube" pos="0 0 0.02">
      <freejoint/>
      <geom type="box" size="0.02 0.02 0.02" mass="0.05" rgba="0.8 0.15 0.15 1"/>
    </body>
    <body name="gripper" pos="0 0 0.2">
      <joint name="x" type="slide" axis="1 0 0" damping="20" range="-0.2 0.2"/>
      <joint name="y" type="slide" axis="0 1 0" damping="20" range="-0.2 0.2"/>
      <joint name="z" type="slide" axis="0 0 1" damping="20" range="-0.17 0.1"/>
      <geom type="box" size="0.05 0.02 0.01" pos="0 0 0.05" mass="0.4" rgba="0.25 0.3 0.4 1"/>
      <camera name="wrist" pos="0 -0.09 0.05" xyaxes="1 0 0 0 0.5 0.86" fovy="60"/>
      <body name="left" pos="-0.035 0 0">
        <joint name="left" type="slide" axis="1 0 0" range="0 0.035" damping="2"/>
        <geom type="box" size="0.006 0.012 0.03" mass="0.05" rgba="0.1 0.1 0.1 1"/>
      </body>
      <body name="right" pos="0.035 0 0">
        <joint name="right" type="slide" axis="-1 0 0" range="0 0.035" damping="2"/>
        <geom type="box" size="0.006 0.012 0.03" mass="0.05" rgba="0.1 0.1 0.1 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position joint="x"/>
    <position joint="y"/>
    <position joint="z" kp="800"/>
    <position joint="left" kp="200"/>
    <position joint="right" kp="200"/>
  </actuator>
</mujoco>
"""
SIZES = {"front": (48, 64), "wrist": (32, 32)}  # height, width
STEP = 0.02  # metres that a target moves at most in one step
SUBSTEPS = 20
LIFTED = 0.08  # metres above the table
LOW, HIGH = np.array([-0.18, -0.18, -0.165]), np.array([0.18, 0.18, 0.08])  # of the rails' targets


class PickEnv(gymnasium.Env):
    """See the text at the top of this file."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self._model = mujoco.MjModel.from_xml_string(SCENE)
        self._data = mujoco.MjData(self._model)
        self._renderers: dict[tuple[int, int], Any] = {}
        self._target = np.zeros(3)
        pictures = {name: Box(0, 255, (*size, 3), np.uint8) for name, size in SIZES.items()}
        self.observation_space = Dict({"state": Box(-np.inf, np.inf, (10,), np.float32), **pictures})
        self.action_space = Box(-1.0, 1.0, (4,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self._model, self._data)
        self._data.qpos[:2] = self.np_random.uniform(-0.1, 0.1, 2)  # the cube
        self._target = np.array([*self.np_random.uniform(-0.1, 0.1, 2), 0.0])
        self._data.qpos[7:10] = self._data.ctrl[:3] = self._target
        mujoco.mj_forward(self._model, self._data)
        return self._observe(), {}

    def step(self, action: np.ndarray):
        action = np.clip(action, -1.0, 1.0)
        self._target = np.clip(self._target + STEP * action[:3], LOW, HIGH)
        self._data.ctrl[:3] = self._target
        self._data.ctrl[3:] = 0.0 if action[3] > 0 else 0.035
        mujoco.mj_step(self._model, self._data, SUBSTEPS)
        success = bool(self._data.qpos[2] - 0.02 > LIFTED)
        return self._observe(), 0.0 if success else -1.0, success, False, {"success": success}

    def render(self) -> np.ndarray:
        return self._picture("front", (240, 320))

    def close(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _observe(self) -> dict[str, np.ndarray]:
        data = self._data
        state = np.concatenate([data.qpos[7:11], data.qvel[6:9], data.qpos[:3]]).astype(np.float32)
        return {"state": state} | {name: self._picture(name, size) for name, size in SIZES.items()}

    def _picture(self, camera: str, size: tuple[int, int]) -> np.ndarray:
        if size not in self._renderers:
            self._renderers[size] = mujoco.Renderer(self._model, *size)
        renderer = self._renderers[size]
        renderer.update_scene(self._data, camera)
        return renderer.render()


def expert(state: np.ndarray, rng: np.random.Generator, noise: float = 0.3) -> np.ndarray:
    """A scripted picker: above the cube, down, close, up. `noise` disturbs its motion."""
    gripper, opening, cube = state[:3], state[3], state[7:10]
    goal = np.array([cube[0], cube[1], cube[2] - 0.185])  # the rails' z is 0 at a height of 0.2
    apart = float(np.abs(gripper[:2] - goal[:2]).max())
    lowered = gripper[2] - goal[2] < 0.012
    grasped = lowered and opening > 0.008
    if apart > 0.008 and not grasped:
        goal[2] = max(gripper[2], goal[2] + 0.06)  # stay above until it is over the cube
    if grasped:
        goal[2] = 0.05
    closing = -1.0 if lowered and apart < 0.012 else 1.0
    move = np.clip((goal - gripper) / STEP, -1.0, 1.0) + noise * rng.normal(size=3) * (not grasped)
    return np.clip(np.append(move, closing), -1.0, 1.0).astype(np.float32)


gymnasium.register("Pick-v0", f"{__name__}:PickEnv", max_episode_steps=60)
