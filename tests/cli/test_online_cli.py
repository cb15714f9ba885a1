"""The online phase through the command line: killed, stopped, extended, and with wrong arguments.

As in test_kill.py, the uninterrupted run compiles its programs, and the others take them from JAX's cache.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import TASK, Processes, online_fingerprint, random_columns, read_rows

OFFLINE, ONLINE, SAVE = 100, 240, 20
EPISODE = {"calql"}  # collected by the episode: pointmaze's has up to 1000 steps
MODES = {
    "tiny": ("tiny",),
    "fql": ("fql",),
    "calql": ("calql",),
    "rlpd": ("rlpd", "--online.random-steps", 50, "--online.updates", 2),
    "envs": ("fql", "--online.envs", 2),
    "overlap": ("fidec", "--online.overlap"),
}


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    from fidec.make import make_dataset

    directory = tmp_path_factory.mktemp("maze")
    make_dataset(TASK, 600, directory=directory, seed=7, episode_rows=60, progress=False)
    return directory


def command(data: Path, out: Path, mode: str) -> list[object]:
    """A run in pointmaze; the tiny method's is in its own environment, which starts at once."""
    where = ("--task", TASK, "--data-dir", data)
    if mode == "tiny":
        where = ("--env", "fidec_tiny_env:Tiny-v0", "--data", f"npz:{data}")
    steps = ("--offline-steps", 0 if mode == "rlpd" else OFFLINE, "--online-steps", ONLINE)
    return [
        *("train", *where, "--out", out, *steps, "--seed", 3, "--algo", *MODES[mode]),
        *(() if mode == "tiny" else ("--algo.hidden", 16, 16)),
        *("--batch-size", 32, "--log-interval", 30, "--checkpoint-interval", SAVE),
        *("--eval-interval", 0),
    ]


def newest(run: Path) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)


def reach(process, run: Path, step: int) -> None:
    """Wait until the run has a checkpoint of that step or a later one."""
    end = time.monotonic() + 280
    while newest(run) < step:
        assert process.poll() is None, f"the run ended by itself: {process.communicate()[1]}"
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def killed(processes: Processes, argv: list[object], run: Path, total: int, kills: int, cache: Path, dice) -> None:
    """Kill it `kills` times, at random times of its online phase, and resume it to the end."""
    begin, codes = max(newest(run), total - ONLINE), []
    for number in range(kills):
        process = processes.start(*(argv if not (run / "config.json").exists() else resumed(run)), cache=cache)
        target = begin + int((number + dice.random()) * (total - SAVE - begin) / kills)
        reach(process, run, min(max(target, newest(run) + 1), total - SAVE))
        time.sleep(dice.uniform(0.0, 0.1))
        process.kill()
        codes.append(process.wait())
    assert set(codes) <= {-signal.SIGKILL, 0}  # the last kill may come after the end
    assert codes.count(-signal.SIGKILL) > kills // 2
    done = processes.run(*resumed(run), cache=cache, timeout=600)
    assert done.returncode == 0, done.stderr


def resumed(run: Path) -> list[object]:
    return ["train", "--resume", run]


@pytest.fixture(scope="module")
def alone(plugin_site, tmp_path_factory):
    """alone(data, mode): the directory of an uninterrupted run."""
    made: dict[str, Path] = {}

    def run(data: Path, mode: str) -> Path:
        if mode not in made:
            out = tmp_path_factory.mktemp(mode) / "run"
            done = Processes(plugin_site, out.parent).run(*command(data, out, mode), timeout=600)
            assert done.returncode == 0, done.stderr
            made[mode] = out
        return made[mode]

    return run


def total_of(mode: str) -> int:
    return ONLINE if mode == "rlpd" else OFFLINE + ONLINE


@pytest.mark.slow
def test_killed_once(processes, npz, alone, compile_cache, tmp_path):
    seed = time.time_ns() % 2**32
    print(f"seed of the kill time: {seed}")
    run, total = tmp_path / "run", total_of("tiny")
    killed(processes, command(npz, run, "tiny"), run, total, 1, compile_cache, random.Random(seed))
    assert online_fingerprint(run, total) == online_fingerprint(alone(npz, "tiny"), total)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "tiny"])
def test_killed_many_times(processes, maze, alone, compile_cache, tmp_path, mode):
    seed = time.time_ns() % 2**32
    print(f"seed of the kill times: {seed}")
    run, total = tmp_path / "run", total_of(mode)
    killed(processes, command(maze, run, mode), run, total, 15, compile_cache, random.Random(seed))
    assert online_fingerprint(run, total) == online_fingerprint(alone(maze, mode), total)


