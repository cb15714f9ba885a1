"""Evaluation in processes: fixed quotas, seeded episodes, contained failures, no process left behind."""

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
from typing import Any

import numpy as np
import pytest

from fidec.envs.evaluation import EnvPool, Episode, episode_seed
from fidec.errors import ConfigError, EnvError, NonFiniteError
from helpers.lane_envs import Counter, Handshake, Parent, Signalled, Uneven, length, made_once, make_broken


def act(observations, episode_ids, steps):
    """A policy whose noise is a function of (episode, step), as fidec's are."""
    noise = [np.random.default_rng([e, s]).uniform(-1, 1, 2) for e, s in zip(episode_ids, steps, strict=True)]
    return np.stack(noise) * np.cos(observations[:, :1])


def content(episodes: list[Episode]):
    return [(e.index, e.seed, e.status, e.return_, e.length, e.success) for e in episodes]


@pytest.fixture(scope="module")
def pool():
    with EnvPool(Counter, 3) as shared:
        yield shared


def test_episodes_do_not_depend_on_the_number_of_environments(pool):
    three = pool.run(act, 7, seed=5)
    assert content(three) == content(pool.run(act, 7, seed=5))
    with EnvPool(Counter, 1) as single:
        assert content(single.run(act, 7, seed=5)) == content(three)
    assert content(pool.run(act, 7, seed=6)) != content(three)
    assert content(pool.run(act, 4, seed=5, first=3)) == content(three)[3:]
    assert [e.index for e in three] == list(range(7))
    assert [e.seed for e in three] == [episode_seed(5, k) for k in range(7)]
    assert [e.length for e in three] == [length(e.seed) for e in three]


def lockstep(pool: EnvPool, act, episodes: int, seed: int):
    """What `run` returns, from lanes that wait for each other at every step."""
    n, found = pool.num_envs, []
    for first in range(0, episodes, n):
        ids, steps, returns = first + np.arange(n), np.zeros(n, int), np.zeros(n)
        running = {lane: pool._processes[lane] for lane in range(n) if ids[lane] < episodes}
        observations = np.zeros((n, 6), np.float32)
        for lane, process in running.items():
            observations[lane] = process.ask("reset", episode_seed(seed, ids[lane]), 60)[1]
        while running:
            actions = act(observations, ids, steps).astype(np.float32)
            for lane, process in list(running.items()):
                observations[lane], reward, *over, success = process.ask("step", actions[lane], 60)[1]
                steps[lane] += 1
                returns[lane] += reward
                if any(over):
                    del running[lane]
                    episode = int(ids[lane])
                    found.append((episode, episode_seed(seed, episode), "ok", returns[lane], steps[lane], success))
    return sorted(found)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_lanes_of_different_speed_run_the_same_episodes_as_in_lockstep(n):
    def policy(observations, ids, steps):
        return np.tanh(act(observations, ids, steps) + observations[:, 2:4])

    with EnvPool(Uneven, n) as uneven:
        assert content(uneven.run(policy, 10, seed=3)) == lockstep(uneven, policy, 10, seed=3)


def test_a_slow_lane_holds_back_no_other(tmp_path):
    """Lane 0 stands still in its first episode until lane 1 has finished all of its own."""
    ended = []

    def progress(episode):
        ended.append(episode.index)
        if ended == [1, 3, 5, 7]:
            (tmp_path / "go").touch()

    make_env = partial(Signalled, tmp_path / "go", blocked=(episode_seed(0, 0),))
    with EnvPool(make_env, 2, step_timeout=20) as signalled:
        episodes = signalled.run(act, 8, seed=0, progress=progress)
    assert ended == [1, 3, 5, 7, 0, 2, 4, 6]
    assert [e.status for e in episodes] == ["ok"] * 8


def test_the_time_limit_of_a_lane_counts_from_its_own_command(tmp_path):
    """Lane 1 answers all the time, until lane 0 counts as hung; only then does its episode end."""
    seeds = [episode_seed(0, k) for k in range(4)]
    make_env = partial(Signalled, tmp_path / "go", lasting=(seeds[1],), faults={seeds[0]: "sleep"})
    ended = []

    def progress(episode):
        ended.append((episode.index, episode.status))
        (tmp_path / "go").touch()

    def counting(observations, ids, steps):
        assert steps.max() < 5000, "lane 0 is not found to hang"
        return act(observations, ids, steps)

    with EnvPool(make_env, 2, step_timeout=1.5) as signalled:
        episodes = signalled.run(counting, 4, seed=0, progress=progress)
    assert ended[0] == (0, "hung")
    assert [e.status for e in episodes] == ["hung", "ok", "ok", "ok"]
    assert (episodes[0].length, episodes[0].detail) == (2, "no answer for 1.5 s")
    assert [e.length for e in episodes[2:]] == [length(seed) for seed in seeds[2:]]


