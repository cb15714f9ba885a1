"""Every task of the benchmark steps here, or says exactly what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest

from fidec import tasks
from fidec.envs.factory import find_task, make
from fidec.envs.families.d4rl import RULES
from fidec.envs.processes import EnvProcess, pickled, wait_ready
from fidec.envs.render import gl_environ

OFFLINE = {task.id: task for task in tasks.TASKS if task.setting == "offline"}
VISUAL = "visual-cube-single-play-singletask-task1-v0"
ONE_OF_EACH = (  # of manipulation the cubes are in test_envs_make.py
    "antmaze-large-navigate-singletask-task1-v0",
    "humanoidmaze-medium-navigate-singletask-task1-v0",
    "antsoccer-arena-navigate-singletask-task4-v0",
    "antmaze-umaze-v2",
    "antmaze-large-diverse-v2",
    "pen-human-v1",
    "door-cloned-v1",
    "hammer-expert-v1",
    "relocate-human-v1",
)


def check(task_id: str) -> None:
    task, info = OFFLINE[task_id], find_task(task_id)
    assert (info.family, info.horizon) == (task.benchmark, task.horizon)
    assert bool(info.note) == (info.family == "d4rl")
    if info.visual:
        check_pixels(task_id)
        return
    if info.env in RULES:
        pytest.importorskip("gymnasium_robotics")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(task_id)
    shape = tuple(task.observation_shape)
    assert env.observation_space.shape == shape
    assert env.action_space == gymnasium.spaces.Box(-1, 1, (task.action_dim,), np.float32)
    rng, seen = np.random.default_rng(0), [env.reset(seed=1)[0]]
    for _ in range(3):
        action = rng.uniform(-1, 1, task.action_dim).astype(np.float32)
        observation, reward, terminated, truncated, facts = env.step(action)
        seen.append(observation)
        assert np.isfinite(float(reward))
        assert facts["success"] in (0.0, 1.0)
        assert (terminated, truncated) == (False, False)
    assert np.stack(seen).shape == (4, *shape)
    assert np.isfinite(seen).all()
    env.close()


def check_pixels(task_id: str) -> None:
    """In a process of its own, as every evaluation does: MuJoCo chooses its OpenGL once, when it is imported."""
    process = EnvProcess(pickled(partial(make, task_id)), gl_environ())
    try:
        reason = wait_ready([process], task_id, 120)[0]
        if reason is not None:
            assert re.search("ictures need OpenGL|SIGABRT|SIGSEGV", reason), reason
            pytest.skip(reason)
        assert (process.facts["shape"], process.facts["action_dim"]) == ((64, 64, 3), OFFLINE[task_id].action_dim)
        kind, first = process.ask("reset", 1, 120)
        assert kind == "ok", first
        assert first.std() > 5  # a picture, not a blank
        for _ in range(3):
            kind, reply = process.ask("step", np.full(OFFLINE[task_id].action_dim, 0.5, np.float32), 120)
            assert kind == "ok", reply
            assert reply[0].shape == (64, 64, 3)
            assert reply[2] is False
    finally:
        process.end(grace=2.0)


@pytest.mark.parametrize("task_id", ONE_OF_EACH)
def test_a_task_of_each_kind_steps(task_id):
    check(task_id)


@pytest.mark.slow
@pytest.mark.parametrize("task_id", OFFLINE)
def test_all_73_step(task_id):
    assert len(OFFLINE) == 73
    check(task_id)


def test_pixels_without_opengl_say_what_to_install():
    code = f"from fidec.envs.factory import make; make({VISUAL!r})"
    environ = os.environ | {"MUJOCO_GL": "nonsense"}  # read once in a process, when MuJoCo is first imported
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120)
    assert re.search(rf"EnvError: cannot make the environment {VISUAL}: .*nonsense.*OpenGL.*libegl1", run.stderr)
