"""OGBench's manipulation step and planner without what data collection throws away.

OGBench computes each observation three times a step, repaints the scene, and runs its rotations and inverse
kinematics through small NumPy objects. Here the same formulas are evaluated once, in the same order of
operations, so that the rows stay bit for bit what `env.step` gives (a test compares them for every task).
Two rules keep it so: sums and products may move from NumPy scalars to Python floats, which are the same IEEE
doubles; sin, cos, arctan2 and dot products stay with NumPy, which may differ from `math` in the last bit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import mujoco as _mujoco
import numpy as np

mujoco: Any = _mujoco  # compiled functions without type stubs

Quaternion = Sequence[float]  # w, x, y, z
Step = Callable[[np.ndarray], tuple[np.ndarray, dict[str, Any]]]

_CENTER = (0.425, 0.0, 0.0)


def _multiply(a: Quaternion, b: Quaternion) -> Quaternion:
    w0, x0, y0, z0 = a
    w1, x1, y1, z1 = b
    return (
        -x0 * x1 - y0 * y1 - z0 * z1 + w0 * w1,
        x0 * w1 + y0 * z1 - z0 * y1 + w0 * x1,
        -x0 * z1 + y0 * w1 + z0 * x1 + w0 * y1,
        x0 * y1 - y0 * x1 + z0 * w1 + w0 * z1,
    )


def _inverse(q: Quaternion) -> Quaternion:
    return (q[0], -q[1], -q[2], -q[3])


def _yaw(q: Quaternion) -> float:
    w, x, y, z = q
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2)))


def _from_yaw(theta: float) -> Quaternion:
    """The rotation by theta about the vertical axis, as OGBench's exponential map computes it."""
    squared = theta * theta
    if squared < 1e-10:
        real = 1.0 - squared / 8.0 + squared * squared / 384.0
        imaginary = 0.5 - squared / 48.0 + squared * squared / 3840.0
    else:
        angle = math.sqrt(squared)
        real = float(np.cos(0.5 * angle))
        imaginary = float(np.sin(0.5 * angle)) / angle
    return (real, imaginary * 0.0, imaginary * 0.0, imaginary * theta)


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def _norm(x: np.ndarray) -> float:
    return math.sqrt(x.dot(x))


