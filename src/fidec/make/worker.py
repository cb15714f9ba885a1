"""A process that makes episodes: `python -m fidec.make.worker`, started by `fidec.make.episodes`.

With a file as argument it makes the episodes that the file lists, and ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fidec.errors import FidecError
from fidec.launch import serve
from fidec.make.episodes import read_shard, shard_path, write_arrays
from fidec.make.expert import load_expert
from fidec.make.recipes import Recipe
from fidec.make.worlds import open_world
from fidec.store.files import read_json


def start(setup: dict[str, Any]) -> Callable[[tuple[str, int]], None]:
    """The function that makes an episode, of (split, index)."""
    expert = setup["expert"]  # with the hash that the parent saw
    policy = load_expert(Path(expert["directory"]), sha256=expert["sha256"]).policy if expert else None
    world = open_world(Recipe(**setup["recipe"]), policy)

    def make(job: tuple[str, int]) -> None:
        write_arrays(shard_path(Path(setup["directory"]), *job), world.episode(setup["seed"], *job))

    return make


def make_listed(path: Path) -> None:
    """Make the episodes that a file lists, without those that exist: a file that exists is complete."""
    listed = read_json(path)
    setup = listed["setup"]
    os.environ.update(setup["environ"])  # before MuJoCo is imported
    directory, recipe = Path(setup["directory"]), Recipe(**setup["recipe"])
    missing = [job for job in listed["jobs"] if read_shard(shard_path(directory, *job), recipe) is None]
    if missing:
        make = start(setup)
        for job in missing:
            make(job)


def main(argv: list[str]) -> None:
    if not argv:
        serve(start)
        return
    try:
        make_listed(Path(argv[0]))
    except FidecError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
