"""Ray: a real cluster on this machine, whose workers and nodes are killed. Runs end with the bytes of local ones."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidec.bench import schedule
from fidec.executors import EXECUTORS, Request
from fidec.make import make_dataset
from fidec.train.loop import Signals
from helpers.jobs import FAKE, Notes, seeds_of, wait_for
from helpers.runs import fingerprint

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 6000
MAZE = "pointmaze-medium-navigate-v0"
SUITE = """
methods = ["bc"]
seeds = [0, 1, 2, 3]

[[tasks]]
name = "robot"
env = "fidec_tiny_env:Tiny-v0"
data = "npz:NPZ"

[scale]
steps = STEPS
eval_interval = 3_000
eval_episodes = 2
batch_size = 16
checkpoint_interval = 100
log_interval = 50
options = { hidden = [8] }
"""


def attempts(directory: Path) -> list[tuple[int, int]]:
    """The processes that attempt a job with this working directory, each with the worker that started it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, place = (process / "cmdline").read_bytes(), os.readlink(process / "cwd")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"fidec.executors.attempt" in words and place == str(directory):
            found.append((int(process.name), parent))
    return found


# --- fake jobs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("ray"))
        before = set(Path.home().glob(".ray"))
        with EXECUTORS.get("ray").open(Request(workers=2)) as opened:
            yield opened
        assert set(Path.home().glob(".ray")) == before  # no token is left in the home directory


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "PROGRAM", ("-c", FAKE))

    def make(count: int, group: str, **wanted):
        jobs = seeds_of(tmp_path, count, group, **wanted)
        for job in jobs:
            job.progress = lambda: SimpleNamespace(step=0)
        return jobs

    return make


def test_jobs_end_and_fail_as_on_this_machine(pool, fakes):
    jobs, notes = [*fakes(3, "a"), *fakes(1, "b", code=3), *fakes(1, "c", refuses=True)], Notes()
    states = schedule.run_jobs(jobs, 2, notes, Signals(), pool)
    assert [states[job] for job in jobs] == ["done", "done", "done", "failed", "failed"]
    assert "FAILED with exit code 3" in "".join(notes.details)
    assert "refused: " in "".join(notes.details)


def test_a_killed_worker_is_replaced_and_the_job_continues(pool, fakes):
    jobs, notes = fakes(2, "a", seconds=5.0), Notes()
    killed = []

    def kill_once(running):
        if not killed and running and all(job.starts() for job in jobs):
            killed.append(attempts(Path.cwd())[0][1])
            os.kill(killed[0], signal.SIGKILL)

    notes.on_show = kill_once
    assert schedule.run_jobs(jobs, 1, notes, Signals(), pool) == dict.fromkeys(jobs, "done")
    assert killed
    assert [job.file("saved").exists() for job in jobs] == [True, True]  # it was asked to stop
    assert jobs[0].starts()[1][1][0] == "--resume"


def test_a_signal_stops_the_jobs_which_save(pool, fakes):
    jobs, signals = fakes(2, "a", seconds=60.0), Signals()

    def on_show(running):
        if len(running) == 2 and all(job.starts() for job in jobs):
            signals(signal.SIGTERM, None)

    assert schedule.run_jobs(jobs, 2, Notes(on_show), signals, pool) == dict.fromkeys(jobs, "stopped")
    assert [job.file("saved").exists() for job in jobs] == [True, True]
    assert not attempts(Path.cwd())


def test_data_has_the_same_bytes_although_a_worker_is_killed(pool, tmp_path):
    def made(name: str, **how: Any) -> dict[str, str]:
        return make_dataset(MAZE, 1800, directory=tmp_path / name, episode_rows=60, **how).sha256

    assert made("ray", open_pool=lambda: _killing(pool, tmp_path / "ray")) == made("local")


@contextlib.contextmanager
def _killing(pool, directory: Path):
    """The pool, one of whose workers is killed after the first episode."""

    def kill():
        wait_for(lambda: any(directory.glob("*.partial/*.npz")), 120)
        os.kill(attempts(Path.cwd())[0][1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    yield pool
    killer.join()


# --- a suite on two nodes -------------------------------------------------------------------------------------------


class Nodes:
    """Nodes of a cluster, each a process group of its own. `ray stop` would end every Ray process of this machine."""

    def __init__(self, directory: Path):
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        self.environ = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_AUTH_MODE": "token",
        }
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"{ray.util.get_node_ip_address()}:{self.port}"
        self.place = tempfile.mkdtemp(prefix="f")  # not below pytest's: the names of Ray's sockets have to be short
        self.started: list[subprocess.Popen] = []

    def start(self, *words: str) -> subprocess.Popen:
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1", *words]
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        node = subprocess.Popen(argv, env=self.environ, start_new_session=True, **output)
        self.started.append(node)
        said = []
        for line in node.stdout or ():
            said.append(line)
            if "Ray runtime started" in line:
                return node  # it stays
        raise AssertionError("".join(said))

    def kill(self, node: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
        if node.stdout is not None:
            node.stdout.close()


@pytest.fixture
def nodes(tmp_path):
    nodes = Nodes(tmp_path)
    yield nodes
    for node in reversed(nodes.started):
        nodes.kill(node)
    shutil.rmtree(nodes.place, ignore_errors=True)


def test_a_suite_survives_a_killed_worker_and_a_killed_node_with_the_same_bytes(npz, tmp_path, plugin_site, nodes):
    (tmp_path / "own.toml").write_text(SUITE.replace("NPZ", str(npz)).replace("STEPS", str(STEPS)))
    paths = [str(plugin_site), os.environ.get("PYTHONPATH")]
    environ = {**nodes.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "FIDEC_COMPILE_CACHE": "off"}
    nodes.environ["PYTHONPATH"] = environ["PYTHONPATH"]

    def suite(out: str, *words: str) -> subprocess.Popen:
        argv = ("suite", "run", "own.toml", "--out", out, "--workers", "2", *words)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-m", "fidec", *argv], cwd=tmp_path, env=environ, text=True, **pipes)

    def both_packs_have_begun() -> bool:
        """Seeds 0 and 1 are one pack, 2 and 3 the other."""
        return all(any(tmp_path.glob(f"ray/*/*/{name}/checkpoints/0*")) for name in ("seed000", "seed002"))

    alone = suite("local")
    table, said = alone.communicate(timeout=600)
    assert alone.returncode == 0, said

    nodes.start("--head", f"--port={nodes.port}", "--include-dashboard=false", f"--temp-dir={nodes.place}")
    second = nodes.start(f"--address={nodes.address}")
    process = suite("ray", "--on", "ray", "--address", nodes.address)
    try:
        wait_for(lambda: both_packs_have_begun() or process.poll() is not None, 300)
        workers = [worker for _, worker in attempts(tmp_path)]
        assert len(workers) == 2  # one on each node
        os.kill(workers[0], signal.SIGKILL)
        nodes.kill(second)
        out, said = process.communicate(timeout=600)
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.communicate()
    assert out == table
    assert said.count("were stopped and are continued") >= 1
    runs = sorted(path.relative_to(tmp_path / "local") for path in tmp_path.glob("local/*/*/seed00?"))
    assert len(runs) == 4
    for run in runs:
        assert fingerprint(tmp_path / "ray" / run, STEPS) == fingerprint(tmp_path / "local" / run, STEPS)
