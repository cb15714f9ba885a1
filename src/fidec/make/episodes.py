"""The episodes of a data set in the making: made in parallel, one file each (a shard), joined to one file per split.

Every write goes to a temporary name and is renamed, so a file that exists is complete. An episode is a function of
the seed, its split and its index. So it does not matter who makes it, or how often. Processes of this machine make
one episode after the other (`fidec.make.worker`). An executor gets groups of episodes, each a job of its own: a group
that was lost is made again, without the shards that exist.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fidec import launch
from fidec.data.npz import write_npz
from fidec.envs.render import gl_environ
from fidec.errors import ConfigError, DataError, EnvError, RunError
from fidec.executors import Handle, Pool, Work
from fidec.make.expert import Expert
from fidec.make.recipes import Recipe
from fidec.store import lock
from fidec.store.files import find_json, write_json, write_whole


def shard_path(directory: Path, split: str, index: int) -> Path:
    return directory / f"{split}-{index:06d}.npz"


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    members = {key: ((array.shape, array.dtype), [array]) for key, array in arrays.items()}
    write_whole(path, lambda file: write_npz(file, members))


def read_shard(path: Path, recipe: Recipe) -> dict[str, np.ndarray] | None:
    """The arrays of one episode, or None if the file is missing or damaged (each array carries a CRC-32)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # zipfile and NumPy raise many kinds of errors for a damaged archive
        return None
    dtypes = {key: str(array.dtype) for key, array in arrays.items()}
    if dtypes != recipe.dtypes or any(len(array) != recipe.episode_rows for array in arrays.values()):
        return None
    return arrays


def join_shards(directory: Path, split: str, episodes: int, recipe: Recipe, path: Path) -> None:
    """Concatenate the episodes of a split into one file.

    It is not compressed, unlike OGBench's own files: compression would save a seventh of the space, make reading
    three times slower, and let the bytes depend on the version of zlib. NumPy gives every member of an archive the
    same date, so equal arrays make equal files.
    """

    def episode(index: int) -> dict[str, np.ndarray]:
        shard = read_shard(shard_path(directory, split, index), recipe)
        if shard is None:
            raise DataError(
                f"{directory}: {split} episode {index} became unreadable after it was written. "
                "Check the disk and run the same command again: only such episodes are made again."
            )
        return shard

    def column(key: str) -> Iterator[np.ndarray]:
        return (episode(index)[key] for index in range(episodes))

    first, rows = episode(0), episodes * recipe.episode_rows
    members = {
        key: (((rows, *first[key].shape[1:]), np.dtype(dtype)), column(key)) for key, dtype in recipe.dtypes.items()
    }
    write_whole(path, lambda file: write_npz(file, members))  # one episode at a time: images may not fit in memory


def open_partial(directory: Path, wanted: dict[str, Any], *, overwrite: bool) -> None:
    """Prepare the directory of an unfinished data set: continue it, or start again if `overwrite`; else an error."""
    record = directory / "settings.json"
    recorded = find_json(record)
    if recorded == wanted:
        return
    if recorded is not None and not overwrite:
        keys = sorted(key for key in {*recorded, *wanted} if recorded.get(key) != wanted.get(key))
        what = "; ".join(f"{key} was {recorded.get(key)!r}, now {wanted.get(key)!r}" for key in keys)
        raise DataError(
            f"{directory} holds an interrupted run with other settings ({what}). Finish that run with its "
            "own settings, delete the directory, or ask to overwrite."
        )
    for entry in directory.iterdir():
        if entry.suffix in {".npz", ".json", ".log", ".tmp"}:
            entry.unlink()
    write_json(record, wanted)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `directory` (created if need be) for this process; a second process gets a BusyError."""
    directory.mkdir(parents=True, exist_ok=True)
    acquired = lock.acquire(directory / "lock")
    try:
        yield
    finally:
        acquired.release()


# --- made in parallel ------------------------------------------------------------------------------------------

Job = tuple[str, int]  # split and episode index
OpenPool = Callable[[], AbstractContextManager[Pool]]
GROUP = 8  # episodes of an executor's job
ERRORS = (RunError.exit_code, ConfigError.exit_code)


def run_jobs(
    recipe: Recipe,
    seed: int,
    jobs: list[Job],
    directory: Path,
    workers: int,
    expert: Expert | None = None,
    wake: float = 0.5,
    open_pool: OpenPool | None = None,
) -> Generator[Job | None]:
    """Make every job's shard; yields each job when it is done, and None after `wake` seconds without one.

    With `open_pool` an executor makes them, else processes of this machine.
    """
    setup = {"recipe": asdict(recipe), "seed": seed, "directory": str(directory.absolute())}
    setup["expert"] = expert and {"directory": str(expert.directory), "sha256": expert.sha256}
    environ = gl_environ() if recipe.visual else {"MUJOCO_GL": "disable"}
    try:
        if open_pool is not None:
            if jobs:
                with open_pool() as pool:
                    yield from run_groups(pool, setup | {"environ": environ}, jobs, directory.absolute(), wake)
            return
        options = {"logs": directory, "wake": wake, "environ": environ, "threads": 1}  # its matrices are 6 x 6
        yield from launch.run_jobs("fidec.make.worker", setup, jobs, workers, **options)
    except launch.JobError as error:
        raise EnvError(_failure_text(error, recipe, directory, workers)) from None


def _failure_text(error: launch.JobError, recipe: Recipe, directory: Path, workers: int) -> str:
    split, index = error.job
    keep = f"Finished episodes are kept in {directory}; the same command continues."
    assert error.log is not None
    if not error.died:
        return f"{recipe.name}, {split} episode {index}: {error}. {keep} Details: {error.log}"
    tail = error.log.read_text(errors="replace").strip().splitlines()[-1:]
    advice = " If the machine ran out of memory, use fewer workers." if workers > 1 else ""
    last_line = f" Its last line: {tail[0]}" if tail else ""
    return f"{recipe.name}: {error} during {split} episode {index}.{last_line} {keep}{advice}"


def run_groups(
    pool: Pool, setup: dict[str, Any], jobs: Sequence[Job], directory: Path, wake: float
) -> Generator[Job | None]:
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
                        listed, log = directory / f"group-{number}.json", directory / f"group-{number}.log"
                        write_json(listed, {"setup": setup, "jobs": groups[number]})
                        with log.open("ab") as file:
                            work = Work(("-m", "fidec.make.worker", str(listed)), (), (), log)
                            running[slot] = number, pool.submit(slot, work, [file])
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
                    raise launch.JobError(groups[number][0], text, True, directory / f"group-{number}.log")
                else:
                    losses[number] += 1
                    waiting.appendleft(number)
    finally:
        for _, handle in running.values():
            handle.terminate()
        for _, handle in running.values():
            handle.wait()
