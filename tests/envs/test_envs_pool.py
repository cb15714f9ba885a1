"""The pool's promises: fixed quotas, seeded episodes, contained failures, no process left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fidec.envs.pool import EnvPool, Episode, episode_seed
from fidec.errors import ConfigError, EnvError, NonFiniteError


class Toy(gymnasium.Env):
    """Ends after a number of steps drawn from its seed; the reward is what the action says, plus noise.

    `faults` maps a reset seed to what goes wrong in the third step of that episode.
    """

    def __init__(self, faults: dict[int, str] | None = None, low: float = -1.0, high: float = 1.0):
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(low, high, (2,), np.float32)
        self.faults = faults or {}

    def _observation(self):
        return np.array([self.t, self.limit, self.np_random.normal()])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.limit = 0, int(self.np_random.integers(5, 15))
        self.fault = self.faults.get(seed)
        if self.fault == "reset":
            raise ValueError("reset went wrong")
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        observation, reward = self._observation(), float(action.sum()) + np.random.normal()
        if self.t == 3 and self.fault is not None:
            observation, reward = self._go_wrong(observation, reward)
        return observation, reward, self.t == self.limit, False, {"success": self.limit % 2 == 0}

    def _go_wrong(self, observation, reward):
        if self.fault == "raise":
            raise RuntimeError("gripper\nlost")
        if self.fault == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "sleep":
            time.sleep(1000)
        if self.fault == "lock":
            re.match(r"(a+)+$", "a" * 60 + "b")  # spins in C and never releases the interpreter lock
        if self.fault == "nan":
            observation = observation * np.nan
        if self.fault == "reward":
            reward = np.inf
        if self.fault == "shape":
            observation = observation[:2]
        return observation, reward


def broken_make() -> gymnasium.Env:
    raise FileNotFoundError("scene.xml is not there")


def discrete_make() -> gymnasium.Env:
    env = Toy()
    env.action_space = Discrete(3)
    return env


def noisy_make() -> gymnasium.Env:
    print("hello from the simulator", flush=True)
    return Toy()


def act(observations, episode_ids, steps):
    """A policy whose noise is a function of (episode, step), as fidec's are."""
    noise = [np.random.default_rng([e, s]).uniform(-1, 1, 2) for e, s in zip(episode_ids, steps, strict=True)]
    return np.stack(noise) * np.cos(observations[:, :1])


def content(episodes: list[Episode]):
    return [(e.index, e.seed, e.status, e.return_, e.length, e.success) for e in episodes]


@pytest.fixture(scope="module")
def pool():
    with EnvPool(Toy, 3) as shared:
        yield shared


def test_episodes_do_not_depend_on_the_number_of_environments(pool):
    three = pool.run(act, 7, seed=5)
    assert content(three) == content(pool.run(act, 7, seed=5))
    with EnvPool(Toy, 1) as single:
        assert content(single.run(act, 7, seed=5)) == content(three)
    assert content(pool.run(act, 7, seed=6)) != content(three)
    assert [e.index for e in three] == list(range(7))
    assert [e.seed for e in three] == [episode_seed(5, k) for k in range(7)]
    assert len({e.length for e in three}) > 1


def test_every_lane_has_its_quota_whatever_the_lengths(pool):
    seen = []
    episodes = pool.run(act, 8, seed=0, progress=seen.append)
    assert [e.lane for e in episodes] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert sorted(seen, key=lambda e: e.index) == episodes
    assert pool.run(act, 0, seed=0) == []
    assert [e.lane for e in pool.run(act, 2, seed=0)] == [0, 1]


def test_the_policy_always_sees_all_lanes(pool):
    shapes, counted = set(), {}

    def watching(observations, ids, steps):
        shapes.add((observations.shape, observations.dtype.name, ids.shape, steps.shape))
        counted.update({(int(i), int(s)): True for i, s in zip(ids, steps, strict=True)})
        observations[:] = np.nan  # a policy may not spoil the pool's own arrays
        return np.zeros((3, 2))

    episodes = pool.run(watching, 4, seed=1)
    assert shapes == {((3, 3), "float32", (3,), (3,))}
    for episode in episodes:
        assert all((episode.index, step) in counted for step in range(episode.length))


def test_reported_numbers_are_those_of_the_environment(pool):
    episode = pool.run(lambda o, i, s: np.full((3, 2), 0.25), 1, seed=9)[0]
    env = Toy()
    np.random.seed(episode.seed)
    env.reset(seed=episode.seed)
    rewards, over, info = [], False, {}
    while not over:
        _, reward, over, _, info = env.step(np.full(2, 0.25, np.float32))
        rewards.append(reward)
    assert episode.return_ == pytest.approx(sum(rewards))
    assert (episode.length, episode.success) == (len(rewards), float(info["success"]))
    assert episode.row() == {
        "episode": 0,
        "seed": episode.seed,
        "lane": 0,
        "status": "ok",
        "return": episode.return_,
        "length": len(rewards),
        "success": episode.success,
        "detail": None,
    }


