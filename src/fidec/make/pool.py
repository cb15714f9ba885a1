"""Worker processes that make episodes in parallel. A worker gets its next episode when it has finished one.

Workers are separate commands and not `multiprocessing` processes, so that they never import the caller's main module
(which may start JAX, or have no `__main__` guard).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fidec.errors import EnvError
from fidec.launch import launch
from fidec.make.expert.store import Expert
from fidec.make.recipes import Recipe

Job = tuple[str, int]  # split and episode index


def _environment(images: bool) -> dict[str, str]:
    """OpenGL without a display for images, else no OpenGL."""
    from fidec.envs.make import gl_environ  # here, because it imports gymnasium

    return gl_environ() if images else {"MUJOCO_GL": "disable"}


class _Worker:
    """One process, and a thread that passes its answers on to the common queue."""

    def __init__(self, number: int, setup: dict[str, Any], answers: queue.SimpleQueue[Any]):
        self.number = number
        self.job: Job | None = None
        self.log = Path(setup["directory"]) / f"worker-{number}.log"
        with open(self.log, "wb") as log:
            self.process = launch(
                *("-W", "ignore", "-m", "fidec.make.worker"),
                environ=_environment(images=setup["recipe"]["rendering"] is not None),
                threads=1,  # its matrices are 6 x 6
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0
                if os.name == "posix"
                else None,  # Ctrl-C reaches the parent only, which ends the workers
            )
        self._write(setup)
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.SimpleQueue[Any]) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # a line cut short by a crash
            for line in self.process.stdout:
                answers.put((self, json.loads(line)))
        answers.put((self, None))

    def _write(self, content: Any) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # a worker that has ended is reported when its answers end
            self.process.stdin.write(json.dumps(content) + "\n")
            self.process.stdin.flush()

    def start(self, job: Job) -> None:
        self.job = job
        self._write(job)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run_jobs(
    recipe: Recipe,
    seed: int,
    jobs: list[Job],
    directory: Path,
    workers: int,
    expert: Expert | None = None,
    wake: float = 0.5,
) -> Generator[Job | None]:
    """Make every job's shard; yields each job when it is done, and None after `wake` seconds without one.

    All workers are ended when the iterator is closed, whether by the last job, an error or Ctrl-C.
    """
    waiting, answers = deque(jobs), queue.SimpleQueue()
    setup = {"recipe": asdict(recipe), "seed": seed, "directory": str(directory)}
    setup["expert"] = expert and {"directory": str(expert.directory), "sha256": expert.sha256}
    crew: list[_Worker] = []
    try:
        for number in range(min(workers, len(jobs))):
            crew.append(_Worker(number, setup, answers))
            crew[-1].start(waiting.popleft())
        unfinished = len(jobs)
        while unfinished:
            try:
                worker, answer = answers.get(timeout=wake)
            except queue.Empty:
                yield None
                continue
            if answer is None or "error" in answer:
                raise EnvError(_failure_text(worker, answer, recipe, directory, workers))
            unfinished -= 1
            if waiting:
                worker.start(waiting.popleft())
            yield answer["split"], answer["index"]
    finally:
        for worker in crew:
            worker.stop()


def _failure_text(
    worker: _Worker, answer: dict[str, Any] | None, recipe: Recipe, directory: Path, workers: int
) -> str:
    split, index = worker.job or ("?", -1)
    keep = f"Finished episodes are kept in {directory}; the same command continues."
    if answer is not None:
        return f"{recipe.name}, {split} episode {index}: {answer['error']}. {keep} Details: {worker.log}"
    code = worker.process.wait()
    how = f"ended with code {code}"
    if code < 0:
        with suppress(ValueError):
            how = f"was ended by {signal.Signals(-code).name}"
    tail = worker.log.read_text(errors="replace").strip().splitlines()[-1:]
    advice = " If the machine ran out of memory, use fewer workers." if workers > 1 else ""
    said = f" Its last line: {tail[0]}" if tail else ""
    return f"{recipe.name}: worker {worker.number} {how} during {split} episode {index}.{said} {keep}{advice}"
