"""The directory of a run: what lies where, who may write there, and what may be deleted.

run.json          the marker: only a directory that has it is ever resumed or overwritten
lock              held while a process works here; says which (`fidec.store.lock`)
config.json       the resolved configuration      environment.json  versions, devices, data hash
status.json       running | done | failed | preempted, the step and the reason
train.jsonl  eval.jsonl  episodes.jsonl  exploration.jsonl   what happened, free of wall-clock values
time.jsonl        wall-clock                       run.log           messages
tb/  checkpoints/  policy/
replay/           transitions of the online phase, which the checkpoints refer to
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from fidec.errors import RunError
from fidec.store import files, lock
from fidec.store import logs as loggers

MARKER = "run.json"
LOCK = "lock"
MARKER_CONTENT = {"format": "fidec-run", "version": 1}
STATES = ("running", "done", "failed", "preempted")
# What a run makes, and all that overwriting removes: a user's own files in the directory stay.
CONTENTS = (
    "config.json",
    "environment.json",
    "status.json",
    "train.jsonl",
    "eval.jsonl",
    "episodes.jsonl",
    "exploration.jsonl",
    "time.jsonl",
    "run.log",
    "tb",
    "checkpoints",
    "replay",
    "policy",
    "audit",
)


class RunDirectory:
    """A run on the disk. Make one with `create` or `open`; close it to let another process in."""

    def __init__(self, path: Path, held: FileLock | None):
        self.path = path
        self._held = held

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> RunDirectory:
        """Start a run in a new or empty directory, or, with `overwrite`, in that of an earlier run.

        The lock is taken before anything is deleted, and the lock file itself stays, so of several processes
        that start at once exactly one goes on.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a run needs a directory. Choose another --out.")
        with files.writing(path, "the run directory"):
            path.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(path)
        held = lock.acquire(path / LOCK)
        try:
            _refuse_foreign(path)
            if (path / MARKER).exists():
                if not overwrite:
                    raise RunError(
                        f"{path} holds a run already. Go on with it by --resume {path}, "
                        "replace it by --overwrite, or choose another --out."
                    )
                with files.writing(path, "the run directory"):
                    _empty(path)
            files.write_json(path / MARKER, MARKER_CONTENT)
        except BaseException:
            held.release()
            raise
        return cls(path, held)

    @classmethod
    def open(cls, path: str | Path, read_only: bool = False) -> RunDirectory:
        """Open an existing run: with the lock to go on with it, or `read_only`, even while it is running."""
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"there is no run at {path}: no such directory")
        if not _has_marker(path):
            raise RunError(f"{path} is not a fidec run: it has no {MARKER} of fidec's")
        if read_only:
            return cls(path, None)
        held = lock.acquire(path / LOCK)
        for leftover in _leftovers(path):
            with contextlib.suppress(OSError):
                files.remove(leftover)
        return cls(path, held)

    def close(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def read_only(self) -> bool:
        return self._held is None

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def run_log(self) -> Path:
        return self.path / "run.log"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        return self.path / "replay"

    @property
    def policy(self) -> Path:
        return self.path / "policy"

    def write_config(self, config: dict[str, Any]) -> None:
        files.write_json(self.config, config)

    def read_config(self) -> dict[str, Any]:
        return files.read_json(self.config)

    def write_environment(self, environment: dict[str, Any]) -> None:
        files.write_json(self.environment, environment)

    def read_environment(self) -> dict[str, Any]:
        return files.read_json(self.environment)

    def write_status(self, state: str, step: int, reason: str | None = None) -> None:
        if state not in STATES:
            raise ValueError(f"unknown state {state!r}; a run is {', '.join(STATES)}")
        files.write_json(self.status, {"state": state, "step": step, "reason": reason, "time": time.time()})

    def read_status(self) -> dict[str, Any] | None:
        """The last status, or None before the first. A killed run still says "running"."""
        return files.read_json(self.status) if self.status.exists() else None

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """Events of the log "train", "eval", "episodes", "exploration" or "time"; a torn last line is left out."""
        return loggers.read_jsonl(self.path / f"{name}.jsonl")


def _has_marker(path: Path) -> bool:
    """Whether `run.json` is ours: another tool's file of that name must not make a directory deletable."""
    content = files.find_json(path / MARKER)
    return content is not None and content.get("format") == MARKER_CONTENT["format"]


def _refuse_foreign(path: Path) -> None:
    """Without the marker a directory must be empty, but for what a start that was killed leaves behind."""
    if _has_marker(path):
        return
    with files.writing(path, "the run directory"):
        names = sorted(entry.name for entry in path.iterdir())
    others = [name for name in names if name != LOCK and not name.startswith(f".{MARKER}.")]
    if others:
        raise RunError(
            f"{path} is not empty ({others[0]!r}{' and more' if len(others) > 1 else ''}) and is not a fidec "
            f"run: it has no {MARKER} of fidec's, so neither --resume nor --overwrite may touch it. "
            "Choose another --out."
        )


def _empty(path: Path) -> None:
    """Remove what the earlier run made; the marker and the lock stay, so a crash half-way can be repeated."""
    for entry in [*(path / name for name in CONTENTS), *_leftovers(path)]:
        files.remove(entry)


def _leftovers(path: Path) -> list[Path]:
    """What an atomic write or a replaced policy leaves behind when it is killed."""
    return [*path.glob(".*.tmp"), path / ".policy.old"]
