"""Where jobs run: the interface between a scheduler and an engine (this machine, a Ray cluster, Slurm).

An executor is found by name. `open` gives a pool, which starts jobs and says how each ended. A job is one command
that can be run again at any time: what it has done is in its run directory. So an engine may lose, preempt or move
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from fidec.errors import ConfigError
from fidec.register import Register

LOST = 75  # the exit code of a job that its engine lost or stopped: it is to be run again


@dataclass(frozen=True)
class Request:
    """What a user asks for. None is the executor's own choice."""

    workers: int = 1  # jobs at the same time
    cpus: int | None = None  # of a job
    gpus: float | None = None  # of a job; jobs with less than one share a GPU
    memory: float | None = None  # of a job, in GB
    hours: float | None = None  # after which the engine stops a job, which is then continued
    address: str | None = None  # of a cluster that runs already
    settings: dict[str, str] = field(default_factory=dict)  # other settings of the engine
    directory: Path = Path()  # for the engine's own files

    def __post_init__(self) -> None:
        for name in ("workers", "cpus", "memory", "hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name} must be more than 0, not {value}")
        if self.gpus is not None and (self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus))):
            raise ConfigError(f"--gpus must be a fraction up to 1 or a whole number, not {self.gpus:g}")

    def refuse(self, executor: str, *names: str) -> None:
        """Raise an error if an option is given that this executor does not have."""
        for name in names:
            if getattr(self, name):
                raise ConfigError(f"--on {executor} has no --{name}: leave it out")


class Work(NamedTuple):
    """A job: `python ARGV`. If runs of it exist already, it is `python AGAIN RUN...` with those that do."""

    argv: Sequence[str]
    again: Sequence[str]
    runs: Sequence[Path]
    log: Path  # gets its output


class Handle(Protocol):
    """A job that was submitted. `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal, or None while it waits or runs. `LOST` asks to submit it again."""

    def terminate(self) -> None:
        """Ask it to save and stop."""

    def kill(self) -> None: ...
    def wait(self) -> int: ...


class Pool(Protocol):
    """An executor in use."""

    @property
    def remote(self) -> bool:
        """Whether jobs may run elsewhere. Else they inherit the open files of `submit`, with their locks."""
        ...

    @property
    def retries(self) -> int:
        """How often a job that was lost is submitted again without having made progress."""
        ...

    @property
    def slots(self) -> int | None:
        """Jobs that are submitted at the same time. None: all, and the engine queues them."""
        ...

    def cores(self, slot: int) -> int:
        """How many cores a job in this slot has."""
        ...

    def submit(self, slot: int, work: Work, files: Sequence[IO[bytes]]) -> Handle:
        """Start a job. `files` are the open logs of its runs; the first is `work.log`."""
        ...

    def batch(self) -> AbstractContextManager[object]:
        """Jobs that are submitted in this block may be handed to the engine together."""
        ...


@dataclass(frozen=True)
class Executor:
    """An entry of the register. `open` takes what the user asks for; leaving the block ends what it started."""

    open: Callable[[Request], AbstractContextManager[Pool]]


EXECUTORS = Register("executor", "fidec.executors.kinds", "EXECUTOR", Executor, "fidec.executors")
