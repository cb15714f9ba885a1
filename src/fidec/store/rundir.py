"""The directory of a run: its files, its lock, and what may be deleted.

run.json          the marker: only a directory that has it is resumed or overwritten
lock              held while a process works here; says which (`fidec.store.lock`)
config.json       the resolved configuration      environment.json  versions, devices, data hash
status.json       running | done | failed | preempted, the step and the reason
train.jsonl  eval.jsonl  episodes.jsonl  exploration.jsonl   the logs, without wall-clock values
time.jsonl        wall-clock                       run.log           messages
tb/  checkpoints/  policy/
replay/           transitions of the online phase; the checkpoints refer to them
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
# The files of a run. Overwriting removes these and keeps a user's own files.
CONTENTS = (
    *("config.json", "environment.json", "status.json", "run.log"),
    *("train.jsonl", "eval.jsonl", "episodes.jsonl", "exploration.jsonl", "time.jsonl"),
    *("tb", "checkpoints", "replay", "policy", "audit"),
)
# Of these, what a run without a step does not have, or has empty.
RESULTS = (*(f"{name}.jsonl" for name in loggers.REPLAYED), "checkpoints", "replay", "policy", "audit")


class RunDirectory:
    """A run on the disk. Make one with `create` or `open`. `close` releases its lock."""

    def __init__(self, path: Path, held: FileLock | None):
        self.path = path
        self._held = held
        self.config, self.environment = path / "config.json", path / "environment.json"
        self.status, self.run_log = path / "status.json", path / "run.log"
        self.checkpoints, self.replay, self.policy = path / "checkpoints", path / "replay", path / "policy"

    @classmethod
    def create(cls, path: str | Path, overwrite: bool = False) -> RunDirectory:
        """Start a run in a new or empty directory, or, with `overwrite`, in that of an earlier run.

        A run that failed before its first step, for example because of a wrong environment, is replaced without it.
        The lock is taken before anything is deleted, and the lock file stays. So if several processes start at the
        same time, exactly one of them continues.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a run needs a directory. Choose another --out.")
        with files.writing(path, "the run directory"):
            path.mkdir(parents=True, exist_ok=True)
        _check_ours(path)
        held = lock.acquire(path / LOCK)
        try:
            _check_ours(path)
            if (path / MARKER).exists():
                if not (overwrite or _failed_at_start(path)):
                    raise RunError(
                        f"{path} holds a run already. Continue it with --resume {path}, "
                        "replace it with --overwrite, or choose another --out."
                    )
                with files.writing(path, "the run directory"):
                    _remove_contents(path)
            files.write_json(path / MARKER, MARKER_CONTENT)
        except BaseException:
            held.release()
            raise
        return cls(path, held)

    @classmethod
    def open(cls, path: str | Path, read_only: bool = False) -> RunDirectory:
        """Open an existing run with its lock, or `read_only` without it, even while the run is going on."""
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"there is no run at {path}: no such directory")
        if not _has_marker(path):
            raise RunError(f"{path} is not a fidec run: it has no {MARKER} written by fidec")
        if read_only:
            return cls(path, None)
        held = lock.acquire(path / LOCK)
        with contextlib.suppress(OSError):
            files.restore_directory(path / "policy")
            for leftover in _leftovers(path):
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
    def used_environment(self) -> bool:
        """Whether the run was evaluated, or has collected transitions."""
        return any(_holds_something(self.path / name) for name in ("eval.jsonl", "replay"))

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the configuration with its own hash, so that a flipped bit does not give another valid one."""
        files.write_json(self.config, {**config, "sha256": files.sha256_json(config)})

    def read_config(self) -> dict[str, Any]:
        """The configuration; `RunError` if it is not as it was written. Runs of older versions have no hash."""
        config = files.read_json(self.config)
        recorded = config.pop("sha256", None)
        if recorded is not None and recorded != files.sha256_json(config):
            raise RunError(
                f"{self.config} was changed or damaged after the run wrote it: its SHA-256 is not the recorded one. "
                "Restore the file from a copy. For a run with other options start a new one."
            )
        return config

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
    """Whether fidec wrote `run.json`. Another tool may have a file of that name."""
    content = files.find_json(path / MARKER)
    return content is not None and content.get("format") == MARKER_CONTENT["format"]


def _check_ours(path: Path) -> None:
    """Raise unless the directory has the marker, or is empty except for what a killed start leaves behind."""
    if _has_marker(path):
        return
    with files.writing(path, "the run directory"):
        names = sorted(entry.name for entry in path.iterdir())
    others = [name for name in names if name != LOCK and not name.startswith(f".{MARKER}.")]
    if others:
        raise RunError(
            f"{path} is not empty ({others[0]!r}{' and more' if len(others) > 1 else ''}) and is not a fidec "
            f"run: it has no {MARKER} written by fidec, so neither --resume nor --overwrite may change it. "
            "Choose another --out."
        )


def _failed_at_start(path: Path) -> bool:
    """Whether the run failed before its first step and has left no result."""
    status = files.find_json(path / "status.json") or {}
    failed = status.get("state") == "failed" and status.get("step") == 0
    results = [*(path / name for name in RESULTS), *path.glob(".old-*")]  # a policy may wait under another name
    return failed and not any(map(_holds_something, results))


def _holds_something(path: Path) -> bool:
    """Whether there is a link, or a directory or file that is not empty."""
    if path.is_symlink():  # its target may be absent only now
        return True
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _remove_contents(path: Path) -> None:
    """Remove the files of the earlier run. The marker and the lock stay, so that a crash does no harm."""
    for entry in [*(path / name for name in CONTENTS), *_leftovers(path)]:
        files.remove(entry)


def _leftovers(path: Path) -> list[Path]:
    """Files that a killed atomic write, or a killed replacement of the policy, leaves behind."""
    return [*path.glob(".*.tmp"), *path.glob(".tmp-*"), *path.glob(".old-*")]
