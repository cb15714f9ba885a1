"""What a run's checkpoints belong to. A resumed run continues with its own options and data, or not at all."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, cast

from fidec.data import OfflineDataset
from fidec.errors import RunError
from fidec.store.checkpoint import Restored
from fidec.store.rundir import RunDirectory, results_of
from fidec.train.config import RunConfig
from fidec.train.flow_first import Flow
from fidec.train.initial import Initial


class Identity(TypedDict):
    """Part of every checkpoint. Hashes, but for the configuration."""

    config: dict[str, Any]
    data: str
    buffer: str | None
    init: NotRequired[str]  # of the state that the run started from
    flow: NotRequired[str]  # of the behaviour flow that was trained before


def identity_of(
    config: RunConfig, dataset: OfflineDataset, buffer: OfflineDataset | None, **given: Initial | Flow | None
) -> Identity:
    """The options that a resumed run cannot change, and the hashes of its data and of what other runs gave it."""
    second = None if buffer is None else buffer.sha256
    identity: Identity = {"config": config.fixed(), "data": dataset.sha256, "buffer": second}
    return cast(Identity, {**identity, **{name: each.sha256 for name, each in given.items() if each is not None}})


def check_identity(directory: RunDirectory, restored: Restored, own: Identity) -> None:
    """Raise unless the checkpoint was saved by a run with these options, on this data."""
    saved = restored.extra.get("identity")
    if saved is None:  # a run of an older version
        return
    other = [
        f"{name} {saved['config'][name]}, now {value}"
        for name, value in own["config"].items()
        if name in saved["config"] and saved["config"][name] != value
    ]
    other += [
        f"{name} with SHA-256 {str(saved.get(name))[:12]}, now {str(own.get(name))[:12]}"
        for name in ("data", "buffer", "init", "flow")
        if saved.get(name) != own.get(name)
    ]
    if other:
        raise RunError(
            f"{directory.path}: the checkpoint of step {restored.step} was saved with {'; '.join(other)}. "
            "Its configuration or its data is not that of this run. Restore them, or start a new run."
        )


def check_never_saved(directory: RunDirectory) -> None:
    """Raise if the run has saved before: without its checkpoints it would start again and overwrite the rest.

    A run that was killed or failed before its first checkpoint has logs, and starts again.
    """
    failed = (directory.read_status() or {}).get("state") == "failed"
    left = [name for name in results_of(directory.path) if not name.endswith(".jsonl")]
    if left and not (failed and all(name.startswith("status.json") for name in left)):
        raise RunError(
            f"{directory.path} has no checkpoints, but it was saved before: it has {', '.join(left)}. Restore "
            "checkpoints/ from a copy, or start again with --overwrite, which deletes what is left."
        )