@pytest.mark.slow  # tests/train has it in one process
@pytest.mark.parametrize("mode", ["fql", "calql"])
def test_asked_to_stop_while_it_collects(processes, maze, alone, compile_cache, tmp_path, mode):
    run, total = tmp_path / "run", total_of(mode)
    process = processes.start(*command(maze, run, mode), cache=compile_cache)
    reach(process, run, OFFLINE if mode in EPISODE else OFFLINE + 40)
    time.sleep(random.uniform(0.0, 0.2))
    process.terminate()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 75, err
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["reason"], status["step"]) == ("preempted", "SIGTERM", newest(run))
    assert f"continue with: fidec train --resume {run}".lower() in err.lower()
    done = processes.run(*resumed(run), cache=compile_cache)
    assert done.returncode == 0, done.stderr
    assert online_fingerprint(run, total) == online_fingerprint(alone(maze, mode), total)


# --- in this process -------------------------------------------------------------------------


@pytest.fixture
def walk_data(tiny_env, tmp_path):
    """Data of the same shapes as the tiny method's environment."""
    np.savez(tmp_path / "walk.npz", **random_columns(80))
    return f"npz:{tmp_path / 'walk.npz'}"


def words(data: str, out: str, algo: str, *more: object) -> list[object]:
    where = ("--env", "fidec_tiny_env:Tiny-v0", "--data", data, "--out", out)
    size = ("--batch-size", 8, "--log-interval", 5, "--eval-interval", 0)
    return ["train", *where, "--algo", algo, *size, *more]


@pytest.mark.slow
def test_a_finished_offline_run_goes_on_online(cli, walk_data, compile_cache, tmp_path):
    code, _, err = cli(*words(walk_data, "run", "rebrac", "--steps", 6, "--algo.hidden", 8, 8))
    assert code == 0, err
    assert not (tmp_path / "run" / "replay").exists()
    code, out, err = cli("train", "--resume", "run", "--online-steps", 9, "--json")
    assert code == 0, err
    assert json.loads(out)["step"] == 15
    rows = read_rows(tmp_path / "run" / "train.jsonl")
    assert [row["step"] for row in rows] == [5, 6, 10, 15]
    assert ["online/steps" in row for row in rows] == [False, False, True, True]
    code, _, err = cli("train", "--resume", "run", "--online-steps", 4)
    assert code == 2
    assert "configured for 9 online steps; --online-steps 4 would be fewer" in err
    code, _, err = cli("train", "--resume", "run", "--steps", 8)
    assert code == 2
    assert "only --online-steps can be increased" in err


def test_rlpd_starts_in_the_environment(cli, walk_data, compile_cache, tmp_path):
    """Without an offline step, from random actions on."""
    online = ("--online-steps", 7, "--online.random-steps", 3)
    code, _, err = cli(*words(walk_data, "run", "rlpd", "--offline-steps", 0, "--algo.hidden", 8, 8, *online))
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["steps"], config["online_steps"], config["online"]["sampling"]) == (0, 7, "balanced")
    last = read_rows(tmp_path / "run" / "train.jsonl")[-1]
    assert (last["step"], last["online/steps"], last["online/offline_share"]) == (7, 7, 0.5)


WRONG = {
    "bc": (["--algo", "bc"], "bc is not trained online: it imitates"),
    "srpo": (["--algo", "srpo"], "srpo is not trained online"),
    "small": (["--online.capacity", 79], "online.capacity 79 is less than the 80 offline transitions"),
    "tiny": (["--online.capacity", 1], "capacity must be at least 2"),
    "share": (["--algo", "rlpd", "--online.fraction", 0.01], "cannot be shared"),
    "fraction": (["--online.fraction", 1.5], "online.fraction must lie strictly between 0 and 1"),
    "sampling": (["--online.sampling", "half"], "--online.sampling"),
    "collect": (["--algo", "calql", "--online.collect", "step"], "online.collect must be episode"),
    "envs": (["--online.collect", "episode", "--online.envs", 2], "needs one environment"),
    "flow": (["--algo", "rebrac", "--online.freeze-flow"], "no behaviour flow that can be frozen"),
    "negative": (["--online-steps", -1], "online_steps must be at least 0"),
    "no word": (["--online.updates", "often"], "--online.updates"),
    "zero": (["--offline-steps", 0, "--online-steps", 0], "steps must be at least 1"),
    "buffer": (["--buffer", "SAME"], "omit --buffer"),
}


def test_wrong_arguments_are_errors_with_words(cli, walk_data, tmp_path):
    for more, text in WRONG.values():
        more = [walk_data if word == "SAME" else word for word in more]
        start = [] if "--algo" in more else ["--algo", "fql"]
        steps = [] if "--offline-steps" in more else ["--offline-steps", 3]
        steps += [] if "--online-steps" in more else ["--online-steps", 5]
        argv = ("train", "--task", TASK, "--data", walk_data, "--out", "run", "--batch-size", 8)
        code, out, err = cli(*argv, *start, *steps, *more)
        assert code == 2, err
        assert text in err
        assert "Traceback" not in out + err
        assert not (tmp_path / "run").exists()


def test_without_a_task(cli, walk_data, tmp_path):
    code, _, err = cli("train", "--data", walk_data, "--algo", "fql", "--online-steps", 5, "--out", "run")
    assert code == 2
    assert "online training needs an environment: name a --task" in err
    assert not (tmp_path / "run").exists()
