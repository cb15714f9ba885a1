"""Episodes made in parallel, by processes that run `fidec.make.worker`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from fidec import launch
from fidec.errors import EnvError
from fidec.executors.executor import Pool
from fidec.make.expert.store import Expert
from fidec.make.recipes import Recipe
from fidec.make.remote import run_groups

Job = tuple[str, int]  # split and episode index
OpenPool = Callable[[], AbstractContextManager[Pool]]


def _environment(images: bool) -> dict[str, str]:
    """OpenGL without a display for images, else no OpenGL."""
    from fidec.envs.factory import gl_environ  # here, because it imports gymnasium

    return gl_environ() if images else {"MUJOCO_GL": "disable"}


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
    environ = _environment(images=recipe.rendering is not None)
    try:
        if open_pool is not None:
            if jobs:
                with open_pool() as pool:
                    yield from run_groups(pool, setup | {"environ": environ}, jobs, directory.absolute(), wake)
            return
        yield from launch.run_jobs(
            "fidec.make.worker",
            setup,
            jobs,
            workers,
            logs=directory,
            wake=wake,
            environ=environ,
            threads=1,  # its matrices are 6 x 6
        )
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
    said = f" Its last line: {tail[0]}" if tail else ""
    return f"{recipe.name}: {error} during {split} episode {index}.{said} {keep}{advice}"
