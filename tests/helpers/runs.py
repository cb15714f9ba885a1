"""Small data, runs in processes, and digests of run directories, shared by many tests."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fidec.store.logs import read_jsonl

# Any task will do where the test puts its own environment in place of the task's.
TASK = "pointmaze-medium-navigate-singletask-task1-v0"


def random_columns(rows: int = 200, seed: int = 0, episode: int = 20) -> dict[str, Any]:
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
    from fidec.store.replay import ReplayStore

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


class Processes:
    """`python -m fidec` in processes of their own; all that are left are ended with the fixture."""

    def __init__(self, site: Path, directory: Path):
        self.site, self.directory = site, directory
        self.started: list[subprocess.Popen] = []

    def start(self, *argv: object, cache: Path | None = None) -> subprocess.Popen:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        paths = [str(self.site), os.environ.get("PYTHONPATH")]  # the sources under test, if they are not installed
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
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
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def read_rows(path: Path) -> list[dict]:
    """The rows of a log that exists, after a check of their checksums."""
    assert path.exists()
    return read_jsonl(path)


def check_error(result: tuple[int, str, str], code: int, *words: str) -> None:
    """A command failed with this code: a message with these words on stderr, nothing on stdout, no traceback."""
    assert result[0] == code, result
    assert result[1] == ""
    assert "Traceback" not in result[2]
    for word in words:
        assert word in result[2], result[2]
