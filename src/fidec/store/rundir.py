"""The directory of a run: its files, its lock, and what may be deleted.

run.json          the marker: only a directory that has it is resumed or overwritten
lock              held while a process works here; says which (`fidec.store.lock`)
lease/            the same on a file system that other machines share (`fidec.store.lease`)
config.json       the resolved configuration      environment.json  versions, devices, data hash
status.json       running | done | failed | preempted, the step and the reason
train.jsonl  eval.jsonl  episodes.jsonl  exploration.jsonl   the logs, without wall-clock values
time.jsonl        wall-clock                       run.log           messages
tb/  checkpoints/  policy/
replay/           transitions of the online phase; the checkpoints refer to them
init/             the state that a run started from, if that is of another run
flow/             the behaviour flow, if it was trained first: a run, or a copy of another run's policy
audit/  comparison.json  export/  report.html   what other commands add
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from fidec.errors import RunError
from fidec.store import files, lease, lock
from fidec.store.directories import restore_directory
from fidec.store.logs import REPLAYED, read_jsonl

if TYPE_CHECKING:
    from fidec.store.remote_run import Mirror

MARKER = "run.json"
LOCK, LEASE = "lock", lease.DIRECTORY
# What commands add to a run: `fidec audit`, `eval --base`, `export`, `report`.
AUDIT, COMPARISON, EXPORT, REPORT = "audit", "comparison.json", "export", "report.html"
FORMAT = 2  # of run directories and policies
MARKER_CONTENT = {"format": "fidec-run", "version": FORMAT}
STATES = ("running", "done", "failed", "preempted")
# The files of a run. Overwriting removes these and keeps a user's own files.
CONTENTS = (
    *("config.json", "environment.json", "status.json", "run.log", "track.json"),
    *("train.jsonl", "eval.jsonl", "episodes.jsonl", "exploration.jsonl", "time.jsonl"),
    *("tb", "checkpoints", "replay", "policy", "init", "flow"),
    *(AUDIT, COMPARISON, EXPORT, REPORT),
)
# Of these, what a run without a step does not have, or has empty.
RESULTS = (*(f"{name}.jsonl" for name in REPLAYED), "checkpoints", "replay", "policy", AUDIT)

# --- what its JSON files hold, as schemas (`fidec.store.schema`). Entries that nobody reads are left out ---------


class Marker(TypedDict):
    format: Literal["fidec-run"]


class Status(TypedDict):
    state: str
    step: int


class Origin(TypedDict, total=False):
    """What is known of a data file."""

    file: str | None
    regenerated: bool | None
    file_sha256: str | None


class Facts(TypedDict):
    """A data set that a run was trained on."""

    source: str
    transitions: int
    sha256: str
    info: NotRequired[Origin | None]
    findings: NotRequired[list[str]]  # warnings of the check, if there was one


class Environment(TypedDict, total=False):
    dataset: Facts | None
    buffer: Facts | None
    packages: dict[str, str | None]
    resumed: list[dict[str, Any]]


class Config(TypedDict, total=False):
    """What is read without the method. `train.stored.config_of` checks the rest."""

    algo: str
    preset: str
    task: str | None
    env: str | None
    data: str | None
    steps: int | None
    online_steps: int
    options: dict[str, Any] | None
    sha256: str


Evaluation = TypedDict(
    "Evaluation",
    {
        "evaluation/n": int,
        "evaluation/n_failed": int,
        "evaluation/score": float | None,
        "evaluation/success": float | None,
        "evaluation/success_low": float | None,
        "evaluation/success_high": float | None,
        "evaluation/return": float | None,
        "evaluation/return_low": float | None,
        "evaluation/return_high": float | None,
    },
    total=False,
)
ROWS: dict[str, Any] = {"train": dict[str, float | None], "time": dict[str, float | None], "eval": Evaluation}


# --- the directory ---------------------------------------------------------------------------------------------


class RunDirectory:
    """A run on the disk. Make one with `create` or `open`. `close` releases its lock."""

    def __init__(self, path: Path, held: lock.Hold | None):
        self.path = path
        self._held = held
        self._whole: RunDirectory | None = None  # the run that this one is a part of
        self.mirror: Mirror | None = None  # of a run whose place is a URL
        self.config, self.environment = path / "config.json", path / "environment.json"
        self.status, self.run_log = path / "status.json", path / "run.log"
        self.checkpoints, self.replay, self.policy = path / "checkpoints", path / "replay", path / "policy"
        self.init, self.flow = path / "init", path / "flow"

    @classmethod
    def create(
        cls, path: str | Path, overwrite: bool = False, verify: Callable[[], None] = files.nothing
    ) -> RunDirectory:
        """Start a run in a new or empty directory, or, with `overwrite`, in that of an earlier run.

        A run without a result, for example because of a wrong environment, is replaced without it. Another run stays
        beside the new one until `delete_earlier`. If the new run is closed before, the earlier one is given back.
        The lock is taken before anything is moved, and the lock file stays. So if several processes start at the same
        time, exactly one of them continues. `verify` is that of the run that this one is a part of.
        """
        path = Path(path)
        with files.writing(path, "the run directory"):
            if path.exists() and not path.is_dir():
                raise RunError(f"{path} is a file; a run needs a directory. Choose another --out.")
            files.make_directory(path, verify)
        _check_ours(path)
        check_links(path)
        held = lock.hold(path / LOCK)
        try:
            _check_ours(path)
            with files.writing(path, "the run directory"):
                verify()
                _give_back(path)
                empty = _is_replaceable(path)
                if not (overwrite or empty):
                    raise RunError(
                        f"{path} holds a run already. Continue it with --resume {path}, "
                        "replace it with --overwrite, or choose another --out."
                    )
                if not empty:
                    _set_aside(path)
                _remove_contents(path)
                files.write_json(path / MARKER, MARKER_CONTENT, held.verify)
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
        marker = files.find_json(path / MARKER, Marker)
        if marker is None:
            raise RunError(f"{path} is not a fidec run: it has no {MARKER} written by fidec")
        if problem := format_problem(marker.get("version")):
            raise RunError(f"the run {path} {problem}")
        if read_only:
            return cls(path, None)
        check_links(path)
        held = lock.hold(path / LOCK)
        if held.taken_over:
            for log in path.glob("*.jsonl"):  # a process that was taken for dead then writes into the old file
                files.atomic_write(log, log.read_bytes())
        with contextlib.suppress(OSError):
            _give_back(path)
            restore_directory(path / "policy")
            for leftover in _leftovers(path):
                files.remove(leftover)
        return cls(path, held)

    def delete_earlier(self) -> None:
        """Delete the run that this one replaces, if there is one."""
        aside, trash = (files.hidden(Path("run"), kind) for kind in ("old", "trash"))
        with files.writing(self.path, "the run directory"), files.opened(self.path, self.verify) as directory:
            if files.exists(aside, directory):
                files.rename(aside, trash, directory)  # from here on it is not given back
                files.remove(trash, directory)

    def close(self) -> None:
        """Release the lock. If the run has not replaced the earlier one yet, the earlier one is given back."""
        if self._held is not None:
            with contextlib.suppress(OSError, RunError):  # then the next `open` or `create` does it
                self._held.verify()
                _give_back(self.path)
            self._held.release()
            self._held = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attach(self, mirror: Mirror) -> None:
        """Mirror the run to its URL, as long as its directory is there."""
        self.mirror, mirror.verify = mirror, self.verify

    def join(self, whole: RunDirectory) -> None:
        """Make this run a part of another one: it is mirrored with that, and stops if that is no longer there."""
        self._whole, self.mirror = whole, whole.mirror

    def verify(self) -> None:
        """Raise an error if the run is no longer at its path, or another process has taken it (`lock.Hold.verify`).

        Call it right before each write.
        """
        if self._whole is not None:
            self._whole.verify()
        if self._held is not None:
            self._held.verify()

    @property
    def address(self) -> str:
        """What a user calls the run: its URL, or its path."""
        return str(self.path) if self.mirror is None else self.mirror.url

    @property
    def read_only(self) -> bool:
        return self._held is None

    @property
    def used_environment(self) -> bool:
        """Whether the run was evaluated, or has collected transitions."""
        return any(_holds_something(self.path / name) for name in ("eval.jsonl", "replay"))

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the configuration with its own hash, so that a flipped bit does not give another valid one."""
        files.write_json(self.config, {**config, "sha256": files.sha256_json(config)}, self.verify)

    def read_config(self) -> dict[str, Any]:
        """The configuration; `RunError` if it is not as it was written. Runs of older versions have no hash."""
        return check_config(self.config, files.read_json(self.config, Config))

    def write_environment(self, environment: dict[str, Any]) -> None:
        files.write_json(self.environment, environment, self.verify)

    def read_environment(self) -> dict[str, Any]:
        return files.read_json(self.environment, Environment)

    def read_environment_to_resume(self) -> dict[str, Any] | None:
        """What `read_environment` gives; None if there is no such file."""
        try:
            return self.read_environment() if self.environment.exists() else None
        except RunError as error:
            raise RunError(f"{error}. Restore it from a copy, or start the run again with --overwrite.") from error

    def write_status(self, state: str, step: int, reason: str | None = None) -> None:
        if state not in STATES:
            raise ValueError(f"unknown state {state!r}; a run is {', '.join(STATES)}")
        status = {"state": state, "step": step, "reason": reason, "time": time.time()}
        files.write_json(self.status, status, self.verify)

    def read_status(self) -> dict[str, Any] | None:
        """The last status, or None before the first. A killed run still says "running"."""
        return files.read_json(self.status, Status) if self.status.exists() else None

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """Events of the log "train", "eval", "episodes", "exploration" or "time"; a torn last line is left out."""
        return read_jsonl(self.path / f"{name}.jsonl", ROWS.get(name, dict))


