"""Killed at random times and resumed, a run ends with the same bytes as one that was left alone.

The run that is left alone compiles everything itself; the others, to save minutes, take compiled programs from
JAX's persistent cache, which fidec leaves off. So the test also covers that both give the same numbers.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fidec.store.checkpoint import Checkpoints
from fidec.store.rundir import RunDirectory
from helpers.faults import contents, move_run
from helpers.runs import TASK, Processes, fingerprint

STEPS, EVALUATE, SAVE = 6000, 3000, 50
KILLS, TERMS = 20, 5


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    from fidec.make import make_dataset

    directory = tmp_path_factory.mktemp("maze")
    make_dataset(TASK, 600, directory=directory, seed=7, episode_rows=60, progress=False)
    return directory


def command(maze: Path, out: Path) -> list[object]:
    return [
        *("train", "--task", TASK, "--data-dir", maze, "--out", out, "--steps", STEPS, "--seed", 3),
        *("--algo.hidden", 16, 16, "--batch-size", 32, "--log-interval", 50, "--checkpoint-interval", SAVE),
        *("--eval-interval", EVALUATE, "--eval-episodes", 2, "--eval-envs", 1),
    ]


@pytest.fixture(scope="module")
def reference(maze, tmp_path_factory, plugin_site):
    """The run that is left alone."""
    out = tmp_path_factory.mktemp("reference") / "run"
    done = Processes(plugin_site, out.parent).run(*command(maze, out), timeout=600)
    assert done.returncode == 0, done.stderr
    return fingerprint(out, STEPS)


@dataclass
class Run:
    """A run directory that is looked at from outside while a process works in it."""

    path: Path
    process: subprocess.Popen = field(init=False)
    hit_in_evaluation: bool = False

    def newest(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        names = [p.name for p in (self.path / "checkpoints").glob("[0-9]*")]
        return max((int(name) for name in names), default=0)

    def compilations(self) -> int:
        """How many processes got as far as their first step."""
        path = self.path / "time.jsonl"
        return path.read_text().count("time/compile") if path.exists() else 0

    def evaluating(self) -> bool:
        """Whether the first evaluation is under way."""
        train, evaluations = self.path / "train.jsonl", self.path / "eval.jsonl"
        return train.exists() and f'{{"step": {EVALUATE},' in train.read_text() and not evaluations.read_text()

    def saving(self) -> bool:
        return any((self.path / "checkpoints").glob(".tmp-*"))

    def wait(self, condition, seconds: float = 280.0, pause: float = 0.002) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the run ended by itself: {self.process.communicate()[1]}"
            assert time.monotonic() < end, "waited in vain"
            if pause:
                time.sleep(pause)

    def resume_points(self) -> list[int]:
        """The steps at which processes went on, from the run's own log."""
        log = self.path / "run.log"
        return [int(n) for n in re.findall(r"resumed .* at step (\d+)", log.read_text())] if log.exists() else []


def leftovers(run: Path) -> list[str]:
    """What a save that was cut short leaves behind."""
    return sorted({path.name for pattern in ("checkpoints/.*", ".*") for path in run.glob(pattern)})


def interrupt(processes: Processes, run: Run, maze: Path, cache: Path, number: int, count: int, dice) -> None:
    """Start or resume the run and wait for a random moment in the `number`th of `count` parts of it."""
    before, compiled = run.newest(), run.compilations()
    argv = ["train", "--resume", run.path] if (run.path / "config.json").exists() else command(maze, run.path)
    run.process = processes.start(*argv, cache=cache)
    run.wait(lambda: run.compilations() > compiled)  # kills are timed from the first step on
    if number:  # the first may come before there is any checkpoint
        target = int((number + dice.random()) * (STEPS - 2 * SAVE) / count)
        if before < EVALUATE < target + SAVE and not run.hit_in_evaluation:  # once in each run
            run.wait(run.evaluating)
            run.hit_in_evaluation = True
            time.sleep(dice.uniform(0.0, 1.0))
            return
        run.wait(lambda: run.newest() >= max(target, before + SAVE))
    if number and number % 3 == 0:
        run.wait(run.saving, pause=0)
        time.sleep(dice.uniform(0.0, 0.002))
    else:
        time.sleep(dice.uniform(0.0, 0.2))


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sigkill_at_random_times(processes, maze, reference, compile_cache, tmp_path):
    seed = time.time_ns() % 2**32
    print(f"seed of the kill times: {seed}")
    dice = random.Random(seed)
    run, cut, begin = Run(tmp_path / "run"), [], time.monotonic()

    for number in range(KILLS):
        interrupt(processes, run, maze, compile_cache, number, KILLS, dice)
        run.process.kill()
        assert run.process.wait() == -signal.SIGKILL
        cut.append(leftovers(run.path))
        where = "in the evaluation, " if run.evaluating() else ""
        print(f"kill {number + 1}: {where}newest checkpoint {run.newest()}, left behind {cut[-1]}", flush=True)

    done = processes.run("train", "--resume", run.path, cache=compile_cache, timeout=600)
    assert done.returncode == 0, done.stderr
    points = run.resume_points()
    inside = sum(bool(names) for names in cut)
    facts = {
        "kills": len(cut),
        "resume_points": points,
        "distinct": len(set(points)),
        "kills_inside_a_save": inside,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(facts))
    assert fingerprint(run.path, STEPS) == reference
    assert sum(point > 0 for point in points) >= 0.8 * KILLS
    assert len(set(points)) >= 0.8 * KILLS
    assert inside >= 1


def test_another_run_at_the_path_of_a_run_keeps_every_byte(processes, npz, tmp_path):
    other, run = tmp_path / "other", Run(tmp_path / "run")
    with RunDirectory.create(other) as made:
        made.write_status("done", 100)
        Checkpoints(made.checkpoints).save(100, {"weight": np.zeros(3)})
    often = ("--batch-size", 16, "--log-interval", 50, "--checkpoint-interval", 50)
    argv = ("train", "--data", f"npz:{npz}", "--algo", "tiny", *often, "--steps", 10**6, "--out", run.path)
    run.process = processes.start(*argv)
    run.wait(lambda: run.newest() >= 100)
    moved = move_run("renamed", run.path, other)
    _, err = run.process.communicate(timeout=120)
    assert run.process.returncode == 1, err
    assert f"no longer at {run.path}" in err
    assert f"--resume {moved}" in err
    assert contents(run.path) == contents(other)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_sigterm_at_random_times(processes, maze, reference, compile_cache, tmp_path):
    dice = random.Random(time.time_ns())
    run = Run(tmp_path / "run")
    for number in range(TERMS):
        interrupt(processes, run, maze, compile_cache, number, TERMS, dice)
        asked = time.monotonic()
        run.process.terminate()
        _, err = run.process.communicate(timeout=60)
        seconds = time.monotonic() - asked
        assert run.process.returncode == 75, err
        assert seconds < 10
        status = json.loads((run.path / "status.json").read_text())
        assert (status["state"], status["reason"]) == ("preempted", "SIGTERM")
        assert status["step"] == run.newest()
        print(f"SIGTERM {number + 1}: saved at {run.newest()} in {seconds:.2f} s", flush=True)
    done = processes.run("train", "--resume", run.path, timeout=600)  # this one compiles for itself
    assert done.returncode == 0, done.stderr
    assert len(set(run.resume_points())) == TERMS
    assert fingerprint(run.path, STEPS) == reference
