"""The runs of a suite, each a `fidec train` process of its own.

A job is idempotent: a finished one is skipped, an interrupted one goes on where it stopped, and one that failed does
not keep the others from running.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fidec import algos
from fidec.errors import ConfigError
from fidec.tasks.suites import Suite
from fidec.train.config import RunConfig, resolve_options
from fidec.train.loop import Signals
from fidec.train.rundir import RunDirectory


@dataclass(frozen=True)
class Job:
    """One method with one seed."""

    suite: Suite
    algo: str
    seed: int
    steps: int
    directory: Path
    data_dir: Path

    @property
    def log(self) -> Path:
        """What the process printed; beside the run, which must begin empty."""
        return self.directory.with_suffix(".log")

    def state(self) -> str:
        """new, or what the run's own directory says."""
        if not (self.directory / "config.json").exists():
            return "new"
        directory = RunDirectory.open(self.directory, read_only=True)
        self._check(directory.read_config())
        return (directory.read_status() or {"state": "failed"})["state"]

    def _check(self, config: dict[str, Any]) -> None:
        """A finished run counts only if it is the run that this suite asks for."""
        asked = {"task": self.suite.task, "algo": self.algo, "seed": self.seed, "steps": self.steps}
        asked["eval_episodes"] = self.suite.eval_episodes
        asked |= asdict(resolve_options(self.algo, "recommended", self.suite.task, **self.options()))
        stored = RunConfig.from_json(config)
        found = vars(stored) | asdict(stored.options)
        other = [
            f"{name} {found.get(name)}, not {value}" for name, value in asked.items() if found.get(name) != value
        ]
        if other:
            raise ConfigError(
                f"{self.directory} holds a run with other settings than suite {self.suite.name!r} asks for "
                f"({'; '.join(other)}): remove it, or choose another --out"
            )

    @property
    def eval_interval(self) -> int:
        return min(self.suite.eval_interval, self.steps)

    def options(self) -> dict[str, Any]:
        return self.suite.options(self.algo, algos.get(self.algo).config)

    def command(self) -> list[str]:
        """The `fidec` words that start this run, or that go on with it."""
        if self.state() != "new":
            return ["train", "--resume", str(self.directory)]
        words = ["train", "--task", self.suite.task, "--algo", self.algo, "--seed", str(self.seed)]
        words += ["--steps", str(self.steps), "--data-dir", str(self.data_dir), "--out", str(self.directory)]
        words += ["--eval-interval", str(self.eval_interval), "--eval-episodes", str(self.suite.eval_episodes)]
        words += ["--log-interval", str(min(500, self.steps)), "--overwrite"]  # of a start that was killed at once
        for name, value in self.options().items():
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--algo.{name.replace('_', '-')}", *map(str, values)]
        return words


def jobs(
    suite: Suite, *, out: Path, data_dir: Path, methods: tuple[str, ...], seeds: tuple[int, ...], steps: int
) -> list[Job]:
    """The suite's jobs for these methods and seeds."""
    unknown = sorted(set(methods) - set(suite.methods))
    if unknown:
        raise ConfigError(
            f"suite {suite.name!r} has no method {', '.join(unknown)}; it has {', '.join(suite.methods)}"
        )
    return [
        Job(suite, algo, seed, steps, out / f"{algo}-seed{seed:03d}", data_dir) for algo in methods for seed in seeds
    ]


def run(job: Job, on_wait: Callable[[str], None], signals: Signals) -> int:
    """See a job through, unless a signal comes; the exit code of its process, which does not go on alone.

    `on_wait` is told the last line of its log now and then.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fidec", *job.command()]
    with job.log.open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            while process.poll() is None and signals.received is None:
                time.sleep(0.5)
                on_wait(last_lines(job.log, 1))
        finally:
            process.terminate()  # if it is not done: it saves, and can be resumed
    return process.returncode


def last_lines(log: Path, count: int) -> str:
    """The end of a log, without reading all of it."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])