def test_a_policy_that_is_slower_than_the_environments_is_called_for_several_lanes_at_once(pool):
    calls = []

    def slow(observations, ids, steps):
        calls.append(steps)
        time.sleep(0.02)
        return act(observations, ids, steps)

    episodes = pool.run(slow, 9, seed=4)
    # Three lanes that take turns would need a call for every step or two.
    assert len(calls) < 0.6 * sum(e.length for e in episodes)
    assert content(episodes) == content(pool.run(act, 9, seed=4))


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
        observations[:] = np.nan  # a policy may not change the pool's own arrays
        return np.zeros((3, 2))

    episodes = pool.run(watching, 4, seed=1)
    assert shapes == {((3, 6), "float32", (3,), (3,))}
    for episode in episodes:
        assert all((episode.index, step) in counted for step in range(episode.length))


def test_reported_numbers_are_those_of_the_environment(pool):
    episode = pool.run(lambda o, i, s: np.full((3, 2), 0.25), 1, seed=9)[0]
    rewards = 0.5 * np.arange(1, episode.length + 1)  # Counter's reward is the sum of its actions
    assert episode.row() == {
        "episode": 0,
        "seed": episode_seed(9, 0),
        "lane": 0,
        "status": "ok",
        "return": pytest.approx(rewards.sum()),
        "length": length(episode_seed(9, 0)),
        "success": episode.length / 10,
        "detail": None,
    }


def test_failures_are_contained_and_named(pool):
    """Of each way to fail one here; `test_worker.py` has all invalid values, `test_envs_lanes.py` the rest."""
    faults = ["raise", "segv", "sleep", "lock", "nan"]
    seeds = {episode_seed(0, 2 * k + 1): fault for k, fault in enumerate(faults)}
    count = 2 * len(faults) + 1
    with EnvPool(partial(Counter, seeds), 4, step_timeout=1.5) as faulty:
        episodes = faulty.run(act, count, seed=0)
    assert content(episodes[::2]) == content(pool.run(act, count, seed=0)[::2])
    failed = dict(zip(faults, episodes[1::2], strict=True))
    assert {fault: e.status for fault, e in failed.items()} == {
        "raise": "crashed",
        "segv": "crashed",
        "sleep": "hung",
        "lock": "hung",
        "nan": "invalid",
    }
    assert all((e.success, e.length) == (None, 2) for e in failed.values())
    detail = {fault: str(e.detail) for fault, e in failed.items()}
    assert detail["raise"].startswith("RuntimeError: gripper lost (lane_envs.py:")
    assert "SIGSEGV" in detail["segv"]
    assert "1.5 s" in detail["sleep"]
    assert detail["nan"] == "observation is nan at index (0,)"


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_process_that_an_environment_started_ends_with_it_and_hides_no_crash(tmp_path, way):
    with EnvPool(partial(Parent, way, tmp_path / "pid"), 1, step_timeout=20) as parent:
        children = [int((tmp_path / "pid").read_text())]
        (episode,) = parent.run(act, 1, seed=0)
        assert (episode.status, episode.detail) == ("crashed", "process ended by SIGSEGV")
        wait_until_gone(children)
    with EnvPool(partial(Parent, way, tmp_path / "pid"), 1):
        children = [int((tmp_path / "pid").read_text())]
    wait_until_gone(children)


def test_a_start_that_hangs_is_reported_and_ends_in_time(monkeypatch, capsys):
    monkeypatch.setattr("fidec.envs.processes.PATIENCE", 0.1)
    words = r"the environment Own-v0 \(process 1 of 1\) did not start in 1 attempt: it was not made within the time"
    hang: Any = partial(time.sleep, 1000)
    with pytest.raises(EnvError, match=words):
        EnvPool(hang, 1, name="Own-v0", step_timeout=0.3, start_timeout=0.6)
    message = capsys.readouterr().err
    assert re.fullmatch(r"the environment Own-v0 has been starting for 0\.1 s; the limit is 0\.\d+ s\n", message)


