"""Jobs whose processes are fakes, and a watcher that remembers, for tests of the scheduler."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fidec.store.lock import is_locked
from fidec.train.resolve import seed_name

# What stands in for `fidec train`: each run notes its start with the cores, all work for a while and note their ends.
FAKE = """
import json, os, signal, sys, time
words = sys.argv[2:]
def values(option):
    rest = words[words.index(option) + 1:]
    return rest[:next((k for k, word in enumerate(rest) if word.startswith('--')), len(rest))]
if '--resume' in words:
    runs = values('--resume')
else:
    runs = [f"{values('--out')[0]}/seed{int(seed):03d}" for seed in values('--seeds')]
wanted = {run: json.load(open(run + '.wanted')) for run in runs}
def stop(*_):
    for run in runs:
        open(run + '.saved', 'w').close()
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, stop)
for run in runs:
    with open(run + '.starts', 'a') as file:
        file.write(json.dumps([sorted(os.sched_getaffinity(0)), words]) + '\\n')
if any(each['refuses'] for each in wanted.values()):
    sys.exit('refused: ' + ' '.join(runs))
time.sleep(max(each['seconds'] for each in wanted.values()))
for run, each in wanted.items():
    print('the end of', run)
    open(run + ('.failed' if each['code'] else '.done'), 'w').close()
sys.exit(max(each['code'] for each in wanted.values()))
"""


class FakeJob:
    """A run in DIRECTORY/GROUP; one that `refuses` ends its process before any run is done."""

    def __init__(self, directory: Path, group: str, seed: int = 0, online_steps: int = 0, **wanted: Any):
        self.name, self.seed, self.directory = f"{group} {seed}", seed, directory / group / seed_name(seed)
        self.plan, self.log = SimpleNamespace(online_steps=online_steps), self.directory.with_suffix(".log")
        self.directory.parent.mkdir(exist_ok=True)
        self.want(**wanted)

    def want(self, seconds: float = 0.0, code: int = 0, refuses: bool = False) -> None:
        self.file("wanted").write_text(json.dumps({"seconds": seconds, "code": code, "refuses": refuses}))

    def file(self, suffix: str) -> Path:
        return self.directory.with_suffix(f".{suffix}")

    def state(self) -> str:
        found = [state for state in ("done", "failed") if self.file(state).exists()]
        return found[0] if found else "running" if self.starts() else "new"

    def reason(self) -> str:
        return f"the reason of {self.name}"

    def is_busy_elsewhere(self) -> bool:
        return False

    def is_busy(self) -> bool:
        return is_locked(self.log)

    def arguments(self) -> list[str]:
        return ["--steps", "9"]

    def starts(self) -> list[Any]:
        """The cores and the command of each process that has started it."""
        path = self.file("starts")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def seeds_of(directory: Path, count: int, group: str = "job", **wanted: Any) -> list[Any]:
    return [FakeJob(directory, group, seed, **wanted) for seed in range(count)]


class Notes:
    """A watcher that remembers."""

    def __init__(self, on_show=lambda running: None):
        self.begun, self.ended, self.details, self.said, self.most, self.on_show = [], [], [], [], 0, on_show

    def print(self, text):
        self.said.append(text)

    def job_started(self, job, how, log):
        self.begun.append((job.name, how, log.stem))

    def job_ended(self, job, state, detail=""):
        self.ended.append((job.name, state))
        self.details.append(detail)

    def update(self, running, waiting):
        self.most = max(self.most, len(running))
        self.on_show(running)


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
