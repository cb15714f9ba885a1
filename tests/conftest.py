"""What the end-to-end and resume tests share: small data, a tiny plug-in method, and runs in processes."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

PLUGIN = Path(__file__).parent / "e2e" / "plugin"
# Any task will do where the test puts its own environment in place of the task's.
TASK = "pointmaze-medium-navigate-singletask-task1-v0"
# Compilation is most of the suite's time. Without LLVM's optimisation and with XLA's older emitters it takes a sixth
# of the time, and the compiled code is a few times slower.
QUICK = ["--xla_backend_optimization_level=0"]
if version("jaxlib").startswith("0.10."):  # XLA stops at a flag that it does not know, so not in versions untried
    QUICK.append("--xla_cpu_use_fusion_emitters=false")


def pytest_configure(config):
    """The normal tier compiles quickly, the slow one as users do; XLA_FLAGS from outside, even empty, is kept."""
    if config.getoption("markexpr") == "not slow":
        os.environ.setdefault("XLA_FLAGS", " ".join(QUICK))


def random_columns(rows: int = 200, seed: int = 0, episode: int = 20) -> dict[str, np.ndarray]:
    """Columns of a random data set with observations of 3 and actions of 2 dimensions."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": np.arange(rows) % episode == episode - 1,
    }


def fingerprint(run: Path, step: int) -> dict[str, str]:
    """SHA-256 of all that a resumed run has to repeat: the state of `step`, the logs, the policy."""
    paths = [run / "checkpoints" / f"{step:08d}" / "state.safetensors"]
    paths += [run / f"{name}.jsonl" for name in ("train", "eval", "episodes")]
    paths += sorted((run / "policy").iterdir())
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def stored_rows(run: Path):
    """The transitions that the newest checkpoint of an online run refers to."""
    from fidec.train.replay_store import ReplayStore

    newest = sorted((run / "checkpoints").iterdir())[-1]
    index = json.loads((newest / "manifest.json").read_text())["extra"]["extra"]["online"]["segments"]
    rows = ReplayStore(run / "replay").restore(index)
    assert rows is not None
    return rows


def online_fingerprint(run: Path, step: int) -> dict[str, str]:
    """`fingerprint`, of a run that went on online: also every collected row, and the log of its episodes."""
    *columns, batch = (
        stored_rows(run)._asdict()[name] for name in ("episodes", "steps", "lanes", "terminals", "batch")
    )
    digest = hashlib.sha256()
    for column in (*columns, *batch):
        digest.update(b"none" if column is None else np.ascontiguousarray(column).tobytes())
    explored = run / "exploration.jsonl"
    log = hashlib.sha256(explored.read_bytes()).hexdigest() if explored.exists() else ""  # no episode has ended yet
    return {**fingerprint(run, step), "replay": digest.hexdigest(), "exploration": log}


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory):
    """JAX's persistent compilation cache, so that a test suite compiles each program once. fidec leaves it off."""
    import jax

    directory = tmp_path_factory.mktemp("jax-cache")
    settings = {
        "jax_compilation_cache_dir": str(directory),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield directory
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def plugin_site(tmp_path_factory):
    """A directory as pip would leave it after installing the package of the tiny method."""
    site = tmp_path_factory.mktemp("site")
    for path in PLUGIN.glob("*.py"):
        (site / path.name).write_text(path.read_text())
    info = site / "fidec_tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fidec-tiny\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fidec.algos]\ntiny = fidec_tiny:METHOD\n")
    return site


@pytest.fixture
def tiny(plugin_site, monkeypatch):
    """Install the tiny method in this process; returns its module."""
    from fidec.algos import base

    monkeypatch.syspath_prepend(str(plugin_site))
    base._plugins.cache_clear()
    yield importlib.import_module("fidec_tiny")
    for name in ("fidec_tiny", "fidec_tiny_env"):
        sys.modules.pop(name, None)
    base._plugins.cache_clear()


@pytest.fixture
def tiny_env(tiny, monkeypatch):
    """Every task is the tiny method's environment, which takes a millisecond an episode."""
    monkeypatch.setattr("fidec.train.evaluate.make", importlib.import_module("fidec_tiny_env").make_env)
    return TASK


@pytest.fixture
def stop_at(monkeypatch):
    """stop_at(step): a signal reaches this process once, when the run first gets to that step."""
    from fidec.train.session import Session

    def arrange(step: int, number: int = signal.SIGTERM) -> None:
        def show(self, reached):
            if reached >= step:
                monkeypatch.setattr(Session, "_show", lambda self, reached: None)
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Session, "_show", show)

    return arrange


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """A small npz data set without an environment."""
    path = tmp_path_factory.mktemp("npz") / "small.npz"
    np.savez(path, **random_columns())
    return path


class Processes:
    """`python -m fidec` in processes of their own; all that are left are ended with the fixture."""

    def __init__(self, site: Path, directory: Path):
        self.site, self.directory = site, directory
        self.started: list[subprocess.Popen] = []

    def start(self, *argv: object, cache: Path | None = None) -> subprocess.Popen:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        environ["PYTHONPATH"] = str(self.site)
        environ["FIDEC_DATA_DIR"] = str(self.directory / "cache")
        if cache is not None:
            environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
            environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        process = subprocess.Popen(
            [sys.executable, "-m", "fidec", *map(str, argv)],
            env=environ,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *argv: object, cache: Path | None = None, timeout: float = 250) -> subprocess.CompletedProcess:
        process = self.start(*argv, cache=cache)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def processes(plugin_site, tmp_path):
    made = Processes(plugin_site, tmp_path)
    yield made
    made.end()


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Run a command in this process: cli("train", ...) -> (exit code, stdout, stderr)."""
    from fidec.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "cache"))

    def call(*argv: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(word) for word in argv])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def read_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