def fast_step(env: Any) -> Step:
    """`step(action) -> (observation, info)`; info holds what the plan oracles and the data set need."""
    model, data = env.model, env.data
    control = _controller(env)
    observe = _observer(env)
    has_buttons = hasattr(env, "_cur_button_states")
    buttons = _qpos_addresses(model, "buttonbox_joint_", env._num_buttons) if has_buttons else []

    def step(action: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        info: dict[str, Any] = {"prev_qpos": data.qpos.copy(), "prev_qvel": data.qvel.copy()}
        control(action)
        mujoco.mj_step(model, data, nstep=env._n_steps)
        mujoco.mj_rnePostConstraint(model, data)
        if has_buttons:
            info["prev_button_states"] = env._cur_button_states.copy()
            before, after = info["prev_qpos"][buttons], data.qpos[buttons]
            if ((before > -0.02) & (after <= -0.02)).any():
                env._prev_ob_info = {f"privileged/button_{i}_pos": [x] for i, x in enumerate(before)}
                env.post_step()  # A button was pressed: OGBench changes states and locks.
            else:
                mujoco.mj_forward(model, data)  # All that post_step does to the physics otherwise.
        return observe(info), info

    return step


def _qpos_addresses(model: Any, prefix: str, count: int) -> list[int]:
    return [int(model.joint(f"{prefix}{i}").qposadr[0]) for i in range(count)]


def _controller(env: Any) -> Callable[[np.ndarray], None]:
    """Relative end-effector action -> joint targets (ManipSpaceEnv.set_control)."""
    data = env.data
    position, matrix = data.site_xpos[env._pinch_site_id], data.site_xmat[env._pinch_site_id]
    low, span = env.action_low, env.action_high - env.action_low
    bounds = list(zip(*env._workspace_bounds.tolist(), strict=True))
    down = tuple(env._effector_down_rotation.wxyz.tolist())
    flange = env._T_pa.wxyz_xyz.tolist()
    flange_rotation, flange_offset = tuple(flange[:4]), (0.0, *flange[4:])
    solve = _inverse_kinematics(env._ik)
    quaternion = np.empty(4)

    def control(action: np.ndarray) -> None:
        dx, dy, dz, turn, grip = (0.5 * (action + 1) * span + low).tolist()
        mujoco.mju_mat2Quat(quaternion, matrix)
        yaw = _yaw(quaternion.tolist())
        opening = _clip(float(data.qpos[env._gripper_opening_joint_id]) / 0.8, 0.0, 1.0)
        target = [_clip(p + d, *bound) for p, d, bound in zip(position.tolist(), (dx, dy, dz), bounds, strict=True)]
        target_yaw = _yaw(_multiply(_multiply(_from_yaw(turn), _from_yaw(yaw)), _inverse(down)))
        rotation = _multiply(_from_yaw(_clip(target_yaw, -math.pi, math.pi)), down)
        # From the pinch point between the fingers to the flange that the inverse kinematics moves.
        _, x, y, z = _multiply(_multiply(rotation, flange_offset), _inverse(rotation))
        flange_position = np.array([x + target[0], y + target[1], z + target[2]])
        joints = solve(flange_position, np.array(_multiply(rotation, flange_rotation)), data.qpos[env._arm_joint_ids])
        data.ctrl[env._arm_actuator_ids] = joints
        data.ctrl[env._gripper_actuator_ids] = 255.0 * _clip(opening + grip, 0.0, 1.0)

    return control


def _inverse_kinematics(ik: Any) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Damped least squares on the arm alone (DiffIKController.solve for one site, no null-space posture)."""
    model, data, site = ik._model, ik._data, int(ik._site_ids[0])
    position, matrix = data.site_xpos[site], data.site_xmat[site]
    error, jacobian = np.empty(6), np.empty((6, model.nv))
    translation, rotation = error[:3], error[3:]
    jacobian_p, jacobian_r = jacobian[:3], jacobian[3:]
    current, back, difference = np.empty(4), np.empty(4), np.empty(4)

    def solve(target: np.ndarray, quaternion: np.ndarray, qpos: np.ndarray) -> np.ndarray:
        data.qpos[:] = qpos
        for _ in range(20):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            np.subtract(target, position, out=translation)
            mujoco.mju_mat2Quat(current, matrix)
            mujoco.mju_negQuat(back, current)
            mujoco.mju_mulQuat(difference, quaternion, back)
            mujoco.mju_quat2Vel(rotation, difference, 1.0)
            if _norm(translation) <= 1e-4 and _norm(rotation) <= 1e-4:
                break
            mujoco.mj_jacSite(model, data, jacobian_p, jacobian_r, site)
            update = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + ik._damping, error)
            largest = np.abs(update).max()
            if largest > ik._max_angle_change:
                update *= ik._max_angle_change / largest
            mujoco.mj_integratePos(model, data.qpos, update, 1.0)
        return data.qpos.copy()

    return solve


def _observer(env: Any) -> Callable[[dict[str, Any]], np.ndarray]:
    """The state observation (compute_observation); what the oracles read is added to `info`."""
    model, data = env.model, env.data
    position, matrix = data.site_xpos[env._pinch_site_id], data.site_xmat[env._pinch_site_id]
    contact = data.cfrc_ext[model.body("ur5e/robotiq/right_pad").id]
    arm, opening_id = env._arm_joint_ids, env._gripper_opening_joint_id
    blocks = _qpos_addresses(model, "object_joint_", getattr(env, "_num_cubes", 0))
    buttons = [model.joint(f"buttonbox_joint_{i}") for i in range(getattr(env, "_num_buttons", 0))]
    button_addresses = [(int(joint.qposadr[0]), int(joint.dofadr[0])) for joint in buttons]
    # Drawer and window (scene only) with the scale of their positions.
    slides = [("drawer_slide", 18.0), ("window_slide", 15.0)] if blocks and buttons else []
    slide_addresses = [
        (int(model.joint(name).qposadr[0]), int(model.joint(name).dofadr[0]), scale) for name, scale in slides
    ]
    quaternion = np.empty(4)

    def scaled(xyz: list[float]) -> list[float]:
        return [(x - c) * 10.0 for x, c in zip(xyz, _CENTER, strict=True)]

    def observe(info: dict[str, Any]) -> np.ndarray:
        qpos, qvel = data.qpos.tolist(), data.qvel.tolist()
        mujoco.mju_mat2Quat(quaternion, matrix)
        yaw = _yaw(quaternion.tolist())
        opening = _clip(qpos[opening_id] / 0.8, 0.0, 1.0)
        info["time"] = [data.time]
        info["proprio/effector_pos"] = position.copy()
        info["proprio/effector_yaw"] = [yaw]
        info["proprio/gripper_opening"] = [opening]

        ob = [qpos[i] for i in arm] + [qvel[i] for i in arm] + scaled(position.tolist())
        ob += [np.cos(yaw), np.sin(yaw), opening * 3.0, _clip(_norm(contact) / 50, 0.0, 1.0)]
        for i in blocks:
            rotation = qpos[i + 3 : i + 7]
            block_yaw = _yaw(rotation)
            ob += [*scaled(qpos[i : i + 3]), *rotation, np.cos(block_yaw), np.sin(block_yaw)]
        for state, (i, j) in zip(env._cur_button_states if buttons else (), button_addresses, strict=True):
            ob += [1.0 - state, float(state), qpos[i] * 120.0, qvel[j]]
        for i, j, scale in slide_addresses:
            ob += [qpos[i] * scale, qvel[j]]
        return np.array(ob)

    return observe


def fast_oracle(oracle: Any) -> None:
    """Give a plan oracle a planner that interpolates all times at once (PlanOracle.compute_plan)."""
    from scipy.interpolate import interp1d
    from scipy.ndimage import gaussian_filter1d

    def compute_plan(times: list[float], poses: list[Any], grasps: list[float]) -> np.ndarray:
        moments, t = [], 0.0
        while t < oracle._t_max:
            moments.append(t)
            t += oracle._env_dt
        plan = np.zeros((len(moments), 5))
        xyzs = [pose.translation() for pose in poses]
        plan[:, :3] = interp1d(times, xyzs, kind="linear", axis=0, assume_sorted=True)(moments)
        plan[:, 3] = _interpolate_yaw(times, [pose.rotation() for pose in poses], moments)
        plan[:, 4] = interp1d(times, grasps, kind="linear", axis=0, assume_sorted=True)(moments)
        noise = np.random.normal(0, 1, size=plan.shape) * np.array([0.05, 0.05, 0.05, 0.3, 1.0]) * oracle._noise
        return plan + gaussian_filter1d(noise, axis=0, sigma=oracle._noise_smoothing)

    oracle.compute_plan = compute_plan


def _interpolate_yaw(times: list[float], rotations: list[Any], moments: list[float]) -> list[float]:
    """Yaw along the geodesics between the rotations. All of them are rotations about the vertical axis."""
    yaws = []
    segment, start, velocity = -1, (1.0, 0.0, 0.0, 0.0), 0.0
    for t in moments:
        s = bisect_right(times, t) - 1
        if s != segment:
            segment, start = s, tuple(rotations[s].wxyz.tolist())
            velocity = float((rotations[s].inverse() @ rotations[s + 1]).log()[2])
        fraction = _clip((t - times[s]) / (times[s + 1] - times[s]), 0.0, 1.0)
        yaws.append(_yaw(_multiply(start, _from_yaw(fraction * velocity))))
    return yaws
