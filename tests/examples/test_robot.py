"""The example of a robot with two cameras, from its log to a client that drives it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROBOT = Path(__file__).parents[2] / "examples" / "robot"
SOURCE = "lerobot:pick-data?cameras=front,wrist"
LEROBOT = os.environ.get("FIDEC_LEROBOT_PYTHON")  # a Python with lerobot; without it fidec converts the log

pytestmark = pytest.mark.slow


@pytest.mark.timeout(1200)
def test_a_log_becomes_a_policy_that_drives_the_robot(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROBOT), "MUJOCO_GL": "egl", "HF_HUB_OFFLINE": "1"}

    def run(*words: str, python: str = sys.executable) -> str:
        done = subprocess.run(
            [python, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def fidec(*words: str) -> str:
        return run("-m", "fidec", *words)

    assert "12 successes" in run(str(ROBOT / "record.py"), "demonstrations.npz", "--episodes", "12")
    if LEROBOT:
        run(str(ROBOT / "to_lerobot.py"), "demonstrations.npz", "pick-data", python=LEROBOT)
    else:
        fidec("data", "convert", "npz:demonstrations.npz", "--to", "lerobot", "--out", "pick-data")
    fidec("data", "check", SOURCE)
    fidec("data", "show", SOURCE, "--page", "data.html")
    assert "<svg" in (tmp_path / "data.html").read_text()

    network = ["--algo.hidden", "64", "64", "--batch-size", "16", "--frame-stack", "1"]
    evaluation = ["--eval-interval", "60", "--eval-episodes", "2", "--eval-envs", "1"]
    what = ["--data", SOURCE, "--env", "pick:Pick-v0", "--algo", "flow_bc", "--steps", "60"]
    fidec("train", *what, *network, *evaluation, "--out", "pick-run")
    assert "success" in fidec("eval", "pick-run", "--episodes", "2", "--envs", "1")
    fidec("export", "pick-run", "--to", "numpy", "--out", "pick-numpy")

    words = [sys.executable, "-u", "-m", "fidec", "serve", "pick-run", "--port", "0", "--batch", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, cwd=tmp_path, env=environ, **pipes) as server:
        try:
            assert server.stdout is not None
            said = ""
            for line in server.stdout:
                said += line
                if found := re.search(r"serving at (\S+)", line):
                    break
            else:
                raise AssertionError(said)
            assert "episode 0" in run(str(ROBOT / "drive.py"), "--url", found[1], "--episodes", "1")
        finally:
            server.terminate()
