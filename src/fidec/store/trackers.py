"""Copies of a run's numbers for TensorBoard and for a tracker: Weights & Biases, trackio or MLflow.

A tracker is an option, and the run does not depend on it: its first error is reported, and the rest of the run is not
tracked. Where the numbers go is the tracker's own business (`WANDB_MODE=offline`, `TRACKIO_DIR`,
`MLFLOW_TRACKING_URI`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypedDict, cast

from fidec.extras import require
from fidec.store import files

PROJECT = "fidec"
FILE = "track.json"  # in the run directory: a resumed run continues with the same entry of its tracker


class Tracker(Protocol):
    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def finish(self) -> None: ...


class Entry(TypedDict):
    """What a tracker calls the run."""

    tracker: str
    id: str
    name: str


def package(name: str) -> Any:
    """The package of a tracker; ConfigError names the extra if it is missing."""
    packages = {
        "wandb": lambda: require("wandb", "wandb", "--track wandb"),
        "trackio": lambda: require("trackio", "trackio", "--track trackio"),
        "mlflow": lambda: require("mlflow", "mlflow", "--track mlflow"),
    }
    return packages[name]()


class WandB:
    """A run of Weights & Biases."""

    def __init__(self, entry: Entry, directory: Path, config: Mapping[str, Any]):
        wandb = package("wandb")
        self._run = wandb.init(
            project=PROJECT,
            name=entry["name"],
            id=entry["id"],
            resume="allow",
            reinit="create_new",  # several seeds may be trained in one process
            dir=directory,
            config=dict(config),
            settings=wandb.Settings(silent=True),
        )
        # Not its own step, which cannot go back: a resumed run repeats some.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log({"step": step, **numbers})

    def finish(self) -> None:
        self._run.finish()


class Trackio:
    """A run of trackio, which is local unless it is told otherwise."""

    def __init__(self, entry: Entry, directory: Path, config: Mapping[str, Any]):
        trackio = package("trackio")
        settings = {"name": entry["name"], "config": dict(config), "resume": "allow", "embed": False}
        self._run = trackio.init(project=PROJECT, **settings)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def finish(self) -> None:
        self._run.finish()


class MLflow:
    """A run of MLflow. Its client is used directly, because `mlflow.log_metric` knows one run in a process."""

    def __init__(self, entry: Entry, directory: Path, config: Mapping[str, Any]):
        self._mlflow = package("mlflow")
        self._client = self._mlflow.MlflowClient()
        experiment = self._client.get_experiment_by_name(PROJECT)
        id_ = self._client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
        tag = {"fidec.id": entry["id"]}
        found = self._client.search_runs([id_], f"tags.`fidec.id` = '{entry['id']}'", max_results=1)
        self._run = found[0] if found else self._client.create_run(id_, run_name=entry["name"], tags=tag)
        if not found:
            for name, value in config.items():
                self._client.log_param(self._run.info.run_id, name, str(value)[:6000])  # MLflow's limit

    def log(self, step: int, numbers: dict[str, float]) -> None:
        stamp = self._mlflow.utils.time.get_current_time_millis()
        metrics = [self._mlflow.entities.Metric(name, value, stamp, step) for name, value in numbers.items()]
        self._client.log_batch(self._run.info.run_id, metrics=metrics)

    def finish(self) -> None:
        self._client.set_terminated(self._run.info.run_id)


TRACKERS: dict[str, Any] = {"wandb": WandB, "trackio": Trackio, "mlflow": MLflow}


def single_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of `values` that are single numbers. NaN and infinity are none."""
    plain = {name: files.to_builtin(value) for name, value in values.items()}
    return {name: float(value) for name, value in plain.items() if isinstance(value, int | float)}


class Tracking:
    """A tracker whose errors do not stop the run."""

    def __init__(
        self,
        name: str,
        directory: Path,
        config: Mapping[str, Any],
        message: Callable[[str], None],
        verify: Callable[[], None] = files.nothing,
    ):
        self._name, self._message, self._verify = name, message, verify
        self._tracker: Tracker | None = None
        self._guarded(lambda: self._open(directory, config))

    def _open(self, directory: Path, config: Mapping[str, Any]) -> None:
        entry = files.find_json(directory / FILE, Entry)
        if entry is None or entry["tracker"] != self._name:
            name = "/".join(directory.absolute().parts[-3:])
            entry = {"tracker": self._name, "id": uuid.uuid4().hex[:16], "name": name}
            files.write_json(directory / FILE, entry, self._verify)
        self._tracker = TRACKERS[self._name](cast(Entry, entry), directory, config)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Pass on those of `values` that are single numbers."""
        numbers = single_numbers(values)
        if self._tracker is not None and numbers:
            tracker = self._tracker
            self._guarded(lambda: tracker.log(step, numbers))

    def close(self) -> None:
        if self._tracker is not None:
            self._guarded(self._tracker.finish)
            self._tracker = None

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a tracker raises; the run's own logs have everything
            self._tracker = None
            with contextlib.suppress(Exception):
                self._message(f"{self._name} failed and is not used from here on: {type(error).__name__}: {error}")


class TensorBoardLog:
    """Scalars as TensorBoard events.

    tensorboardX's usual writer passes events to a thread. If a full disk ends that thread, training waits for it for
    ever. All its writers open the file by its path, where another run may be by then.
    """

    def __init__(
        self, directory: str | Path, purge_step: int | None = None, verify: Callable[[], None] = files.nothing
    ):
        from tensorboardX.record_writer import masked_crc32c

        # The message types are created at import, so a type checker does not see them.
        event_pb2 = importlib.import_module("tensorboardX.proto.event_pb2")
        summary_pb2 = importlib.import_module("tensorboardX.proto.summary_pb2")
        self._event, self._summary, self._checksum = event_pb2.Event, summary_pb2.Summary, masked_crc32c
        self.directory, now = Path(directory), time.time_ns()
        # TensorBoard reads the seconds. Without the rest a quick resume would continue the earlier file.
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now % 10**9:09d}.{os.getpid()}"
        with files.writing(self.directory, "TensorBoard's events"):
            files.make_directory(self.directory, verify)
            self._file = open(files.open_to_append(self.directory / name, verify), "ab")  # noqa: SIM115
            self._append(file_version="brain.Event:2")
            if purge_step is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._append(step=purge_step, session_log=start)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write those of `values` that are single numbers."""
        scalars = [
            self._summary.Value(tag=tag, simple_value=number) for tag, number in single_numbers(values).items()
        ]
        if not scalars:
            return
        with files.writing(self.directory, "TensorBoard's events"):
            self._append(step=step, summary=self._summary(value=scalars))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be flushed was reported when it was written
            self._file.close()

    def _append(self, **values: Any) -> None:
        """Write an event as a record of TensorFlow: its length and its bytes, each with a checksum."""
        data = self._event(wall_time=time.time(), **values).SerializeToString()
        for part in (struct.pack("<Q", len(data)), data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))
        self._file.flush()
        os.fsync(self._file.fileno())
