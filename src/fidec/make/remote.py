"""Episodes made by an executor: in groups, each a job of its own that writes one shard per episode.

An episode is a function of the seed, its split and its index. So it does not matter who makes it, or how often: a
group that was lost is made again, without the shards that exist.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from fidec.errors import ConfigError, RunError
from fidec.executors.executor import Handle, Pool, Work
from fidec.launch import JobError
from fidec.store.files import write_json

GROUP = 8  # episodes of a job
ERRORS = (RunError.exit_code, ConfigError.exit_code)


def run_groups(
    pool: Pool, setup: dict[str, Any], jobs: Sequence[tuple[str, int]], directory: Path, wake: float
) -> Generator[tuple[str, int] | None]:
    """Make every job's shard; yields each job when its group is done, and None every `wake` seconds."""
    groups = [jobs[first : first + GROUP] for first in range(0, len(jobs), GROUP)]
    waiting, losses = deque(range(len(groups))), Counter[int]()
    running: dict[int, tuple[int, Handle]] = {}
    try:
        while waiting or running:
            with pool.batch():
                for slot in range(pool.slots or len(groups)):
                    if slot not in running and waiting:
                        number = waiting.popleft()
                        running[slot] = number, _submit(pool, slot, setup, groups[number], directory, number)
            yield None
            time.sleep(wake)
            for slot, (number, handle) in list(running.items()):
                code = handle.poll()
                if code is None:
                    continue
                del running[slot]
                if code == 0:
                    yield from groups[number]
                elif code in ERRORS or losses[number] >= pool.retries:
                    text = f"the process of its group ended with code {code}"
                    raise JobError(groups[number][0], text, True, _log(directory, number))
                else:
                    losses[number] += 1
                    waiting.appendleft(number)
    finally:
        for _, handle in running.values():
            handle.terminate()
        for _, handle in running.values():
            handle.wait()


def _submit(
    pool: Pool, slot: int, setup: dict[str, Any], group: Sequence[tuple[str, int]], directory: Path, number: int
) -> Handle:
    listed, log = directory / f"group-{number}.json", _log(directory, number)
    write_json(listed, {"setup": setup, "jobs": group})
    with log.open("ab") as file:
        return pool.submit(slot, Work(("-m", "fidec.make.worker", str(listed)), (), (), log), [file])


def _log(directory: Path, number: int) -> Path:
    return directory / f"group-{number}.log"
