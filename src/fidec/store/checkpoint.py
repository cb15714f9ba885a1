"""Checkpoints: written atomically, and checked against their hashes before use.

    checkpoints/
      00010000/  state.safetensors   every array of the training state
                 manifest.json       SHA-256 of each file, the step, and other values of the run
      .tmp-00020000/    a save in progress      .trash-00005000/   a checkpoint that is being removed
      .old-00010000/    a checkpoint that is being replaced

A directory gets its final name by one rename, after all its files are on the disk. A crash at any time leaves the
previous checkpoint, the new one, or both.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from fidec.errors import CheckpointError, ConfigError, NonFiniteError
from fidec.store import files, trees
from fidec.store.directories import replacing_directory, restore_directory

STATE = "state.safetensors"


class Record(TypedDict):
    """What the manifest of a checkpoint holds besides the hashes."""

    step: int
    extra: dict[str, Any]


class Restored(NamedTuple):
    """A checkpoint that passed every check. `state` holds JAX arrays."""

    step: int
    state: Any
    extra: dict[str, Any]


class Newest(NamedTuple):
    """A checkpoint that passed every check, as arrays by their paths."""

    step: int
    arrays: dict[str, np.ndarray]
    extra: dict[str, Any]


def _to_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


class Checkpoints:
    """The checkpoints of one run.

    Only the process that holds the run's lock may write. The constructor removes what a crashed save left behind.
    With `read_only` nothing on the disk is changed, so another process can read the checkpoints of a running run.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int = 2,
        warn: Callable[[str], None] = _to_stderr,
        read_only: bool = False,
        verify: Callable[[], None] = files.nothing,
    ):
        if keep < 1:
            raise ConfigError(f"at least one checkpoint has to be kept, but keep is {keep}")
        self.directory = Path(directory)
        self.keep = keep
        self.warn = warn
        self.read_only = read_only
        self._verify = verify  # raises an error if the run is no longer there, or another process has taken it
        if not read_only:
            with files.writing(self.directory, "the directory of the checkpoints"):
                files.make_directory(self.directory, verify)
                with files.opened(self.directory, verify) as descriptor:
                    self._clear_leftovers(descriptor)

    def path(self, step: int) -> Path:
        return self.directory / f"{step:08d}"

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, good or damaged, in rising order."""
        return _steps(os.listdir(self.directory)) if self.directory.is_dir() else []

    def save(self, step: int, state: Any, extra: Mapping[str, Any] | None = None) -> Path:
        """Save `state` as the checkpoint of `step`. Older checkpoints beyond `keep` are removed after that.

        Raises `NonFiniteError`, which names the leaf, if the state holds NaN or infinity. Raises `RunError` if the
        disk is full or fails. Neither changes the earlier checkpoints.
        """
        if self.read_only:
            raise ValueError("these checkpoints were opened for reading only")
        flat = trees.flatten_tree(state)
        _check_finite(step, flat)
        final = self.path(step)
        size = sum(array.nbytes for array in flat.values())
        what = f"the checkpoint of step {step}, {size / 1e6:.1f} MB"
        with files.writing(final, what), replacing_directory(final, self._verify) as new:
            trees.save_flat(new / STATE, flat, {"format": "fidec-state-1"})
            files.write_manifest(new, {"step": step, "extra": dict(extra or {})})
        with files.writing(self.directory, "the directory of the checkpoints"):
            self._remove_old(step)
        return final

    def latest(
        self,
        template: Any,
        check: Callable[[dict[str, Any]], None] | None = None,
        schema: Any = dict,
        *,
        other: Any = None,
    ) -> Restored | None:
        """The newest checkpoint that is intact, or None if none was ever saved.

        A damaged checkpoint is skipped and reported through `warn`. If all are damaged, this raises
        `CheckpointError`. It also does so if an intact checkpoint does not fit `template` (leaves with shape and
        dtype, from `jax.eval_shape`): then the configuration has changed, and an older checkpoint would not fit
        either. `check` gets `extra`, which fits the `schema`, and may raise `CheckpointError` if a file that it
        refers to is damaged. The state of a run with two phases may fit the template `other` instead.
        """
        newest = self.newest(check, schema)
        if newest is None:
            return None
        if other is not None and trees.names(other) == set(newest.arrays):
            template = other
        try:
            state = trees.unflatten_like(template, newest.arrays)
        except CheckpointError as error:
            path = self.path(newest.step)
            raise CheckpointError(
                f"the checkpoint {path} is intact but belongs to another configuration: {error}"
            ) from error
        return Restored(newest.step, _on_device(state), newest.extra)

    def newest(self, check: Callable[[dict[str, Any]], None] | None = None, schema: Any = dict) -> Newest | None:
        """`latest`, whatever the structure of its state."""
        tried: set[int] = set()
        damaged: dict[int, str] = {}
        while left := [step for step in self.steps() if step not in tried]:
            step = left[-1]
            tried.add(step)
            path = self.path(step)
            try:
                record = files.verify_manifest(path)
                files.check_schema(path / files.MANIFEST, record, Record)
                files.check_schema(path / files.MANIFEST, record["extra"], schema)
                if record.get("step") != step:
                    raise CheckpointError(f"{path} holds step {record.get('step')}: it was renamed or moved")
                flat = trees.load_flat(path / STATE)
                if check is not None:
                    check(record["extra"])
            except CheckpointError as error:
                if path.exists():  # else the training process removed it while we read
                    damaged[step] = str(error)
                    self.warn(f"the checkpoint of step {step} is damaged and is not used: {error}")
                continue
            return Newest(step, flat, record["extra"])
        if damaged:
            steps = ", ".join(map(str, sorted(damaged)))
            raise CheckpointError(
                f"every checkpoint in {self.directory} is damaged (steps {steps}; {damaged[max(damaged)]}): the run "
                "cannot be resumed. Restore the damaged files from a copy, or start again with --overwrite."
            )
        return None

    def _clear_leftovers(self, directory: int) -> None:
        """Undo or finish what a crash interrupted. A failure here costs only space, so it is only reported."""
        try:
            for name in sorted(os.listdir(directory)):
                if name.startswith(".old-"):
                    restore_directory(Path(name.removeprefix(".old-")), directory)
                if name.startswith((".tmp-", ".trash-", ".old-")):
                    files.remove(Path(name), directory)
        except OSError as error:
            self.warn(f"could not remove what an interrupted save left in {self.directory}: {error}")

    def _remove_old(self, saved: int) -> None:
        """Remove all checkpoints but the newest `keep` up to the one just saved. Later ones are damaged.

        Each is renamed before it is emptied, so that a crash never leaves a partial checkpoint with a final name.
        Errors are only reported, because the save itself has succeeded.
        """
        # A process that was taken for dead must not remove the checkpoints of the next one.
        with files.opened(self.directory, self._verify) as directory:
            steps = _steps(os.listdir(directory))
            kept = [step for step in steps if step <= saved][-self.keep :]
            for step in steps:
                if step in kept:
                    continue
                try:
                    name = Path(self.path(step).name)
                    files.remove(trash := files.hidden(name, "trash"), directory)
                    files.rename(name, trash, directory)
                except OSError as error:
                    self.warn(f"the old checkpoint of step {step} could not be removed: {error}")
            self._verify()
            self._clear_leftovers(directory)


def _steps(names: list[str]) -> list[int]:
    return sorted(int(name) for name in names if re.fullmatch(r"[0-9]{8,}", name))


def _check_finite(step: int, flat: dict[str, np.ndarray]) -> None:
    if text := trees.describe_non_finite(flat):
        raise NonFiniteError(f"the state of step {step} is not saved: {text}. The earlier checkpoints are intact.")


def _on_device(state: Any) -> Any:
    import jax
    import jax.numpy as jnp

    # A copy: the arrays read from the file share one read-only buffer, and the loop donates its state.
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)