def format_problem(found: Any) -> str | None:
    """Why a run or a policy of this format cannot be read, and what to do; None if it can."""
    if found == FORMAT:
        return None
    if isinstance(found, int) and found < FORMAT:
        return (
            f"has format {found}, and this fidec reads format {FORMAT}: options of FiDec have other names since. "
            "Train again, or use the version that wrote it: environment.json of the run names it and its commit"
        )
    return f"has format {found!r}, and this fidec reads format {FORMAT}: update fidec, or train again"


def check_config(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The content of a run's config.json without its hash; `RunError` if that is not the hash of the rest."""
    recorded = config.pop("sha256", None)
    if recorded is not None and recorded != files.sha256_json(config):
        raise RunError(
            f"{path} was changed or damaged after the run wrote it: its SHA-256 is not the recorded one. "
            "Restore the file from a copy. For a run with other options start a new one."
        )
    if config.pop("rendering", None) == "fast":  # an option of older versions
        raise RunError(
            f"{path}: its images were drawn with --rendering fast, which this version does not have. Make the data "
            "again and train again, or use the version that wrote it: environment.json of the run names it"
        )
    return config


def runs_below(path: Path, levels: int = 4) -> list[Path]:
    """The directories with a run.json, up to some levels deep, in order. What cannot be read is left out."""
    found: list[Path] = []
    for parent, directories, names in os.walk(path):
        here = Path(parent)
        if MARKER in names:
            found.append(here)
        if MARKER in names or len(here.relative_to(path).parts) == levels:
            directories.clear()  # a run holds no other run
        directories.sort()
    return found


def is_run(path: Path) -> bool:
    """Whether the directory is a run's. `RunDirectory.open` also says whether fidec wrote its marker."""
    return (path / MARKER).exists()


def _check_ours(path: Path) -> None:
    """Raise unless the directory has the marker, or is empty except for what a killed start leaves behind."""
    if files.find_json(path / MARKER, Marker) is not None:  # another tool may have a file of that name
        return
    with files.writing(path, "the run directory"):
        names = sorted(entry.name for entry in path.iterdir())
    others = [name for name in names if name not in (LOCK, LEASE) and not name.startswith(f".{MARKER}.")]
    if others:
        raise RunError(
            f"{path} is not empty ({others[0]!r}{' and more' if len(others) > 1 else ''}) and is not a fidec "
            f"run: it has no {MARKER} written by fidec, so neither --resume nor --overwrite may change it. "
            "Choose another --out."
        )


def check_links(path: Path) -> None:
    """Raise if one of the run's own files is a symbolic link: writing would follow it out of the directory."""
    with files.writing(path, "the run directory"):
        links = sorted(entry.name for entry in path.iterdir() if entry.is_symlink())
    ours = [name for name in links if name in (MARKER, LOCK, LEASE, *CONTENTS) or name.startswith(".")]
    if ours:
        raise RunError(
            f"{path / ours[0]} is a symbolic link to {os.readlink(path / ours[0])}. fidec does not write through "
            "links inside a run directory. Replace it by what it points to. The run directory itself may be a link."
        )


def results_of(path: Path) -> list[str]:
    """What a run without a step does not have: the names of the results, and the status if it has a step."""
    names = (*RESULTS, ".old-policy")  # a killed replacement leaves the policy under another name
    found = [name for name in names if _holds_something(path / name)]
    step = (files.find_json(path / "status.json", Status) or {}).get("step")
    return [*found, f"status.json of step {step}"] if step else found


def check_no_results(path: Path) -> None:
    """Raise if a run without its configuration has results: it can be neither resumed nor taken for new."""
    if found := results_of(path):
        raise RunError(
            f"{path} has no config.json, but it has {', '.join(found)}. The run was not changed. Restore config.json "
            "from a copy, move the directory to another place, or delete it."
        )


def _is_replaceable(path: Path) -> bool:
    """Whether the run has no result and either failed, or was stopped before its configuration was written."""
    failed = (files.find_json(path / "status.json", Status) or {}).get("state") == "failed"
    return not results_of(path) and (failed or not (path / "config.json").exists())


def _holds_something(path: Path) -> bool:
    """Whether there is a directory or a file that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def _remove_contents(path: Path) -> None:
    """Remove the files of the earlier run. The marker and the lock stay, so that a crash does no harm."""
    for entry in [*(path / name for name in CONTENTS), *_leftovers(path)]:
        if entry != files.hidden(path / "run", "old"):
            files.remove(entry)


def _set_aside(path: Path) -> None:
    """Move the files of the earlier run into one hidden directory."""
    moving, aside = (files.hidden(path / "run", kind) for kind in ("tmp", "old"))
    entries = [*(path / name for name in CONTENTS), *_leftovers(path)]
    moving.mkdir()
    for entry in entries:
        if entry.exists():
            os.rename(entry, moving / entry.name)
    os.rename(moving, aside)


def _give_back(path: Path) -> None:
    """Undo `_set_aside`, also one that a crash interrupted."""
    moving, aside = (files.hidden(path / "run", kind) for kind in ("tmp", "old"))
    if aside.exists():
        _remove_contents(path)
        os.rename(aside, moving)
    if moving.exists():
        for entry in list(moving.iterdir()):
            os.rename(entry, path / entry.name)
        moving.rmdir()


def _leftovers(path: Path) -> list[Path]:
    """Files that a killed atomic write, or a killed replacement of the policy, leaves behind."""
    return [entry for pattern in (".*.tmp", ".tmp-*", ".old-*", ".trash-*") for entry in path.glob(pattern)]
