"""What the end-to-end and resume tests share: small data, a tiny plug-in method, and runs in processes."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jaxtyping import install_import_hook

# Before fidec is imported: the annotated arrays of the mathematics, the networks and the constraints are checked.
install_import_hook(("fidec.ops", "fidec.nn", "fidec.algos.constraints"), "beartype.beartype")

from helpers.runs import Processes, random_columns  # noqa: E402

PLUGIN = Path(__file__).parent / "helpers" / "plugin"
# Compilation is most of the suite's time. Without LLVM's optimisation and with XLA's older emitters it takes a sixth
# of the time, and the compiled code is a few times slower. A program that is not split into parts for several threads
# takes a fifth less, and the other cores have tests of their own.
QUICK = ["--xla_backend_optimization_level=0"]
if version("jaxlib").startswith("0.10."):  # XLA stops at a flag that it does not know, so not in versions untried
    QUICK += ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
# Under pytest-xdist, which hands out files in their order: those that take long come first, so that no worker is left
# with one of them at the end.
LONG = ("train", "algos", "cli", "ops", "envs", "examples", "geometry", "data")


def pytest_configure(config):
    """The normal tier compiles quickly, the slow one as users do; XLA_FLAGS from outside, even empty, is kept.

    Tests leave the user's cache of compiled programs alone. They share one with the fixture `compile_cache`.
    """
    os.environ["FIDEC_COMPILE_CACHE"] = "off"
    if "not slow" in config.getoption("markexpr"):
        os.environ.setdefault("XLA_FLAGS", " ".join(QUICK))
    gc.set_threshold(50_000)  # tracing makes many small objects that live on: with the usual 700, 5 % of the time


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        place = {name: number for number, name in enumerate(LONG)}
        items.sort(key=lambda item: place.get(item.path.relative_to(Path(__file__).parent).parts[0], len(LONG)))


def resident_gigabytes() -> float:
    """The memory of this process; without Linux' record of it, as much as needs freeing."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9 if statm.exists() else float("inf")


@pytest.fixture(autouse=True, scope="module")
def _free_memory():
    """Drop compiled programs and return their memory if there is much of it; else a worker grows to 6 GB."""
    yield
    if "jax" in sys.modules and resident_gigabytes() > 3:
        sys.modules["jax"].clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def compile_cache(tmp_path_factory):
    """JAX's persistent compilation cache, so that a test suite compiles each program once."""
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

    monkeypatch.syspath_prepend(str(plugin_site))
    yield importlib.import_module("fidec_tiny")
    for name in ("fidec_tiny", "fidec_tiny_env"):
        sys.modules.pop(name, None)


@pytest.fixture
def tiny_env(tiny):
    """The id of an environment for the tiny method, which takes a millisecond an episode."""
    return "fidec_tiny_env:Tiny-v0"


@pytest.fixture
def stop_at(monkeypatch):
    """stop_at(step): a signal reaches this process once, when the run first gets to that step."""
    from fidec.train.session import Session

    def arrange(step: int, number: int = signal.SIGTERM) -> None:
        def show(self, reached):
            if reached >= step:
                monkeypatch.setattr(Session, "show", lambda self, reached: None)
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Session, "show", show)

    return arrange


@pytest.fixture(scope="session")
def npz(tmp_path_factory):
    """A small npz data set without an environment."""
    path = tmp_path_factory.mktemp("npz") / "small.npz"
    np.savez(path, **random_columns())
    return path


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
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def here(monkeypatch):
    """Run the jobs of a sweep in this process: their arguments are noted, and `fail` makes the next one fail."""
    from fidec.bench import schedule
    from fidec.cli import main
    from fidec.executors.kinds import local

    notes = SimpleNamespace(started=[], fail=False)

    def launch(*words, **_):
        notes.started.append(words[2:])
        code = 1 if notes.fail else main([*words[2:]])
        notes.fail = False
        return SimpleNamespace(poll=lambda: code, returncode=code)

    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.setattr(schedule, "PAUSE", 0.0)
    return notes
