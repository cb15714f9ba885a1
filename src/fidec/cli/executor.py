"""The options of commands that run many jobs: where they run, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fidec.errors import ConfigError
from fidec.executors.executor import Request


@dataclass(frozen=True, kw_only=True)
class ExecutorArgs:
    workers: int = 1
    """Processes in parallel; each gets its share of the cores and GPUs. Seeds of one method share a process."""
    on: str = "local"
    """Where the processes run: local, ray, slurm, or the executor of an installed package."""
    cpus: int | None = None
    """Cores of a process; by default its share of this machine, and 1 on ray and slurm."""
    gpus: float | None = None
    """GPUs of a process. 0.5 lets two processes share one. By default the processes of this machine take turns with
    its GPUs, and those on ray and slurm have none."""
    memory: float | None = None
    """Main memory of a process in GB, on ray and slurm."""
    hours: float | None = None
    """Time limit of a process on slurm. It is then stopped, queued again and continued."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379 or auto; by default one is started on this machine."""
    settings: tuple[str, ...] = ()
    """Other options of the engine as NAME=VALUE, on slurm those of sbatch: --settings partition=gpu account=lab."""


def request(args: ExecutorArgs) -> Request:
    """What the options ask for; ConfigError if they make no sense."""
    if args.workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {args.workers}")
    names = ("workers", "cpus", "gpus", "memory", "hours", "address")
    return Request(**{name: getattr(args, name) for name in names}, settings=read_settings(args.settings))


def read_settings(words: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE, ... as a dictionary."""
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--settings {word!r}: expected NAME=VALUE, such as partition=gpu")
        settings[name.replace("-", "_")] = value
    return settings