def test_a_failing_policy_leaves_the_pool_usable(pool):
    expected = content(pool.run(act, 3, seed=0))

    def failing(observations, ids, steps):
        if steps.max() == 3:
            raise KeyboardInterrupt
        return act(observations, ids, steps)

    with pytest.raises(KeyboardInterrupt):
        pool.run(failing, 3, seed=0)
    assert content(pool.run(act, 3, seed=0)) == expected
    with pytest.raises(NonFiniteError, match=r"episode \d, step 0"):
        pool.run(lambda o, i, s: np.full((3, 2), np.nan), 3, seed=0)
    with pytest.raises(EnvError, match=r"\(3, 5\).*\(3, 2\)"):
        pool.run(lambda o, i, s: np.zeros((3, 5)), 3, seed=0)


class Background(threading.Thread):
    """`pool.run` in another thread."""

    def __init__(self, pool: EnvPool, act):
        super().__init__(daemon=True)
        self.run_episodes, self.error = partial(pool.run, act, 100, seed=0), None
        self.start()

    def run(self):
        try:
            self.run_episodes()
        except EnvError as error:
            self.error = error


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was not written"
        time.sleep(0.01)


@pytest.mark.parametrize("when", ["step", "start", "act"])
def test_closing_ends_a_run_in_another_thread(tmp_path, monkeypatch, when):
    """In a step or a start that hangs, or in a call of the policy, which is waited for."""
    make_env = partial(made_once if when == "start" else Handshake, tmp_path)
    hanging = EnvPool(make_env, 1, step_timeout=1000)
    alive = []
    if when == "start":
        os.kill(hanging.pids[0], signal.SIGKILL)
        wait_until_gone(hanging.pids)

    def policy(observations, ids, steps):
        if when == "act":
            (tmp_path / "started").touch()
            while not hanging._closed:
                time.sleep(0.01)
            time.sleep(0.1)
            alive.extend(map(is_running, hanging.pids))
        return np.zeros((1, hanging.action_dim))

    background = Background(hanging, policy)
    wait_for(tmp_path / "started")
    pids = hanging.pids
    monkeypatch.setattr("fidec.envs.processes.EnvProcess", None)  # no process is started any more
    hanging.close()
    background.join(20)
    assert "closed" in str(background.error)
    assert alive == ([True] if when == "act" else [])
    wait_until_gone(pids)
    with pytest.raises(EnvError, match="this EnvPool is closed"):
        hanging.run(policy, 1, seed=0)


def test_processes_leave_signals_to_the_parent_and_are_replaced_when_dead(pool):
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


def test_an_environment_that_cannot_be_made_says_why_and_prints_nothing_on_stdout(capfd):
    with pytest.raises(EnvError, match=r"3 attempts: FileNotFoundError: scene.xml is not there \(lane_envs.py:\d+\)"):
        EnvPool(make_broken, 1)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "hello from the simulator" in captured.err


def test_bad_arguments(pool):
    lock = threading.Lock()
    with pytest.raises(EnvError, match="cannot be pickled: create that object inside the function"):
        EnvPool(lambda: Counter(entropy=lock.locked()), 1)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        EnvPool(Counter, 0)
    with pytest.raises(ConfigError, match="seed = -1"):
        pool.run(act, 1, seed=-1)


SCRIPT = """
import os, signal, sys, threading, time
from functools import partial
import numpy as np
from fidec.envs.evaluation import EnvPool, episode_seed
from helpers.lane_envs import Counter

def make_env():
    return Counter({episode_seed(0, 0): "lock", episode_seed(0, 1): "sleep"})

print("started", flush=True)
pool = EnvPool(make_env, 2)
print(*pool.pids, flush=True)
if sys.argv[1] == "kill":
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
seed = 0 if sys.argv[1] == "kill" else 2
print(len(pool.run(lambda o, i, s: np.zeros((2, 2)), 2, seed)), flush=True)
"""


@pytest.mark.parametrize("how", ["kill", "leave"])
def test_a_script_needs_no_guard_and_leaves_no_process(tmp_path, how):
    """The function is the script's own, without a `__main__` guard. It is killed in mid-episode, or never closed."""
    (tmp_path / "script.py").write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), how],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = result.stdout.split("\n")
    assert lines[0] == "started", result.stderr
    pids = [int(pid) for pid in lines[1].split()]
    assert len(pids) == 2
    assert lines[2:] == ([""] if how == "kill" else ["2", ""]), result.stderr
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
    try:  # a zombie without threads only waits to be collected
        zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not zombie or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return not Path("/proc").is_dir()