def test_failures_are_contained_and_named(pool):
    faults = ["raise", "segv", "exit", "sleep", "lock", "nan", "reward", "shape", "reset"]
    seeds = {episode_seed(0, 2 * k + 1): fault for k, fault in enumerate(faults)}
    began = time.monotonic()
    with EnvPool(partial(Toy, seeds), 4, step_timeout=3.0) as faulty:
        episodes = faulty.run(act, 2 * len(faults) + 1, seed=0)
    assert time.monotonic() - began < 60
    expected = pool.run(act, 2 * len(faults) + 1, seed=0)
    assert content(episodes[::2]) == content(expected[::2])
    bad = dict(zip(faults, episodes[1::2], strict=True))
    found = {fault: (e.status, e.length) for fault, e in bad.items()}
    assert found == {
        "raise": ("crashed", 2),
        "segv": ("crashed", 2),
        "exit": ("crashed", 2),
        "sleep": ("hung", 2),
        "lock": ("hung", 2),
        "nan": ("invalid", 2),
        "reward": ("invalid", 2),
        "shape": ("invalid", 2),
        "reset": ("crashed", 0),
    }
    assert all(e.success is None for e in bad.values())
    assert bad["raise"].detail.startswith("RuntimeError: gripper lost (test_envs_pool.py:")
    assert "SIGSEGV" in bad["segv"].detail
    assert "exit code 7" in bad["exit"].detail
    assert "3 s" in bad["sleep"].detail
    assert bad["nan"].detail == "observation is nan at index (0,)"
    assert bad["reward"].detail == "reward is inf"
    assert "(2,)" in bad["shape"].detail
    assert "(3,)" in bad["shape"].detail


def test_actions_are_clipped_and_scaled_to_the_box():
    with EnvPool(partial(Toy, None, 0.0, 10.0), 1) as pool:
        low, middle, high = (pool.run(lambda o, i, s, a=a: np.full((1, 2), a), 1, seed=0)[0] for a in (-3, 0, 1))
    assert (middle.return_ - low.return_) / low.length == pytest.approx(10)
    assert (high.return_ - low.return_) / low.length == pytest.approx(20)


def test_a_failing_policy_leaves_the_pool_usable(pool):
    expected = content(pool.run(act, 3, seed=0))

    def failing(observations, ids, steps):
        if steps.max() == 3:
            raise KeyboardInterrupt
        return act(observations, ids, steps)

    with pytest.raises(KeyboardInterrupt):
        pool.run(failing, 3, seed=0)
    assert content(pool.run(act, 3, seed=0)) == expected
    with pytest.raises(NonFiniteError, match="episode 0, step 0"):
        pool.run(lambda o, i, s: np.full((3, 2), np.nan), 3, seed=0)
    with pytest.raises(EnvError, match=r"\(3, 5\).*\(3, 2\)"):
        pool.run(lambda o, i, s: np.zeros((3, 5)), 3, seed=0)


def test_workers_leave_signals_to_the_parent_and_are_replaced_when_dead(pool):
    expected = content(pool.run(act, 3, seed=0))
    before = pool.pids
    for pid in before:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, name)
    assert content(pool.run(act, 3, seed=0)) == expected
    assert pool.pids == before
    os.kill(before[1], signal.SIGKILL)
    wait_until_gone(before[1:2])
    assert content(pool.run(act, 3, seed=0)) == expected
    assert len(pool.pids) == 3
    assert set(before) - set(pool.pids) == {before[1]}


def test_close_leaves_no_process():
    pool = EnvPool(Toy, 2)
    pids = pool.pids
    pool.run(act, 2, seed=0)
    pool.close()
    pool.close()
    wait_until_gone(pids)
    with pytest.raises(EnvError, match="closed"):
        pool.run(act, 1, seed=0)


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (broken_make, r"3 attempts: FileNotFoundError: scene.xml is not there \(test_envs_pool.py:\d+\)"),
        (discrete_make, r"the environment Toy has the action space Discrete\(3\); expected a Box with one axis"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(make_env, message):
    with pytest.raises(EnvError, match=message):
        EnvPool(make_env, 1)


def test_bad_arguments(pool):
    lock = threading.Lock()
    with pytest.raises(EnvError, match="cannot be pickled: create that object inside the function"):
        EnvPool(lambda: Toy() if lock else None, 1)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        EnvPool(Toy, 0)
    with pytest.raises(ConfigError, match="seed = -1"):
        pool.run(act, 1, seed=-1)


def test_what_an_environment_prints_stays_off_stdout(capfd):
    with EnvPool(noisy_make, 1) as pool:
        pool.run(lambda o, i, s: np.zeros((1, 2)), 1, seed=0)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "hello from the simulator" in captured.err


SCRIPT = """
import os, signal, sys, threading, time
from functools import partial
import numpy as np
from fidec.envs.pool import EnvPool, episode_seed
import test_envs_pool as t

print("started", flush=True)
pool = EnvPool(partial(t.Toy, {episode_seed(0, 0): "lock", episode_seed(0, 1): "sleep"}), 3)
print(*pool.pids, flush=True)
if sys.argv[1] == "kill":
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    pool.run(t.act, 3, seed=0)
else:
    print(len(pool.run(t.act, 3, seed=2)), flush=True)
"""


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_no_orphans_and_no_guard_needed(tmp_path, how):
    """A script needs no `__main__` guard; killed in mid-episode or left unclosed, it leaves nothing."""
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = [str(Path(__file__).parent), *sys.path]
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), how],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = result.stdout.split("\n")
    assert lines[0] == "started", result.stderr
    pids = [int(pid) for pid in lines[1].split()]
    assert len(pids) == 3
    assert lines[2:] == ([""] if how == "kill" else ["3", ""]), result.stderr
    assert result.returncode == (-signal.SIGKILL if how == "kill" else 0)
    wait_until_gone(pids)


def wait_until_gone(pids: list[int], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {alive}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a zombie whose threads are gone too only waits to be collected
        zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not zombie or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return not Path("/proc").is_dir()
